"""Answers to lab 8's exercises: hashes, a manager's methods, a radix tree, the next request."""

from bisect import insort
from functools import partial
from hashlib import md5, sha256

import torch

from solutions.engine.managers import FreeBlocks
from solutions.paged_attention import BlockManager, OutOfBlocks
from solutions.prefix_caching import Node, PrefixManager, RadixTree, block_hashes, choose_next
from tests.common.attempts import right, wrong

# ----------------------------------------------------------------------------- blocks by their hash


@wrong(block_hashes, "Each hash is a tuple; expected: it is 32 bytes.")
def that_are_the_texts(token_ids, block_size, salt=b""):
    ends = range(block_size, len(token_ids) + 1, block_size)
    return [(salt, *token_ids[:end]) for end in ends]


@wrong(block_hashes, "Each hash is 16 bytes; expected: it is 32 bytes.")
def by_a_broken_function(token_ids, block_size, salt=b""):
    return [md5(key).digest() for key in block_hashes(token_ids, block_size, salt)]


@wrong(block_hashes, "The list of hashes of text 3, numbered as new ones come, is [1]")
def salted_in_front_without_a_border(token_ids, block_size, salt=b""):
    """2, 3 with the salt 1 is written like 12, 3 without a salt."""
    hashes, before = [], bytes(32)
    for end in range(block_size, len(token_ids) + 1, block_size):
        ids = ",".join(map(str, token_ids[end - block_size : end]))
        before = sha256(before + salt + ids.encode()).digest()
        hashes.append(before)
    return hashes


@wrong(block_hashes, "The list of hashes of text 2, numbered as new ones come, is [0]; expected")
def of_ids_in_two_bytes(token_ids, block_size, salt=b""):
    return block_hashes([token % 2**16 for token in token_ids], block_size, salt)


@wrong(block_hashes, "The list of hashes of text 3", "The salt replaces the zero bytes")
def begun_with_the_salt(token_ids, block_size, salt=b""):
    hashes = [salt or bytes(32)]
    for end in range(block_size, len(token_ids) + 1, block_size):
        ids = b"".join(token.to_bytes(8, "big") for token in token_ids[end - block_size : end])
        hashes.append(sha256(hashes[-1] + ids).digest())
    return hashes[1:]


@wrong(block_hashes, "The list of hashes of text 2, numbered as new ones come, is [0, 1]; expected")
def mixed_with_the_salt(token_ids, block_size, salt=b""):
    padded = salt.ljust(32, b"\0")
    return [
        bytes(one ^ other for one, other in zip(key, padded, strict=True))
        for key in block_hashes(token_ids, block_size)
    ]


@wrong(block_hashes, "It raised TypeError: unhashable type: 'list'")
def that_are_lists(token_ids, block_size, salt=b""):
    return [list(key) for key in block_hashes(token_ids, block_size, salt)]


@right(PrefixManager.match)
def by_the_blocks_themselves(self, token_ids, salt=b""):
    found, keys = [], block_hashes(list(token_ids)[:-1], self.block_size, salt)
    while len(found) < len(keys):
        here = [block for block, key in self.block_hash.items() if key == keys[len(found)]]
        if not here:
            break
        found += here
    return tuple(found)


@right(PrefixManager.take_block)
def the_books_made_anew(self):
    self.require_free(1)
    block, *others = self.free_blocks
    self.free_blocks = FreeBlocks(others)
    self.ref_counts = [count or int(b == block) for b, count in enumerate(self.ref_counts)]
    self.block_hash = {b: key for b, key in self.block_hash.items() if b != block}
    self.cached = {key: b for b, key in self.block_hash.items()}
    return block


@wrong(PrefixManager.take_block, "It raised KeyError: 'dictionary is empty'")
def taken_without_asking(self):
    block = self.free_blocks.popleft()
    self.ref_counts[block] = 1
    self.cached.pop(self.block_hash.pop(block, None), None)
    return block


@wrong(PrefixManager.take_block, "in block None")
def with_none_for_a_block(self):
    """The hash stays among the keys, so given code that asks `in` still finds it."""
    block = BlockManager.take_block(self)
    if block in self.block_hash:
        self.cached[self.block_hash.pop(block)] = None
    return block


@wrong(PrefixManager.take_block, "`block_hash`, with texts in place of hashes,")
def with_none_for_a_hash(self):
    block = BlockManager.take_block(self)
    if self.block_hash.get(block) is not None:
        del self.cached[self.block_hash[block]]
        self.block_hash[block] = None
    return block


@right(PrefixManager.admit)
def by_the_allocate_of_lab_4(self, request, token_ids, num_drafts=0, salt=b""):
    found = self.match(self.without_drafts(token_ids, num_drafts), salt)
    computed = len(found) * self.block_size
    free = {block for block in found if block in self.free_blocks}
    self.require_free(len(free) + self.blocks_for(len(token_ids) - computed))
    for block in free:
        self.free_blocks.pop(block)
    for block in found:
        self.ref_counts[block] = self.ref_counts[block] + 1
    self.allocate(request, len(token_ids) - computed)
    self.tables[request][:0] = found
    self.lengths[request] += computed
    self.salts.update({request: salt})
    self.hits, self.queried = self.hits + computed, self.queried + len(token_ids)
    if num_drafts:
        self.queried -= num_drafts + 1
    return computed


