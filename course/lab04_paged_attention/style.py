"""Lab 4 in another style: cases by match, tables built at once, slots and attention by einsum."""

from collections import deque


def counted(manager, blocks, by):
    """The blocks that nobody holds any more, once each of these counts so many more."""
    for block in blocks:
        manager.ref_counts[block] += by
    return [block for block in blocks if manager.ref_counts[block] == 0]


class BlockManager:
    def allocate(self, request_id, num_tokens):
        ### BEGIN SOLUTION
        needed, rest = divmod(num_tokens, self.block_size)
        needed += rest > 0
        if not needed <= len(self.free_blocks):
            raise OutOfBlocks(f"{needed} are too many")
        blocks = [self.free_blocks.popleft() for _ in range(needed)]
        counted(self, blocks, +1)
        self.tables.update({request_id: blocks})
        self.lengths.update({request_id: num_tokens})
        ### END SOLUTION

    def append(self, request_id):
        table, length = self.tables[request_id], self.lengths[request_id]
        ### BEGIN SOLUTION
        last, moved = len(table) - 1, None
        match length == len(table) * self.block_size, self.ref_counts[table[last]] != 1:
            case (True, _):
                table += [self.take_block()]
            case (_, True):
                moved = (table[last], self.take_block())
                counted(self, moved[:1], -1)
                table[last:] = moved[1:]
        self.lengths[request_id] = length + 1
        return moved
        ### END SOLUTION

    def free(self, request_id):
        ### BEGIN SOLUTION
        blocks = self.tables[request_id]
        del self.tables[request_id], self.lengths[request_id]
        self.free_blocks.extend(counted(self, blocks, -1))
        ### END SOLUTION

    def fork(self, parent_id, child_id):
        ### BEGIN SOLUTION
        for book, copied in ((self.tables, list), (self.lengths, int)):
            book[child_id] = copied(book[parent_id])
        counted(self, self.tables[child_id], +1)
        ### END SOLUTION


def slot_mapping(block_tables, positions, block_size):
    ### BEGIN SOLUTION
    numbers = torch.arange(block_tables.size(1))
    entry, place = positions.div(block_size, rounding_mode="floor"), positions.remainder(block_size)
    is_entry = (entry.unsqueeze(-1) == numbers).to(block_tables.dtype)
    return torch.einsum("bse,be->bs", is_entry, block_tables).mul(block_size).add(place)
    ### END SOLUTION


class PagedCache:
    def attend(self, layer, queries, keys, values):
        all_keys, all_values = self.pool[:, layer].flatten(1, 2)  # [slots, heads, head_dim] each
        ### BEGIN SOLUTION
        for memory, new in zip((all_keys, all_values), (keys, values), strict=True):
            for row, slots in enumerate(self.new_slots):
                memory.index_copy_(0, slots, new[row].permute(1, 0, 2))
        found_keys, found_values = (m[self.all_slots] for m in (all_keys, all_values))
        scores = torch.einsum("rhqd,rkhd->rhqk", queries, found_keys) / queries.size(-1) ** 0.5
        unseen = torch.zeros(()).log().to(scores)
        weights = torch.where(self.mask, scores, unseen).softmax(dim=3)
        return torch.einsum("rhqk,rkhd->rhqd", weights, found_values)
        ### END SOLUTION


class PagedBatcher:
    def make_room(self):
        ### BEGIN SOLUTION
        due = deque(self.running)
        while due:
            request = due.popleft()
            if self.manager.can_append(request.number):
                self.manager.append(request.number)
                continue
            newest = self.running[-1]
            self.preempt(newest)
            if newest is not request:
                due.remove(newest)
                due.appendleft(request)
        ### END SOLUTION


# ------------------------------------------------------------------------- pages instead of blocks


def committed_bytes(lengths, config, page_bytes, layout, itemsize=4):
    ### BEGIN SOLUTION
    all_of_it = 2 * config.n_layer * config.n_embd
    width = {"heads": config.head_dim, "layers": config.n_embd, "slices": all_of_it}[layout]
    total = 0
    for length in lengths * (all_of_it // width):
        needed = length * width * itemsize
        total += needed + -needed % page_bytes
    return total
    ### END SOLUTION


class VirtualManager:
    def grow(self, row, num_tokens):
        ### BEGIN SOLUTION
        spare = []
        for other in range(len(self.mapped) - 1, -1, -1):
            if other != row:
                unused = self.mapped[other] - self.pages_for(self.tokens[other])
                spare += [other] * unused
        missing = self.pages_for(num_tokens) - self.mapped[row]
        if missing > self.free_pages + len(spare):
            raise OutOfPages
        while self.free_pages < missing:
            self.unmap_pages(spare.pop(0), 1)
        self.map_pages(row, max(0, missing))
        self.tokens[row] = num_tokens
        ### END SOLUTION
