"""Lab 4: paged attention. The KV cache in blocks of a shared pool, handed out as texts grow.

A slot that is reserved for the longest possible text stays mostly empty. Here a request has a block
table instead: its tokens are in blocks of `block_size`, anywhere in the pool. Requests with a
common beginning can share its blocks, and copy one only when their texts diverge.

Source: Kwon et al., "Efficient memory management for large language model serving with
PagedAttention", SOSP 2023.
"""

from collections import deque
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gpt import GPTConfig
from solutions.batching import (
    Batcher,
    ContinuousBatcher,
    Request,
    Selected,
    require_requests,
    require_selected,
)
from solutions.kv_cache import CachedLMHead, causal_mask

Copy = tuple[int, int]  # a block, and the block that its tokens must be copied to


class OutOfBlocks(Exception):
    """Raised when the pool has fewer free blocks than are needed. Nothing has been changed."""


class BlockManager:
    """Records which request holds which blocks of the pool. It handles numbers, no keys or values.

    tables: for each request, a list of its blocks in the order of its tokens: the block table.
    lengths: for each request, how many tokens have a place in its blocks.
    ref_counts: for each block, how many tables hold it; 0 if it is free.
    free_blocks: a deque of the free blocks. The next one is taken from its left; blocks that become
    free join on its right.

    ref count   held by               may be written by
    0           free_blocks           no request, until it is taken
    1           one request           that request
    2 or more   several requests      no request: `append` gives the writer a block of its own

    Invariant, after every call and every refusal: a block is in as many tables as its ref count
    says, and in free_blocks exactly once if that is 0. So free and used blocks make up the pool.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(
                "A pool needs at least one block, and a block room for one token; "
                f"num_blocks is {num_blocks} and block_size {block_size}."
            )
        self.num_blocks, self.block_size = num_blocks, block_size
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}
        self.ref_counts = [0] * num_blocks
        self.free_blocks = deque(range(num_blocks))

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks `num_tokens` tokens need; the last one may be partly filled."""
        return -(-num_tokens // self.block_size)

    def take_block(self) -> int:
        """Take a free block for one table; set its ref count to 1. Raises OutOfBlocks if none is
        free."""
        if not self.free_blocks:
            raise OutOfBlocks(f"All {self.num_blocks} blocks are taken.")
        block = self.free_blocks.popleft()
        self.ref_counts[block] = 1
        return block

    def allocate(self, request_id: int, num_tokens: int) -> None:
        """Give a new request the blocks for its first tokens, as many as needed and no more.

        Its table is a list. Raises OutOfBlocks, and changes nothing, if the pool has too few.
        """
        self.require_new(request_id)
        if num_tokens < 1:
            raise ValueError(f"num_tokens must be at least 1, not {num_tokens}.")
        ### BEGIN SOLUTION
        needed = self.blocks_for(num_tokens)
        if needed > len(self.free_blocks):
            raise OutOfBlocks(f"{needed} blocks are needed; {len(self.free_blocks)} are free.")
        self.tables[request_id] = [self.take_block() for _ in range(needed)]
        self.lengths[request_id] = num_tokens
        ### END SOLUTION

    def append(self, request_id: int) -> Copy | None:
        """Make room for one more token of a request, after its last one.

        If the last block is full, add a new one. If other requests hold the last block too, it must
        not be written: replace it in this table by a new block (copy-on-write) and return (old
        block, new block), for the cache to copy. Otherwise return None. Raises OutOfBlocks, and
        changes nothing, if a block is needed and none is free.
        """
        self.require_known(request_id)
        table, length = self.tables[request_id], self.lengths[request_id]
        ### BEGIN SOLUTION
        copy = None
        if length % self.block_size == 0:
            table.append(self.take_block())
        elif self.ref_counts[table[-1]] > 1:
            copy = table[-1], self.take_block()
            self.ref_counts[table[-1]] -= 1
            table[-1] = copy[1]
        self.lengths[request_id] += 1
        return copy
        ### END SOLUTION

    def free(self, request_id: int) -> None:
        """Forget a request. A block returns to the pool when no other table holds it.

        These blocks join free_blocks on its right, in the order of the table.
        """
        self.require_known(request_id)
        ### BEGIN SOLUTION
        for block in self.tables.pop(request_id):
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self.free_blocks.append(block)
        del self.lengths[request_id]
        ### END SOLUTION

    def fork(self, parent_id: int, child_id: int) -> None:
        """Add a request that begins with all the tokens of another, in the same blocks.

        Its table is a list of its own. No block is taken.
        """
        self.require_known(parent_id)
        self.require_new(child_id)
        ### BEGIN SOLUTION
        self.tables[child_id] = list(self.tables[parent_id])
        self.lengths[child_id] = self.lengths[parent_id]
        for block in self.tables[child_id]:
            self.ref_counts[block] += 1
        ### END SOLUTION

    def can_append(self, request_id: int) -> bool:
        """Return whether `append` would find the block that it needs, if it needs one."""
        self.require_known(request_id)
        block_is_full = self.lengths[request_id] % self.block_size == 0
        block_is_shared = self.ref_counts[self.tables[request_id][-1]] > 1
        return bool(self.free_blocks) or not (block_is_full or block_is_shared)

    @property
    def used_blocks(self) -> int:
        return self.num_blocks - len(self.free_blocks)

    def require_known(self, request_id: int) -> None:
        if request_id not in self.tables:
            raise ValueError(
                f"There is no request {request_id} in this pool. It holds "
                f"{', '.join(map(str, self.tables)) or 'none'}."
            )

    def require_new(self, request_id: int) -> None:
        if request_id in self.tables:
            raise ValueError(f"Request {request_id} has blocks already. Free it, or use a new id.")


def slot_mapping(
    block_tables: Int[Tensor, "batch blocks"],
    positions: Int[Tensor, "batch seq"],
    block_size: int,
) -> Int[Tensor, "batch seq"]:
    """Return the slot of each position of each row: its place in the pool, counted in tokens.

    Slot `block * block_size + i` is place i of a block. Don't change tables or positions.
    """
    ### BEGIN SOLUTION
    # gather(1, [batch, seq]) looks up each row's entries in its own table: [batch, seq]
    blocks = block_tables.gather(1, positions // block_size)
    return blocks * block_size + positions % block_size
    ### END SOLUTION


class PagedCache:
    """Keys and values of many requests in one pool of blocks, which a BlockManager hands out.

    `pool` is [2, layers, blocks, block_size, heads, head_dim], keys first. `select` says which
    requests the next forward pass serves.
    """

    def __init__(
        self,
        config: GPTConfig,
        manager: BlockManager,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        blocks = manager.num_blocks, manager.block_size
        shape = (2, config.n_layer, *blocks, config.n_head, config.head_dim)
        self.pool = torch.zeros(shape, device=device, dtype=dtype)
        self.manager = manager
        self.selected: Selected | None = None

    def select(self, request_ids: Sequence[int], q_len: int) -> Int[Tensor, "rows q_len"]:
        """Prepare the next forward pass: its rows are the last `q_len` tokens of these requests.

        Their blocks must have been allocated. Set for `attend`: `new_slots` [rows, q_len], where
        the new tokens go; `all_slots` [rows, k_len], where all tokens of a row are; `mask` [rows,
        1, q_len, k_len]. Return the positions of the new tokens, as position ids for the model.
        Raises ValueError for an unknown request.
        """
        for request_id in request_ids:
            self.manager.require_known(request_id)
        self.selected = len(request_ids), q_len, 0
        device = self.pool.device
        tables = [torch.tensor(self.manager.tables[r], device=device) for r in request_ids]
        block_tables = pad_sequence(tables, batch_first=True)
        lengths = torch.tensor([self.manager.lengths[r] for r in request_ids], device=device)
        positions = lengths[:, None] - q_len + torch.arange(q_len, device=device)
        all_positions = torch.arange(int(lengths.max()), device=device).expand(len(tables), -1)
        self.new_slots = slot_mapping(block_tables, positions, self.manager.block_size)
        self.all_slots = slot_mapping(block_tables, all_positions, self.manager.block_size)
        self.mask = causal_mask(positions, all_positions)
        return positions

    def attend(
        self,
        layer: int,
        queries: Float[Tensor, "rows heads q_len head_dim"],
        keys: Float[Tensor, "rows heads q_len head_dim"],
        values: Float[Tensor, "rows heads q_len head_dim"],
    ) -> Float[Tensor, "rows heads q_len head_dim"]:
        """Write the new keys and values to their slots, gather those of each row, and attend.

        Write in place: the pool stays the same memory.
        """
        self.selected = require_selected(self.selected, layer, queries)
        all_keys, all_values = self.pool[:, layer].flatten(1, 2)  # [slots, heads, head_dim] each
        ### BEGIN SOLUTION
        # slots [rows, q_len] index [rows, q_len, heads, head_dim]
        all_keys[self.new_slots] = keys.transpose(1, 2)
        all_values[self.new_slots] = values.transpose(1, 2)
        # gathered [rows, k_len, heads, head_dim], transposed [rows, heads, k_len, head_dim]
        return F.scaled_dot_product_attention(
            queries,
            all_keys[self.all_slots].transpose(1, 2),
            all_values[self.all_slots].transpose(1, 2),
            attn_mask=self.mask,
        )
        ### END SOLUTION

    def free(self, request_id: int) -> None:
        """Give a request's blocks back. A block that no request holds is never read."""
        self.manager.free(request_id)

    def copy_block(self, source: int, target: int) -> None:
        """Copy the keys and values of one block into another, in all layers."""
        self.pool[:, :, target] = self.pool[:, :, source]


class PagedBatcher(ContinuousBatcher):
    """Continuous batching over a pool of blocks. This class holds only what paging changes.

    A request holds blocks for the tokens it has, not for those it may get. So the pool can run
    empty in the middle of a text; then the newest request gives its blocks back and is recomputed
    later. Between two steps `running` has no gaps: the request admitted last is at its end.
    """

    running: list[Request]  # type: ignore[assignment]  # no gaps

    def __init__(
        self,
        model: CachedLMHead,
        num_blocks: int,
        block_size: int,
        max_running: int,
        eos_token_id: int | None = None,
    ) -> None:
        if max_running < 1:
            raise ValueError(f"At least one request must run at a time, not {max_running}.")
        weight = model.transformer.wte.weight
        self.manager = BlockManager(num_blocks, block_size)
        kv_cache = PagedCache(model.config, self.manager, weight.device, weight.dtype)
        # Not super().__init__: ContinuousBatcher would reserve slots.
        Batcher.__init__(self, model, kv_cache, [], eos_token_id)
        self.max_running, self.preemptions = max_running, 0

    def require_room(self, end: int) -> None:
        """Raise ValueError for a text that doesn't fit even if it has the pool to itself."""
        needed = self.manager.blocks_for(end - 1)  # the last token is never stored
        if needed > self.manager.num_blocks:
            raise ValueError(
                f"This request may grow to {end} tokens, which takes {needed} blocks; the pool "
                f"has {self.manager.num_blocks}. Ask for fewer tokens, or give the pool more "
                "blocks."
            )

    def name_of(self, slot: int) -> int:
        """Return the request's number, by which the manager knows its blocks."""
        return self.running[slot].number

    def make_room(self) -> None:
        """Make room for the next token of every running request, the oldest first.

        If a request needs a block and none is free, preempt the newest running request, the last in
        `running`. Repeat until there is a block, or until the request that needs it has been
        preempted itself, even if it is the only one running.
        """
        ### BEGIN SOLUTION
        for request in list(self.running):
            while request in self.running and not self.manager.can_append(request.number):
                self.preempt(self.running[-1])
            if request in self.running:
                self.manager.append(request.number)
        ### END SOLUTION

    def preempt(self, request: Request) -> None:
        """Free a running request's blocks; move it, with its tokens, to the front of `waiting`.

        When it is admitted again, one prefill recomputes its keys and values.
        """
        self.running.remove(request)
        self.manager.free(request.number)
        request.num_computed_tokens = 0
        self.waiting.appendleft(request)
        self.preemptions += 1

    def admit(self) -> list[int]:
        """Admit the requests that have waited longest, as long as there are enough blocks.

        Return their places in `running`, which are at its end.
        """
        admitted = []
        while self.waiting and len(self.running) < self.max_running:
            request = self.waiting[0]
            if self.manager.blocks_for(len(request.ids)) > len(self.manager.free_blocks):
                break
            self.manager.allocate(request.number, len(request.ids))
            admitted.append(len(self.running))
            self.running.append(self.waiting.popleft())
        return admitted

    def step(self) -> None:
        """Run one iteration: make room for the running requests, then step as in lab 3; at the end,
        remove the gaps that ended requests have left in `running`."""
        self.make_room()
        super().step()
        self.running = [request for request in self.running if request]


def generate_paged(
    model: CachedLMHead,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: Sequence[int],
    num_blocks: int,
    block_size: int,
    max_running: int,
    eos_token_id: int | None = None,
) -> list[list[int]]:
    """Serve requests over a paged cache; return prompt and new tokens of each, in order."""
    require_requests(model.config, prompts, max_new_tokens, max_running)
    batcher = PagedBatcher(model, num_blocks, block_size, max_running, eos_token_id)
    both = zip(prompts, max_new_tokens, strict=True)
    numbers = [batcher.submit(prompt, limit) for prompt, limit in both]
    batcher.run()
    return [batcher.outputs[number] for number in numbers]


# ---------------------------------------------------------------------------------- sharing


class Family:
    """Continuations of one prompt that share the blocks of the tokens they have in common.

    logits: [rows, vocab], for the token after each row's last one. copies: how many blocks were
    copied on write. peak_blocks: the highest number of blocks in use so far.
    """

    def __init__(
        self, model: CachedLMHead, prompt: Sequence[int], num_blocks: int, block_size: int
    ) -> None:
        weight = model.transformer.wte.weight
        self.model = model
        self.manager = BlockManager(num_blocks, block_size)
        self.kv_cache = PagedCache(model.config, self.manager, weight.device, weight.dtype)
        self.members = [0]  # request ids, in the order of the rows
        self.copies = self.peak_blocks = 0
        self.manager.allocate(0, len(prompt))
        self.forward([list(prompt)])

    def become(self, parents: Sequence[int]) -> None:
        """Let row i continue row `parents[i]`: fork all of them first, then free the old rows."""
        first = max(self.members) + 1
        children = list(range(first, first + len(parents)))
        for child, parent in zip(children, parents, strict=True):
            self.manager.fork(self.members[parent], child)
        for member in self.members:
            self.manager.free(member)
        self.members = children

    def append(self, tokens: Sequence[int]) -> None:
        """Give each row its next token. Raises OutOfBlocks if the pool is too small for all."""
        for member in self.members:
            copy = self.manager.append(member)
            if copy is not None:
                self.kv_cache.copy_block(*copy)
                self.copies += 1
        self.forward([[token] for token in tokens])

    @torch.no_grad()
    def forward(self, new_ids: list[list[int]]) -> None:
        """Run a forward pass for the new tokens of each row, [rows, q_len]; set `logits`."""
        self.peak_blocks = max(self.peak_blocks, self.manager.used_blocks)
        input_ids = torch.tensor(new_ids, device=self.kv_cache.pool.device)
        position_ids = self.kv_cache.select(self.members, input_ids.shape[1])
        self.logits = self.model(input_ids, position_ids, self.kv_cache)[:, -1]


def branches(
    family: Family, prompt: Sequence[int], max_new_tokens: int, count: int
) -> list[list[int]]:
    """Continue a prompt from each of the `count` likeliest next tokens, greedily from there.

    Return prompt and new tokens of each continuation, the likeliest first token first.
    """
    tokens = family.logits[0].topk(count).indices.tolist()
    texts = [[*prompt, token] for token in tokens]
    family.become([0] * count)
    for _ in range(max_new_tokens - 1):
        family.append(tokens)
        tokens = family.logits.argmax(dim=-1).tolist()
        for text, token in zip(texts, tokens, strict=True):
            text.append(token)
    return texts


# ------------------------------------------------------------------------- pages instead of blocks

LAYOUTS = "heads", "layers", "slices"


def committed_bytes(
    lengths: Sequence[int], config: GPTConfig, page_bytes: int, layout: str, itemsize: int = 4
) -> int:
    """Return the bytes of all pages that hold a key or a value of these requests.

    A request has one or more ranges of reserved memory. Each begins on a page, and its tokens
    follow one another: a range for the keys and one for the values of every head of every layer
    ("heads"), of all heads of every layer ("layers"), or a single range for everything ("slices").
    """
    if layout not in LAYOUTS:
        raise ValueError(f"The layout is one of {', '.join(LAYOUTS)}, not {layout!r}.")
    layers, heads = config.n_layer, config.n_head
    ### BEGIN SOLUTION
    ranges = {"heads": 2 * layers * heads, "layers": 2 * layers, "slices": 1}[layout]
    token_bytes = 2 * layers * heads * config.head_dim * itemsize // ranges
    pages = sum(-(-length * token_bytes // page_bytes) for length in lengths)
    return ranges * pages * page_bytes
    ### END SOLUTION


class OutOfPages(Exception):
    """Raised when fewer pages can be had than are needed. Nothing has been changed."""


class VirtualManager:
    """Records how many pages are mapped to each row of a reserved memory: no block tables.

    A row has addresses for `max_tokens` tokens, and pages of `page_tokens` from its start. mapped:
    the pages of each row. tokens: of the request in each row, 0 if there is none. free_pages: how
    many no row has. maps, unmaps: how often a page has been mapped and unmapped.

    Source: Prabhu et al., "vAttention", 2024, section 6 (pages stay mapped when a request ends).
    """

    def __init__(self, rows: int, max_tokens: int, page_tokens: int, num_pages: int) -> None:
        if min(rows, max_tokens, page_tokens, num_pages) < 1:
            raise ValueError("There must be at least one row, one token, and one page.")
        self.max_tokens, self.page_tokens, self.free_pages = max_tokens, page_tokens, num_pages
        self.mapped, self.tokens = [0] * rows, [0] * rows
        self.maps = self.unmaps = 0

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_tokens)

    def map_pages(self, row: int, pages: int) -> None:
        """Map this many free pages to the end of a row."""
        self.mapped[row] += pages
        self.free_pages -= pages
        self.maps += pages

    def unmap_pages(self, row: int, pages: int) -> None:
        """Make this many pages at the end of a row free."""
        self.mapped[row] -= pages
        self.free_pages += pages
        self.unmaps += pages

    def admit(self, num_tokens: int) -> int:
        """Give a new request the first row without one; return the row. May raise OutOfPages."""
        if 0 not in self.tokens:
            raise OutOfPages("Every row has a request.")
        row = self.tokens.index(0)
        self.grow(row, num_tokens)
        return row

    def grow(self, row: int, num_tokens: int) -> None:
        """Make room for `num_tokens` tokens in a row, all in all.

        Use the pages that the row has already, then free ones. If these are too few, unmap spare
        pages of other rows: those beyond what their tokens need. Begin with the last row, and unmap
        no more than are missing. Raises OutOfPages, and changes nothing, if that isn't enough.
        """
        if not 1 <= num_tokens <= self.max_tokens:
            raise ValueError(f"A row holds 1 to {self.max_tokens} tokens, not {num_tokens}.")
        ### BEGIN SOLUTION
        needed = max(self.pages_for(num_tokens) - self.mapped[row], 0)
        both = zip(self.mapped, self.tokens, strict=True)
        spare = [pages - self.pages_for(tokens) for pages, tokens in both]
        spare[row] = 0
        if needed > self.free_pages + sum(spare):
            raise OutOfPages(f"Row {row} needs {needed} more pages.")
        for other in reversed(range(len(spare))):
            missing = max(needed - self.free_pages, 0)
            self.unmap_pages(other, min(spare[other], missing))
        self.map_pages(row, needed)
        self.tokens[row] = num_tokens
        ### END SOLUTION

    def end(self, row: int) -> None:
        """Forget a row's request. Its pages stay mapped: they are spare now."""
        self.tokens[row] = 0
