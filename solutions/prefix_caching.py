"""Lab 8: prefix caching. A beginning that many requests share is computed once.

A system prompt, the examples before a question, every earlier turn of a chat: where two texts begin
with the same tokens, their keys and values are the same. So blocks keep their contents after their
request has ended, and a later request finds them by the tokens up to their end. A block that no
request holds counts as free, but it can still be found until it is taken for other tokens.

Two ways to find blocks are in use. vLLM hashes full blocks, each together with the whole text
before it; SGLang keeps a radix tree of texts, which finds every token, but has to be told to evict.

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
    """Hash each full block of a text together with all the tokens before it.

    Returns one SHA-256 digest (32 bytes) for each full block. It is made of the digest of the block
    before (32 zero bytes for the first block), the block's own ids in 8 bytes each, and the salt;
    their order is up to you. A last block that isn't full gets no hash, because its text still
    grows. Texts with different salts share no hash. Source: vLLM's documentation, "Automatic prefix
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
    """A block manager that can find blocks by their contents, even after their request has ended.

    block_hash: the hash of each block whose tokens are known. cached: the same the other way round,
    from a hash to its block, so no two blocks in it hold the same text. salts: the salt of each
    request that holds blocks; hashes: the hashes of its text, as far as they have been made for
    `publish`. queried, hits: how many tokens of all admitted requests were looked up, and how many
    of them were found; a preempted request is admitted again, and counts again.

    block          ref count    in block_hash
    held           1 or more    once it is full and computed
    free, known    0            yes: it can be found until it is taken
    free, empty    0            no

    Only full blocks are shared, and a request that shares a block computes the tokens after it. So
    no request ever writes into a block that others hold.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.block_hash: dict[int, bytes] = {}
        self.cached: dict[bytes, int] = {}
        self.salts: dict[int, bytes] = {}
        self.hashes: dict[int, list[bytes]] = {}
        self.queried = self.hits = 0

    def match(self, token_ids: Sequence[int], salt: bytes = b"") -> list[int]:
        """Find the blocks that hold the longest known beginning of a text, in the text's order.

        They may be held or free. The last token of the text is never found, because without
        computing it there would be no logits. Changes nothing.
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
        """Take the block that has been free the longest, and forget what it held.

        Returns the block. Raises OutOfBlocks if no block is free.
        """
        ### BEGIN SOLUTION
        block = super().take_block()
        if block in self.block_hash:
            del self.cached[self.block_hash.pop(block)]
        return block
        ### END SOLUTION

    def free(self, request_id: int) -> None:
        """Forget a request. Its last block joins the free blocks first, so it is taken first:
        without the blocks before it, it could not be found anyway.
        """
        self.require_known(request_id)
        self.tables[request_id].reverse()
        super().free(request_id)
        del self.salts[request_id]
        self.hashes.pop(request_id, None)

    def admit(
        self, request: int, token_ids: Sequence[int], num_drafts: int = 0, salt: bytes = b""
    ) -> int:
        """Give a new request the blocks for its tokens: those that are found, then new ones.

        Returns how many of its tokens need not be computed. The blocks that are found are held
        before others are taken, because otherwise one of them might be taken. The last `num_drafts`
        tokens are drafts, which get blocks too, but aren't looked up. `queried` and `hits` count
        the tokens that were looked up and those that were found. Raises OutOfBlocks, and changes
        nothing, if the pool has too few free blocks.
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
        """The tokens to look up: without the drafts and without the last token before them.

        Drafts are only guesses. The token before them is verified together with them, in a step
        with room for all of them. Until then the engine needs one other token to compute, which is
        the one that `match` never finds.
        """
        return token_ids[: -num_drafts - 1] if num_drafts else token_ids

    def publish(self, request: int, token_ids: Sequence[int], computed: int) -> None:
        """Make the request's full blocks known, those of its prompt and those of its answer.

        token_ids: its tokens, without drafts. computed: how many tokens are in the cache; where
        drafts were computed too, that may be more than there are in token_ids. If a block with the
        same tokens is known already, that block stays the known one.
        """
        ### BEGIN SOLUTION
        hashes = self.hashes_of(request, token_ids[:computed])
        for block, key in zip(self.tables[request], hashes, strict=False):
            if key not in self.cached:
                self.cached[key], self.block_hash[block] = block, key
        ### END SOLUTION

    def hashes_of(self, request: int, text: Sequence[int]) -> list[bytes]:
        """The hashes of the full blocks of a request's text, made again when one more is full.

        The text only ever grows, so the number of full blocks says whether it has changed.
        """
        if len(self.hashes.get(request, [])) != len(text) // self.block_size:
            self.hashes[request] = block_hashes(text, self.block_size, self.salts[request])
        return self.hashes.get(request, [])


# ------------------------------------------------------------------------------------ a radix tree


@dataclass(eq=False)
class Node:
    """A node of the tree: a stretch of tokens that all texts passing through it share.

    ids: the tokens on the edge from its parent. blocks: one block for each of them. parent: None
    for the root. children: by the first token of their edge. stamp: the number of the last walk
    that came here.
    """

    ids: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    parent: Any = None
    children: dict[int, "Node"] = field(default_factory=dict)
    stamp: int = 0


def shared_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Count the equal tokens with which two texts begin."""
    both = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(both) if a != b), min(len(one), len(other)))


