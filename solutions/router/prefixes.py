"""The beginnings of prompts, as hashes: which replica has one in its prefix cache."""

import json
from collections import OrderedDict
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

BLOCK = 64  # bytes of a prompt that are hashed together: some 16 tokens
MOST_HASHES = 1024  # of one prompt
MOST_KNOWN = 50_000  # hashes that are remembered of one replica


def prompt_hashes(body: dict[str, Any]) -> list[bytes]:
    """Hash each full block of a prompt's text together with all blocks before it, as lab 8 does.

    The text is JSON: the messages of a chat, the characters of a prompt, or its token ids. Of
    several prompts it is the first. It needn't be valid, because the replica judges that.
    """
    prompt = body.get("messages") or body.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    text = json.dumps(prompt)[1:-1].encode()  # a chat's next message comes before the bracket
    hashes, before = [], b""
    for end in range(BLOCK, min(len(text), MOST_HASHES * BLOCK) + 1, BLOCK):
        before = sha256(before + text[end - BLOCK : end]).digest()
        hashes.append(before)
    return hashes


class Recent(set[bytes]):
    """The hashes that were added last: a replica's cache loses the oldest blocks, too."""

    def __init__(self) -> None:
        super().__init__()
        self.order: OrderedDict[bytes, None] = OrderedDict()

    def update(self, *hashes: Iterable[bytes]) -> None:
        """Add the hashes of one prompt, and drop the oldest. Of one prompt, the end goes first."""
        for block in reversed([block for some in hashes for block in some]):
            self.order[block] = None
            self.order.move_to_end(block)
            self.add(block)
        while len(self) > MOST_KNOWN:
            self.remove(self.order.popitem(last=False)[0])
