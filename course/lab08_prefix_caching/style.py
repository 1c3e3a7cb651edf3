"""Lab 8 in another style: a running BLAKE2b, blocks counted by who joins, leaves in a heap."""

from collections import Counter
from hashlib import blake2b
from heapq import heappop, heappush
from itertools import islice, takewhile

# ----------------------------------------------------------------------------- blocks by their hash


def written(number):
    """A token in four bytes."""
    return number.to_bytes(4, "big")


def newly_held(manager, blocks):
    """The blocks among these that no request holds yet."""
    return {block for block in blocks if not manager.ref_counts[block]}


def block_hashes(token_ids, block_size, salt=b""):
    ### BEGIN SOLUTION
    running = blake2b(len(salt).to_bytes(4, "big") + salt, digest_size=32)
    tokens, found = iter(token_ids), []
    while len(block := list(islice(tokens, block_size))) == block_size:
        for token in block:
            running.update(written(token))
        found += [running.digest()]
    return found
    ### END SOLUTION


class PrefixManager:
    def match(self, token_ids, salt=b""):
        ### BEGIN SOLUTION
        keys = block_hashes(token_ids, self.block_size, salt)
        most = max(0, len(token_ids) - 1) // self.block_size
        places = (self.cached.get(key) for key in keys[:most])
        return list(takewhile(lambda place: place is not None, places))
        ### END SOLUTION

    def take_block(self):
        ### BEGIN SOLUTION
        self.require_free(1)
        oldest = self.free_blocks.popleft()
        self.ref_counts[oldest] += 1
        self.cached.pop(self.block_hash.pop(oldest, None), None)
        return oldest
        ### END SOLUTION

    def admit(self, request, token_ids, num_drafts=0, salt=b""):
        known = self.without_drafts(token_ids, num_drafts)
        ### BEGIN SOLUTION
        table = self.match(known, salt)
        shared, joins = len(table), newly_held(self, table)
        whole = -(-len(token_ids) // self.block_size)
        self.require_free(whole - shared + len(joins))
        for block, times in Counter(table).items():
            self.ref_counts[block] += times
        for block in joins:
            self.free_blocks.remove(block)
        while len(table) < whole:
            table.append(self.take_block())
        self.tables[request] = table
        self.lengths[request] = len(token_ids)
        self.salts[request] = salt
        self.queried, self.hits = self.queried + len(known), self.hits + shared * self.block_size
        return shared * self.block_size
        ### END SOLUTION

    def publish(self, request, token_ids, computed):
        ### BEGIN SOLUTION
        end = min(computed, len(token_ids)) // self.block_size * self.block_size
        keys = block_hashes(token_ids[:end], self.block_size, self.salts[request])
        for place in reversed(range(len(keys))):
            block = self.tables[request][place]
            if self.cached.setdefault(keys[place], block) == block:
                self.block_hash[block] = keys[place]
        ### END SOLUTION


# ------------------------------------------------------------------------------------ a radix tree


def cut(node, at):
    """Put a node above this one, with the first part of its edge; return it."""
    upper = Node(parent=node.parent, children={node.ids[at]: node})
    for name in ("ids", "blocks"):
        whole = getattr(node, name)
        setattr(upper, name, whole[:at])
        setattr(node, name, whole[at:])
    node.parent.children[upper.ids[0]] = upper
    node.parent = upper
    return upper


def descend(node, token_ids, length, stamp):
    node.stamp = stamp
    if length == len(token_ids) or (child := node.children.get(token_ids[length])) is None:
        return node, length
    end = 1
    while token_ids[length + end : length + end + 1] == child.ids[end : end + 1] != []:
        end += 1
    return descend(cut(child, end) if child.ids[end:] else child, token_ids, length + end, stamp)


class RadixTree:
    def walk(self, token_ids):
        ### BEGIN SOLUTION
        return descend(self.root, list(token_ids), 0, self.walks)
        ### END SOLUTION

    def evict(self, needed, unused):
        ### BEGIN SOLUTION
        leaves, gone = [], []
        for leaf in self.leaves():
            heappush(leaves, (leaf.stamp, leaf.ids[0], leaf))
        while leaves and sum(len(leaf.blocks) for leaf in gone) < needed:
            *_, leaf = heappop(leaves)
            if False in (bool(unused(block)) for block in leaf.blocks):
                continue
            gone.append(leaf)
            parent = leaf.parent
            del parent.children[leaf.ids[0]]
            if parent.parent is not None and len(parent.children) == 0:
                heappush(leaves, (parent.stamp, parent.ids[0], parent))
        return [block for leaf in gone for block in leaf.blocks]
        ### END SOLUTION


# ---------------------------------------------------------------------- which request is next


def choose_next(matched, waited, patience):
    ### BEGIN SOLUTION
    def rank(place):
        is_late = waited[place] > patience
        return not is_late, -waited[place] if is_late else -matched[place], place

    return min(range(len(matched)), key=rank)
    ### END SOLUTION


# -------------------------------------------------------------------- what a kept prefix costs


class PromptCache:
    def bill(self, now, ids, marks):
        ### BEGIN SOLUTION
        self.ends = {prefix: end for prefix, end in self.ends.items() if end > now}
        bill = [0, 0, len(ids)]
        for mark in marks:
            if mark < self.least:
                continue
            prefix = (*ids[:mark],)
            bill[0] = mark if prefix in self.ends else bill[0]
            bill[1:] = [mark - bill[0], len(ids) - mark]
            self.ends[prefix] = now + self.lifetime
        return tuple(bill)
        ### END SOLUTION
