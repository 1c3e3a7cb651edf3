"""A tokenizer's tokens as bytes, and the text that they make."""

import codecs
from collections.abc import Callable, Collection, Sequence

from tokenizers import Tokenizer

PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
BYTE_OF = {chr(byte): byte for byte in PRINTABLE}  # GPT-2's table, which lab 16 builds
BYTE_OF |= {chr(256 + place): byte for place, byte in enumerate(OTHERS)}


class TokenBytes:
    """The bytes of each token. Special tokens and those of `ends` have none: they are no text."""

    def __init__(self, tokenizer: Tokenizer, ends: Collection[int] = ()) -> None:
        added = tokenizer.get_added_tokens_decoder()
        self.known = {
            token: bytes(BYTE_OF[character] for character in name)
            if BYTE_OF.keys() >= set(name)
            else tokenizer.decode([token]).encode()
            for name, token in tokenizer.get_vocab().items()
        }
        for token, one in added.items():
            self.known[token] = b"" if one.special else one.content.encode()
        self.known |= dict.fromkeys(ends, b"")
        self.longest = max(map(len, self.known.values()))

    def __call__(self, token: int) -> bytes:
        return self.known.get(token, b"")

    def name(self, token: int) -> str:
        """Return a token's text, or where characters are torn, its bytes in OpenAI's notation."""
        content = self(token)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


def stop_at(
    stops: Sequence[str], bytes_of: Callable[[int], bytes], ends: Collection[int] = ()
) -> Callable[[Sequence[int]], bool]:
    """Return whether a text's newest token is one of `ends`, or completes a stop string.

    Called after each token.
    """
    wanted = [stop.encode() for stop in stops]
    longest = max(map(len, wanted), default=0)  # a token is a byte or more

    def has_stopped(ids: Sequence[int]) -> bool:
        if ids[-1] in ends or not wanted:
            return ids[-1] in ends
        ending = b"".join(map(bytes_of, ids[-longest:]))
        return any(stop in ending for stop in wanted)

    return has_stopped


class Growing:
    """Decodes a text that grows, each token once: a text of a thousand would take a thousand times
    as long. text: the characters that no further token can change.
    """

    def __init__(self, bytes_of: TokenBytes) -> None:
        self.bytes_of, self.count, self.text = bytes_of, 0, ""
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def __call__(self, ids: Sequence[int]) -> str:
        for token in ids[self.count :]:
            self.text += self.decoder.decode(self.bytes_of(token))
        self.count = len(ids)
        torn, _ = self.decoder.getstate()
        return self.text + torn.decode(errors="replace")
