"""Lab 16: the tokenizer. From text to token ids, and from a stream of ids back to text.

GPT-2's tokenizer is byte-level BPE. A text is cut into words, and a word is a sequence of bytes.
Neighboring parts of a word are merged, in the order in which training has learned the merges, and
every part that is left is a token. Because all 256 bytes are tokens, any text can be encoded.

Sources: Gage, "A new algorithm for data compression", 1994; Sennrich et al., "Neural machine
translation of rare words with subword units", ACL 2016; Radford et al., "Language models are
unsupervised multitask learners", 2019, section 2.2; The Unicode Standard, section 3.9.6 (U+FFFD).
"""

import codecs
import functools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

import regex
import torch
from torch import Tensor

from gpt import find_checkpoint, first_existing

Pair = tuple[bytes, bytes]  # two neighboring parts of a word
WORDS_IN_CACHE = 10_000

# ------------------------------------------------------------------------------- bytes in a file

# A file of tokens is text, but a token is bytes. So GPT-2 writes each byte as a character: a
# printable one as itself, and any other as one of the characters from U+0100 up, in order. A space
# is the 33rd of those, which is why it looks like Ġ (U+0120), and a line break looks like Ċ.
SEEN_AS_THEMSELVES = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(256) if byte not in SEEN_AS_THEMSELVES]
BYTE_CHARS: dict[int, str] = {byte: chr(byte) for byte in SEEN_AS_THEMSELVES} | {
    byte: chr(0x100 + place) for place, byte in enumerate(OTHERS)
}
CHAR_BYTES = {char: byte for byte, char in BYTE_CHARS.items()}


def printable(token: bytes) -> str:
    """Return a token as GPT-2's files write it: b" king" as "Ġking"."""
    return "".join(BYTE_CHARS[byte] for byte in token)


def from_printable(text: str) -> bytes:
    return bytes(CHAR_BYTES[char] for char in text)


# ------------------------------------------------------------------------------- the vocabulary


@dataclass
class Tokenizer:
    """What a byte-level BPE has learned: plain data, for the functions below.

    ids: the id of each token. ranks: the merges with their places in the order of training, 0 for
    the first. special: the ids of special tokens by their text, which no merge makes. token_bytes:
    the bytes of each id, of the special tokens too.
    """

    ids: dict[bytes, int]
    ranks: dict[Pair, int]
    special: dict[str, int] = field(default_factory=dict)
    token_bytes: dict[int, bytes] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.token_bytes = {number: token for token, number in self.ids.items()}
        self.token_bytes |= {number: text.encode() for text, number in self.special.items()}
        if len(self.token_bytes) < len(self.ids) + len(self.special):
            raise ValueError("Two tokens have the same id. Number the bytes after special tokens.")


def byte_ids(first: int = 0) -> dict[bytes, int]:
    """Return the 256 tokens of one byte with their ids from `first` up, in the order of files."""
    alphabet = sorted(range(256), key=BYTE_CHARS.__getitem__)
    return {bytes([byte]): first + place for place, byte in enumerate(alphabet)}


def with_merges(
    merges: Sequence[Pair], ids: Mapping[bytes, int], special: Mapping[str, int] | None = None
) -> Tokenizer:
    """Return a tokenizer with these merges; each gives its bytes an id, if they have none yet."""
    numbers = dict(ids)
    for left, right in merges:
        numbers.setdefault(left + right, next_id(numbers))
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    return Tokenizer(numbers, ranks, dict(special or {}))


def next_id(ids: Mapping[bytes, int]) -> int:
    """Return the id of a new token: one above the highest."""
    return max(ids.values()) + 1


def read_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer.json of the Hugging Face layout.

    Raises ValueError, with what to do about it, if it isn't a byte-level BPE like GPT-2's.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        require_like_gpt2(path, found)
        special = {token["content"]: token["id"] for token in found["added_tokens"]}
        vocab, merges = found["model"]["vocab"], map(halves, found["model"]["merges"])
        pairs = [(from_printable(left), from_printable(right)) for left, right in merges]
        ids = {from_printable(token): vocab[token] for token in vocab if token not in special}
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError, UnicodeError) as error:
        raise ValueError(
            f"{path} is not a tokenizer of byte-level BPE ({type(error).__name__}: {error}). "
            "Download it again, or take a shipped model's."
        ) from error
    if missing := byte_ids().keys() - ids.keys():
        raise ValueError(f"{path} has no token for {len(missing)} bytes. Take a GPT-2's.")
    return Tokenizer(ids, {pair: rank for rank, pair in enumerate(pairs)}, special)