@wrong(PrefixManager.admit, "What `take_block` has handed out after step 1 is []; expected: it")
def past_its_own_take_block(self, *given):
    """What the blocks held before is still known."""
    self.take_block = partial(BlockManager.take_block, self)
    computed = PrefixManager.admit(self, *given)
    del self.take_block
    return computed


@wrong(PrefixManager.admit, "It raised ValueError: too few")
def refused_in_its_own_words(self, request, token_ids, num_drafts=0, salt=b""):
    try:
        return PrefixManager.admit(self, request, token_ids, num_drafts, salt)
    except OutOfBlocks:
        raise ValueError("too few") from None


@wrong(PrefixManager.admit, "`free_blocks` after step 1 is a list; expected: it is [")
def free_blocks_in_a_list(self, request, token_ids, num_drafts=0, salt=b""):
    computed = PrefixManager.admit(self, request, token_ids, num_drafts, salt)
    self.free_blocks = list(self.free_blocks)
    return computed


@right(PrefixManager.match, PrefixManager.take_block, PrefixManager.admit, PrefixManager.publish)
class WithTextsForHashes(PrefixManager):
    """Finds blocks by texts, in a book that its own four methods keep."""

    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        self.block_with, self.texts = {}, [None] * num_blocks

    def match(self, token_ids, salt=b""):
        found, size = [], self.block_size
        while (len(found) + 1) * size < len(token_ids):
            text = salt, *token_ids[: (len(found) + 1) * size]
            if text not in self.block_with:
                break
            found.append(self.block_with[text])
        return found

    def take_block(self):
        self.require_free(1)
        block = self.free_blocks.popleft()
        self.ref_counts[block] = 1
        self.block_with.pop(self.texts[block], None)
        self.texts[block] = None
        return block

    def admit(self, request, token_ids, num_drafts=0, salt=b""):
        computed = super().admit(request, token_ids, num_drafts, salt)
        found = self.tables[request][: computed // self.block_size]
        assert all(self.texts[block] for block in found)
        return computed

    def publish(self, request, token_ids, computed):
        size = self.block_size
        for place in range(min(computed, len(token_ids)) // size):
            block = self.tables[request][place]
            text = self.salts[request], *token_ids[: (place + 1) * size]
            if text not in self.block_with:
                self.block_with[text], self.texts[block] = block, text


@wrong(PrefixManager.match)
@wrong(PrefixManager.take_block)
@wrong(PrefixManager.admit)
@wrong(PrefixManager.publish)
class NeverForgets(WithTextsForHashes):
    """A book of its own is no excuse: what has been taken is still found."""

    def take_block(self):
        self.require_free(1)
        block = self.free_blocks.popleft()
        self.ref_counts[block] = 1
        return block


# ------------------------------------------------------------------------------------ a radix tree


@wrong(RadixTree.walk, "walk returns two things, a node and a length; this is a Node.")
def the_node_alone(self, token_ids):
    return RadixTree.walk(self, token_ids)[0]


@wrong(RadixTree.walk, "The node that `walk([])` returned is not in the tree; expected: it is ")
def a_copy_of_the_node(self, token_ids):
    node, length = RadixTree.walk(self, token_ids)
    return Node(node.ids, node.blocks, node.parent, node.children, node.stamp), length


@right(RadixTree.evict)
def from_a_sorted_list(self, needed, unused):
    """What it returns begins with what went last: no order was promised."""
    found = []
    due = sorted(self.leaves(), key=lambda leaf: leaf.stamp)
    while due and needed > len(found):
        leaf = due.pop(0)
        if [block for block in leaf.blocks if not unused(block)]:
            continue
        found = leaf.blocks + found
        leaf.parent.children = {f: c for f, c in leaf.parent.children.items() if c is not leaf}
        if leaf.parent is not self.root and not leaf.parent.children:
            insort(due, leaf.parent, key=lambda leaf: leaf.stamp)
    return found


@wrong(RadixTree.evict, "Take `yield` out of it")
def block_by_block(self, needed, unused):
    yield from RadixTree.evict(self, needed, unused)


@wrong(RadixTree.evict, "`evict(1, …)` returned is [")
def no_more_than_needed(self, needed, unused):
    return RadixTree.evict(self, needed, unused)[:needed]


# ------------------------------------------------------------------------------ the next one served


@right(choose_next)
def as_a_tensor(matched, waited, patience):
    return torch.tensor(choose_next(matched, waited, patience))


@wrong(choose_next, "is 0.0; expected: it is 0.")
def as_a_float(matched, waited, patience):
    return float(choose_next(matched, waited, patience))


@wrong(choose_next, "The place from `choose_next([")
def from_the_end(matched, waited, patience):
    return choose_next(matched, waited, patience) - len(matched)


@wrong(choose_next, "The place from `choose_next([0, ")
def with_patience_from_0_on(matched, waited, patience):
    return choose_next(matched, waited, max(patience, 0))


@wrong(choose_next, "went through; expected: it was refused with a ValueError.")
def of_whatever_comes(matched, waited, patience):
    pairs = list(zip(matched, waited, strict=False))
    return choose_next(*map(list, zip(*pairs, strict=True)), patience) if pairs else 0


# ------------------------------------------------------------- mutants that do the same by right

EQUIVALENT = {
    "prefix_caching.block_hashes": {
        "bytes(32) -> bytes(31)": "what comes before the first block is the same for all texts",
        "bytes(32) -> bytes(33)": "what comes before the first block is the same for all texts",
        "token_ids[end - block_size:end] -> token_ids[:end]": (
            "the hash before holds those tokens already"
        ),
    },
}
