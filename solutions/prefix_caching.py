"""Lab 8: prefix caching. What many requests begin with is computed once.

A system prompt, the examples before a question, every earlier turn of a chat: where two texts begin
with the same tokens, their keys and values are the same there. So blocks keep what they hold after
their request has ended, and who comes later finds them by the tokens up to their end. A block that
nobody holds is free all the same: it is known until somebody takes it for other tokens.

Two ways to find them are in use. vLLM hashes whole blocks, each with all that stands before it;
SGLang keeps a radix tree of texts, which finds every token and must be told to evict.

Sources: Kwon et al., "PagedAttention", SOSP 2023, section 4.4; vLLM's documentation, "Automatic
prefix caching"; Zheng et al., "SGLang: efficient execution of structured language model programs",
NeurIPS 2024, section 3 (the tree, its eviction, the order of admission).
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from solutions.engine.managers import EngineManager
from solutions.engine.scheduler import Scheduler

# ----------------------------------------------------------------------------- blocks by their hash


def block_hashes(token_ids: Sequence[int], block_size: int, salt: bytes = b"") -> list[bytes]:
    """For each full block of a text, a SHA-256 of all its tokens and those before it.

    It is made of the hash of the block before (32 zero bytes for the first), the block's own ids in
    8 bytes each, and the salt. A last block that isn't full has none, for its text still grows.
    Texts with different salts share no hash. Source: vLLM's documentation, "Automatic prefix
    caching".
    """
    ### BEGIN SOLUTION
    hashes, before = [], bytes(32)
    for end in range(block_size, len(token_ids) + 1, block_size):
        ids = array("q", token_ids[end - block_size : end])
        before = sha256(before + ids.tobytes() + salt).digest()
        hashes.append(before)
    return hashes
    ### END SOLUTION


class PrefixManager(EngineManager):
    """A block manager that finds again what blocks hold, also of requests that have ended.

    block_hash: the hash of each block whose tokens are known. cached: the same the other way round,
    so no two blocks stand there for one text. salts: of those who hold blocks; hashes: of their
    texts, as far as they have been published. queried and hits: how many tokens of all who were
    admitted were looked for, and how many found; who was preempted is admitted again.

    block          ref count    block_hash
    held           1 or more    once it is full and computed
    free, known    0            yes: it is found until it is taken
    free           0            no

    Only full blocks are shared, and who shares one computes what follows it. So nobody writes into
    a block that others hold.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.block_hash: dict[int, bytes] = {}
        self.cached: dict[bytes, int] = {}
        self.salts: dict[int, bytes] = {}
        self.hashes: dict[int, list[bytes]] = {}
        self.queried = self.hits = 0

    def match(self, token_ids: Sequence[int], salt: bytes = b"") -> list[int]:
        """The blocks that hold the longest known beginning of a text, in its order.

        They may be held or free. The last token is never found: without computing it there would
        be no logits. Nothing is changed.
        """
        ### BEGIN SOLUTION
        blocks = []
        for key in block_hashes(token_ids[:-1], self.block_size, salt):
            if key not in self.cached:
                break
            blocks.append(self.cached[key])
        return blocks
        ### END SOLUTION

    def take_block(self) -> int:
        """The block that has been free for longest; what it held is found no more.

        Raises OutOfBlocks where none is free.
        """
        ### BEGIN SOLUTION
        block = super().take_block()
        if block in self.block_hash:
            del self.cached[self.block_hash.pop(block)]
        return block
        ### END SOLUTION

    def free(self, request_id: int) -> None:
        """Forget a request. Its last block is taken first: nobody finds it without the others."""
        self.require_known(request_id)
        self.tables[request_id].reverse()
        super().free(request_id)
        del self.salts[request_id]
        self.hashes.pop(request_id, None)

    def admit(
        self, request: int, token_ids: Sequence[int], num_drafts: int = 0, salt: bytes = b""
    ) -> int:
        """Give a new request blocks for its tokens: those that are found, and others for the rest.

        Returns how many of its tokens need not be computed. A block that is found is held before
        others are taken, or it might be taken itself. The last `num_drafts` tokens are drafts,
        which get blocks too. Raises OutOfBlocks, and changes nothing, where the pool has too few.
        """
        self.require_new(request)
        known = self.without_drafts(token_ids, num_drafts)
        ### BEGIN SOLUTION
        found = self.match(known, salt)
        needed = self.blocks_for(len(token_ids)) - len(found)
        self.require_free(needed + sum(self.ref_counts[block] == 0 for block in found))
        for block in found:
            if self.ref_counts[block] == 0:
                self.free_blocks.remove(block)
            self.ref_counts[block] += 1
        self.tables[request] = found + [self.take_block() for _ in range(needed)]
        self.lengths[request], self.salts[request] = len(token_ids), salt
        self.queried += len(known)
        self.hits += len(found) * self.block_size
        return len(found) * self.block_size
        ### END SOLUTION

    def without_drafts(self, token_ids: Sequence[int], num_drafts: int) -> Sequence[int]:
        """The tokens to look for: no drafts, which are no text, nor the token before them.

        That one is verified with the drafts, once a step has room for all of them. Until then the
        engine needs another token to compute, which is the one that `match` never finds.
        """
        return token_ids[: -num_drafts - 1] if num_drafts else token_ids

    def publish(self, request: int, token_ids: Sequence[int], computed: int) -> None:
        """Let the request's full blocks be found, of its prompt and of its answer alike.

        token_ids: its tokens without drafts. Of those and drafts behind them the first `computed`
        are in the cache. Where a block with the same tokens is known already, that one stays known.
        """
        ### BEGIN SOLUTION
        hashes = self.hashes_of(request, token_ids[:computed])
        for block, key in zip(self.tables[request], hashes, strict=False):
            if key not in self.cached:
                self.cached[key], self.block_hash[block] = block, key
        ### END SOLUTION

    def hashes_of(self, request: int, text: Sequence[int]) -> list[bytes]:
        """Those of a request's text, which only grows: made again when another block is full."""
        if len(self.hashes.get(request, [])) != len(text) // self.block_size:
            self.hashes[request] = block_hashes(text, self.block_size, self.salts[request])
        return self.hashes.get(request, [])