def require_like_gpt2(path: Path, found: Mapping[str, Any]) -> None:
    cut = found["pre_tokenizer"] or {}
    kinds = found["model"]["type"], cut.get("type"), cut.get("use_regex", True)
    expected = "BPE", "ByteLevel", True
    if kinds != expected or cut["add_prefix_space"] or found["normalizer"]:
        raise ValueError(
            f"{path} doesn't cut text as GPT-2 does: it needs the model BPE, the pre-tokenizer "
            "ByteLevel without a prefix space, and no normalizer. Take a GPT-2's."
        )


def halves(merge: str | list[str]) -> list[str]:
    """Return both parts of a merge, which older files write as one string."""
    return merge.split(" ") if isinstance(merge, str) else merge


# --------------------------------------------------------------------------------- input checks


def require_known(ids: Iterable[int], token_bytes: Mapping[int, bytes]) -> None:
    for number in ids:
        if number not in token_bytes:
            raise ValueError(
                f"There is no token {number}: this tokenizer has {len(token_bytes)} tokens. "
                "Use the tokenizer that belongs to the model."
            )


def require_text(text: str) -> None:
    """Raise ValueError for half of a surrogate pair, which stands for no character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{text[error.start]!r} in the text is half of a surrogate pair, which UTF-8 can't "
            "encode. Read the text again with the right encoding."
        ) from error


def require_special(names: Collection[str], tokenizer: Tokenizer) -> None:
    if isinstance(names, str) or not set(names) <= tokenizer.special.keys():
        raise ValueError(
            f"allowed_special is a list of special tokens, not {names!r}. This tokenizer has "
            f"{', '.join(tokenizer.special) or 'none'}."
        )


# ---------------------------------------------------------------------------------- ids to text


def decode(ids: Sequence[int], token_bytes: Mapping[int, bytes]) -> str:
    """Return the text of a sequence of token ids.

    token_bytes: the bytes of each id. A token may end in the middle of a character, so the bytes of
    all tokens are joined first. Bytes that are no UTF-8 become U+FFFD, as in
    `bytes.decode("utf-8", "replace")`. Raises ValueError for an unknown id.
    """
    require_known(ids, token_bytes)
    ### BEGIN SOLUTION
    data = b"".join(token_bytes[number] for number in ids)
    return data.decode("utf-8", "replace")
    ### END SOLUTION


# --------------------------------------------------------------------------------- text to words


def pre_tokenize(text: str) -> list[str]:
    r"""Cut a text into words, which are tokenized separately; joined, they are the text.

    At each place the first of these that fits is taken, as long as possible:
    1. a contraction: 's, 't, 're, 've, 'm, 'll or 'd, in lower case
    2. a space or none, then letters (\p{L})
    3. a space or none, then numerals (\p{N})
    4. a space or none, then characters that are neither letters, numerals nor white space
    5. white space (\s) up to the end of the text; before a word, all but its last character
    6. white space
    """
    ### BEGIN SOLUTION
    contraction = "'s|'t|'re|'ve|'m|'ll|'d"
    words = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+"
    space = r"\s+(?!\S)|\s+"
    return regex.findall(f"{contraction}|{words}|{space}", text)
    ### END SOLUTION


def count_words(text: str) -> Counter[bytes]:
    """Return how often each word of a text occurs: what training learns from."""
    return Counter(word.encode() for word in pre_tokenize(text))


def bytes_of(word: bytes) -> list[bytes]:
    """Return a word's parts before any merge: single bytes."""
    return [bytes([byte]) for byte in word]


# -------------------------------------------------------------------------------------- training


def merge(parts: Sequence[bytes], pair: Pair) -> list[bytes]:
    """Join the pair wherever it occurs among a word's parts, from left to right.

    A part that has been joined isn't joined again: with the pair (a, a), the parts a a a become
    aa a. Returns a new list; `parts` stays unchanged.
    """
    ### BEGIN SOLUTION
    merged: list[bytes] = []
    place = 0
    while place < len(parts):
        if tuple(parts[place : place + 2]) == pair:
            merged.append(parts[place] + parts[place + 1])
            place += 2
        else:
            merged.append(parts[place])
            place += 1
    return merged
    ### END SOLUTION