class RadixTree:
    """Texts as paths from a root, with blocks of one token: every shared token is found.

    The tree holds its blocks, in addition to the requests that use them. `evict` frees some.
    """

    def __init__(self) -> None:
        self.root, self.walks = Node(), 0

    def walk(self, token_ids: Sequence[int]) -> tuple[Node, int]:
        """Find the deepest node whose path begins a text; return it and the length of its path.

        Where the text leaves an edge in its middle, the edge is split there, ids and blocks: a new
        node takes the upper part; the old node keeps the rest, its children and its stamp. So the
        path can end anywhere, and an old node still ends the same text. Every node on the path, the
        root included, gets this walk's number as its stamp; walks count from 1.
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
        """Return the blocks of the longest known beginning, in order. May split an edge there."""
        node, _ = self.walk(token_ids)
        known: list[int] = []
        while node is not self.root:
            known[:0] = node.blocks
            node = node.parent
        return known

    def insert(self, token_ids: Sequence[int], blocks: Sequence[int]) -> int:
        """Keep a text, with a block for each token; return how many of its tokens were known.

        The tree keeps its own blocks for the tokens that it knew already.
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
        """Iterate over all nodes without children, except the root."""
        nodes = [*self.root.children.values()]
        while nodes:
            node = nodes.pop()
            nodes += node.children.values()
            if not node.children:
                yield node

    def evict(self, needed: int, unused: Callable[[int], bool]) -> list[int]:
        """Remove leaves until at least `needed` blocks are free; return the blocks of all of them.

        `unused` says whether only the tree holds a block. A leaf can be removed if all its blocks
        are unused; it is always removed as a whole, and the leaf whose last walk is longest ago
        goes first. Its parent may then become a leaf. If too few blocks can be freed, all leaves
        that can be removed are.
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


# ---------------------------------------------------------------------- which request is next


def choose_next(matched: Sequence[int], waited: Sequence[int], patience: int) -> int:
    """Choose which waiting request is served next; return its place in the two lists.

    Both lists are in the order in which the requests came. matched: how many tokens of each are in
    the cache. waited: how often others were chosen before it. If any request has waited more than
    `patience` times, the one that has waited longest is chosen; otherwise the one with the longest
    match. Of equals the first. Source: Zheng et al., section 3 (the longest match, which can starve
    a request).
    """
    if not matched or len(matched) != len(waited):
        raise ValueError(
            "There must be a waiting request, and a match and a waiting time for each; there are "
            f"{len(matched)} matches and {len(waited)} times."
        )
    ### BEGIN SOLUTION
    late = [place for place in range(len(waited)) if waited[place] > patience]
    if late:
        return max(late, key=lambda place: waited[place])
    return max(range(len(matched)), key=lambda place: matched[place])
    ### END SOLUTION


class LongestMatch(Scheduler):
    """A scheduler that admits the request that `choose_next` chooses.

    waited: for each waiting request, how often another one was admitted before it.
    """

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
        self.waiting.rotate(place)  # the others keep their order
        if is_admitted:
            self.waited = Counter({s.number: self.waited[s.number] + 1 for s in self.waiting})
        return is_admitted


# -------------------------------------------------------------------- what a kept prefix costs


class PromptCache:
    """The bill of a service that keeps the prefixes that a prompt marks.

    least: the fewest tokens of a prefix that is kept. lifetime: the seconds that a prefix is kept
    after it was last written or read. ends: for each prefix, the time until which it is kept.
    """

    def __init__(self, least: int, lifetime: float) -> None:
        self.least, self.lifetime = least, lifetime
        self.ends: dict[tuple[int, ...], float] = {}

    def bill(self, now: float, ids: Sequence[int], marks: Sequence[int]) -> tuple[int, int, int]:
        """Return how many tokens of a prompt are read, how many written, and how many plain.

        A mark m asks to keep the prefix ids[:m]. A mark of fewer than `least` tokens doesn't count.
        The longest marked prefix that is still kept is read. The tokens after it are written up to
        the last mark that counts, and the rest is plain. Every marked prefix is then kept until
        `now` + `lifetime`: at that time it is no longer there. Raises ValueError for more than 4
        marks, or marks that don't ascend within the prompt.

        Source: Anthropic's documentation, "Prompt caching" (2026), without its look-back.
        """
        if len(marks) > 4 or list(marks) != sorted({*marks} & {*range(1, len(ids) + 1)}):
            raise ValueError(
                f"Give up to 4 marks in ascending order, from 1 to the prompt's {len(ids)} tokens, "
                f"not {list(marks)}."
            )
        ### BEGIN SOLUTION
        prefixes = {mark: tuple(ids[:mark]) for mark in marks if mark >= self.least}
        kept = [mark for mark, prefix in prefixes.items() if self.ends.get(prefix, now) > now]
        read, last = max(kept, default=0), max(prefixes, default=0)
        for prefix in prefixes.values():
            self.ends[prefix] = now + self.lifetime
        return read, last - read, len(ids) - last
        ### END SOLUTION