# ------------------------------------------------------------------------------------ a radix tree


@dataclass(eq=False)
class Node:
    """A stretch of text that all who came through here have in common.

    ids: the tokens on the edge from its parent, which is None for the root. blocks: one for each of
    them. children: by the first token of their edge. stamp: which walk was the last to come here.
    """

    ids: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    parent: Any = None
    children: dict[int, "Node"] = field(default_factory=dict)
    stamp: int = 0


def shared_length(one: Sequence[int], other: Sequence[int]) -> int:
    """With how many equal tokens two texts begin."""
    both = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(both) if a != b), min(len(one), len(other)))


class RadixTree:
    """Texts as paths from a root, with blocks of one token: each token of a beginning is found.

    The tree holds its blocks, beside the requests that use them: whoever needs some asks `evict`.
    """

    def __init__(self) -> None:
        self.root, self.walks = Node(), 0

    def walk(self, token_ids: Sequence[int]) -> tuple[Node, int]:
        """The deepest node whose path begins a text, and how many tokens that path has.

        An edge that the text leaves in its middle is split there, ids and blocks: a new node takes
        the upper part, the old one keeps the rest and its children. So the path may end anywhere.
        Whatever the walk comes through, the root too, gets its number as a stamp; walks count
        from 1.
        """
        self.walks += 1
        self.root.stamp = self.walks
        node, length = self.root, 0
        ### BEGIN SOLUTION
        while length < len(token_ids) and token_ids[length] in node.children:
            child = node.children[token_ids[length]]
            shared = shared_length(child.ids, token_ids[length:])
            if shared < len(child.ids):
                upper = Node(child.ids[:shared], child.blocks[:shared], node)
                child.ids, child.blocks = child.ids[shared:], child.blocks[shared:]
                child.parent, upper.children[child.ids[0]] = upper, child
                node.children[upper.ids[0]] = child = upper
            node, length = child, length + shared
            node.stamp = self.walks
        return node, length
        ### END SOLUTION

    def match(self, token_ids: Sequence[int]) -> list[int]:
        """The blocks of the longest known beginning, in its order. Splits an edge at its end."""
        node, _ = self.walk(token_ids)
        known: list[int] = []
        while node is not self.root:
            known[:0] = node.blocks
            node = node.parent
        return known

    def insert(self, token_ids: Sequence[int], blocks: Sequence[int]) -> int:
        """Keep a text, with a block for each token; return how many of its tokens were known.

        For those the tree keeps the blocks that it has.
        """
        if len(blocks) != len(token_ids):
            raise ValueError(
                f"Give a block for each token: there are {len(blocks)} blocks and "
                f"{len(token_ids)} tokens."
            )
        node, length = self.walk(token_ids)
        if length < len(token_ids):
            rest = list(token_ids[length:]), list(blocks[length:])
            node.children[token_ids[length]] = Node(*rest, parent=node, stamp=self.walks)
        return length

    def leaves(self) -> Iterator[Node]:
        """All nodes but the root that have no children."""
        nodes = [*self.root.children.values()]
        while nodes:
            node = nodes.pop()
            nodes += node.children.values()
            if not node.children:
                yield node

    def evict(self, needed: int, unused: Callable[[int], bool]) -> list[int]:
        """Forget beginnings until `needed` blocks or more are free; return those blocks.

        `unused` says of a block whether nobody but the tree holds it. A leaf may go if all its
        blocks are unused, and goes as a whole, first the one that was walked to longest ago. Its
        parent may be a leaf then. Where too few can go, all that can do.
        """
        ### BEGIN SOLUTION
        evicted: list[int] = []
        while len(evicted) < needed:
            leaves = [leaf for leaf in self.leaves() if all(map(unused, leaf.blocks))]
            if not leaves:
                break
            oldest = min(leaves, key=lambda leaf: leaf.stamp)
            evicted += oldest.blocks
            del oldest.parent.children[oldest.ids[0]]
        return evicted
        ### END SOLUTION