def count_pairs(
    splits: Mapping[bytes, Sequence[bytes]], counts: Mapping[bytes, int]
) -> dict[Pair, int]:
    """Return how often each pair of neighboring parts occurs in a text.

    splits: the parts of each word. counts: how often each word occurs in the text, at least once.
    Pairs may overlap: a word of the parts a a a has the pair (a, a) twice. A pair that doesn't
    occur has no entry.
    """
    ### BEGIN SOLUTION
    pairs: Counter[Pair] = Counter()
    for word, parts in splits.items():
        for pair in pairwise(parts):
            pairs[pair] += counts[word]
    return pairs
    ### END SOLUTION


def train(words: Mapping[bytes, int], merges: int, ids: Mapping[bytes, int]) -> list[Pair]:
    """Learn merges from a text; return them in order.

    words: how often each word of the text occurs. merges: how many to learn; fewer if no pair is
    left. ids: the tokens to begin with, at least all bytes of the words. Every word begins as
    single bytes. Each round merges the pair that is most frequent now; of equally frequent pairs
    the one with the smallest first id, then the smallest second id. The merged bytes get
    `next_id(ids)`, unless they have an id already. The arguments stay unchanged.
    """
    ### BEGIN SOLUTION
    learned: list[Pair] = []
    ids = dict(ids)
    splits = {word: bytes_of(word) for word in words}
    while len(learned) < merges and (counts := count_pairs(splits, words)):
        best = min(counts, key=lambda pair: (-counts[pair], ids[pair[0]], ids[pair[1]]))
        ids.setdefault(best[0] + best[1], next_id(ids))
        splits = {word: merge(parts, best) for word, parts in splits.items()}
        learned.append(best)
    return learned
    ### END SOLUTION


def train_fast(words: Mapping[bytes, int], merges: int, ids: Mapping[bytes, int]) -> list[Pair]:
    """Do what `train` does, and update only the counts that a merge changes.

    A merge changes few words. For every pair it is known in which words it has occurred, and a heap
    gives the most frequent pair. A count that changes is pushed again; its old entry stays in the
    heap, and is skipped when it comes up.
    """
    found: list[Pair] = []
    numbers = dict(ids)
    parts_of = {word: bytes_of(word) for word in words}
    counts = Counter(count_pairs(parts_of, words))
    words_with: defaultdict[Pair, set[bytes]] = defaultdict(set)
    for word in words:
        for pair in pairwise(parts_of[word]):
            words_with[pair].add(word)

    def entry(pair: Pair) -> tuple[int, int, int, Pair]:
        return -counts[pair], numbers[pair[0]], numbers[pair[1]], pair

    heap = [entry(pair) for pair in counts]
    heapify(heap)
    while heap and len(found) < merges:
        old_count, _, _, most_frequent = heappop(heap)
        if -old_count != counts[most_frequent]:
            continue
        found.append(most_frequent)
        numbers.setdefault(b"".join(most_frequent), next_id(numbers))
        changes: Counter[Pair] = Counter()
        for word in words_with.pop(most_frequent):
            before, after = parts_of[word], merge(parts_of[word], most_frequent)
            for pair in pairwise(before):
                changes[pair] -= words[word]
            for pair in pairwise(after):
                changes[pair] += words[word]
                words_with[pair].add(word)
            parts_of[word] = after
        for pair in [pair for pair, change in changes.items() if change]:
            counts[pair] += changes[pair]
            if counts[pair]:
                heappush(heap, entry(pair))
    return found


# ---------------------------------------------------------------------------------- words to ids


def join_by_rank(word: bytes, ranks: Mapping[Pair, int]) -> list[bytes]:
    """Return the tokens of a word: what is left of its bytes after all merges.

    Each round takes the pair of the lowest rank that occurs among the parts, wherever it is, and
    merges it everywhere. It ends when no pair of neighboring parts has a rank.
    """
    ### BEGIN SOLUTION
    parts = bytes_of(word)
    while len(parts) > 1:
        pair = min(pairwise(parts), key=lambda pair: ranks.get(pair, math.inf))
        if pair not in ranks:
            break
        parts = merge(parts, pair)
    return parts
    ### END SOLUTION