# ------------------------------------------------------------------------------- who is served next


def choose_next(matched: Sequence[int], waited: Sequence[int], patience: int) -> int:
    """Which of those who wait is served next, as a place in the two lists.

    They stand in the order in which they came. matched: how many tokens of each are in the cache.
    waited: how often others have been chosen before it. Whoever has waited more than `patience`
    times comes first, of several the one who has waited longest; else whoever finds most. Of equals
    the first. Source: Zheng et al., section 3 (the longest match; it may starve others).
    """
    if not matched or len(matched) != len(waited):
        raise ValueError(
            "Somebody must wait, and each have a match and a time: there are "
            f"{len(matched)} matches and {len(waited)} times."
        )
    ### BEGIN SOLUTION
    late = [place for place in range(len(waited)) if waited[place] > patience]
    if late:
        return max(late, key=lambda place: waited[place])
    return max(range(len(matched)), key=lambda place: matched[place])
    ### END SOLUTION


class LongestMatch(Scheduler):
    """A scheduler that lets in whom `choose_next` names. waited: by request, while it waits."""

    manager: PrefixManager

    def __init__(
        self, manager: PrefixManager, token_budget: int, max_running: int, patience: int
    ) -> None:
        super().__init__(manager, token_budget, max_running)
        self.patience, self.waited = patience, Counter[int]()

    def admit(self) -> bool:
        if not self.waiting or len(self.running) == self.max_running:
            return False
        matched = [len(self.manager.match(s.text, s.salt)) for s in self.waiting]
        waited = [self.waited[sequence.number] for sequence in self.waiting]
        place = choose_next(matched, waited, self.patience)
        self.waiting.rotate(-place)
        is_admitted = super().admit()
        self.waiting.rotate(place)  # the others stand as they came
        if is_admitted:
            self.waited = Counter({s.number: self.waited[s.number] + 1 for s in self.waiting})
        return is_admitted