def encode(text: str, tokenizer: Tokenizer, allowed_special: Collection[str] = ()) -> list[int]:
    """Return the token ids of a text.

    allowed_special: the special tokens that are taken for what they are where the text spells them;
    if several begin at the same place, the longest. The pieces between them, and special tokens
    that aren't allowed, are ordinary text, cut by `pre_tokenize`. So a user's text, for which
    nothing is allowed, can't hold a special token. Raises ValueError for a text that UTF-8 can't
    encode, and for an allowed token that the tokenizer doesn't have.
    """
    require_text(text)
    require_special(allowed_special, tokenizer)
    ### BEGIN SOLUTION
    longest_first = sorted(allowed_special, key=len, reverse=True)
    pattern = "|".join(regex.escape(name) for name in longest_first)
    pieces = regex.split(f"({pattern})", text) if pattern else [text]
    ids: list[int] = []
    for piece in pieces:
        if piece in allowed_special:
            ids.append(tokenizer.special[piece])
            continue
        for word in pre_tokenize(piece):
            ids += [tokenizer.ids[part] for part in join_by_rank(word.encode(), tokenizer.ranks)]
    return ids
    ### END SOLUTION


# ------------------------------------------------------------------------------ a stream of text


class StreamDecoder:
    """Turns the token ids of one request into text, as they come.

    token_bytes: the bytes of each id. held: the bytes so far of a character that isn't complete.
    """

    def __init__(self, token_bytes: Mapping[int, bytes]) -> None:
        self.token_bytes = token_bytes
        self.held = b""

    def push(self, token: int) -> str:
        """Add a token; return the text that is certain now and hasn't been returned.

        Only the bytes at the end that begin a character, and that later bytes may complete, are
        held. Bytes that no later byte makes UTF-8 become U+FFFD at once, except that ED with A0 to
        BF, the beginning of a surrogate, may be held. All pieces together, with that of `flush`,
        are the text that `decode` returns. Raises ValueError for an unknown id.
        """
        require_known([token], self.token_bytes)
        ### BEGIN SOLUTION
        data = self.held + self.token_bytes[token]
        text, used = codecs.utf_8_decode(data, "replace", False)  # False: more bytes may come
        self.held = data[used:]
        return text
        ### END SOLUTION

    def flush(self) -> str:
        """Return the rest when no token will come any more: an incomplete character is U+FFFD."""
        rest, self.held = self.held.decode("utf-8", "replace"), b""
        return rest


# ------------------------------------------------------------------------------- for other labs


class Encoded(NamedTuple):
    input_ids: Any


class OwnTokenizer:
    """A tokenizer made of the parts above, to use where the labs use that of gpt.py.

    Texts repeat their words, so the ids of words are kept, as production tokenizers do. No special
    token is read from a text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        encode_word = functools.partial(encode, tokenizer=tokenizer)
        self.ids_of_word = functools.lru_cache(WORDS_IN_CACHE)(encode_word)

    @classmethod
    def from_pretrained(cls, name_or_folder: str | Path) -> Self:
        """Read the tokenizer of a model, by the names that gpt.load_tokenizer takes."""
        folder = find_checkpoint(name_or_folder)
        return cls(read_tokenizer(first_existing(folder, ("tokenizer.json",), "tokenizer")))

    def __call__(
        self, text: str | Sequence[str], return_tensors: str | None = None, **_: object
    ) -> Encoded:
        """Return the ids of a text, those of each of several, or with "pt" a tensor of rows."""
        if isinstance(text, str) and return_tensors is None:
            return Encoded(self.encode(text))
        rows = [self.encode(one) for one in ([text] if isinstance(text, str) else text)]
        return Encoded(rows if return_tensors is None else torch.tensor(rows))

    def encode(self, text: str) -> list[int]:
        return [number for word in pre_tokenize(text) for number in self.ids_of_word(word)]

    def decode(self, ids: int | Sequence[int] | Tensor, **_: object) -> str:
        """Return the text of an id or of several. Nothing is left out, and no space cleaned up."""
        numbers = torch.as_tensor(ids, dtype=torch.int64).flatten().tolist()
        return decode(numbers, self.tokenizer.token_bytes)

    def stream(self) -> StreamDecoder:
        return StreamDecoder(self.tokenizer.token_bytes)
