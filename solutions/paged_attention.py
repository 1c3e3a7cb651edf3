"""Lab 4: paged attention. The KV cache in blocks of a shared pool, handed out as texts grow.

A slot that is reserved for the longest possible text stays mostly empty. Here a request holds a
block table: its tokens lie in blocks of `block_size`, anywhere in the pool. Requests that begin
alike can share blocks, and copy one only when they part.

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

Copy = tuple[int, int]  # a block, and the one that its tokens must be copied to


class OutOfBlocks(Exception):
    """The pool has fewer free blocks than are needed. Nothing has been changed."""


class BlockManager:
    """Who holds which blocks of the pool. It moves numbers only; the keys and values lie elsewhere.

    tables: for each request, a list of its blocks in the order of its tokens: the block table.
    lengths: for each request, how many tokens have a place in its blocks.
    ref_counts: for each block, how many tables hold it; 0 where it is free.
    free_blocks: a deque of the free ones. The next one is taken from its left; those that become
    free join on its right.

    ref count   whose the block is    who may write into it
    0           free_blocks'          nobody, until it is taken
    1           one request's         that request
    2 or more   several requests'     nobody: `append` gives the writer a block of its own

    The invariant, after every call and every refusal: a block stands in as many tables as its ref
    count says, and once in free_blocks where that is 0. So free and used blocks make up the pool.
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
        """How many blocks so many tokens need: the last one may be filled in part."""
        return -(-num_tokens // self.block_size)

    def take_block(self) -> int:
        """A free block, for one table. Raises OutOfBlocks where there is none."""
        if not self.free_blocks:
            raise OutOfBlocks(f"All {self.num_blocks} blocks are taken.")
        block = self.free_blocks.popleft()
        self.ref_counts[block] = 1
        return block

    def allocate(self, request_id: int, num_tokens: int) -> None:
        """Give a new request the blocks for its first tokens, as many as needed and no more.

        Its table is a list. Raises OutOfBlocks, and changes nothing, where the pool has too few.
        """
        self.require_new(request_id)
        if num_tokens < 1:
            raise ValueError(f"Room for at least one token must be asked for, not {num_tokens}.")
        ### BEGIN SOLUTION
        needed = self.blocks_for(num_tokens)
        if needed > len(self.free_blocks):
            raise OutOfBlocks(f"{needed} blocks are needed; {len(self.free_blocks)} are free.")
        self.tables[request_id] = [self.take_block() for _ in range(needed)]
        self.lengths[request_id] = num_tokens
        ### END SOLUTION

    def append(self, request_id: int) -> Copy | None:
        """Make room for one more token of a request.

        It goes after the last one. A full last block is followed by a new one. A last block that
        others hold too must not be written: the request gets a block of its own in its place
        (copy-on-write), and (old block, new block) is returned, for the cache to copy. Raises
        OutOfBlocks, and changes nothing, where a block is needed and none is free.
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

        Those that do join free_blocks on its right, in the order of the table.
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
        """Let a new request begin with all the tokens of another, in the same blocks.

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
        """Whether `append` would find the block that it needs, if it needs one."""
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
            raise ValueError(f"Request {request_id} has blocks already. Free it, or take a new id.")


def slot_mapping(
    block_tables: Int[Tensor, "batch blocks"],
    positions: Int[Tensor, "batch seq"],
    block_size: int,
) -> Int[Tensor, "batch seq"]:
    """Where in the pool each position of each row lies, counted in tokens: its slot.

    Slot `block * block_size + i` is place i of a block. Tables and positions are left as they were.
    """
    ### BEGIN SOLUTION
    # gather(1, [batch, seq]) looks up each row's entries in its own table: [batch, seq]
    blocks = block_tables.gather(1, positions // block_size)
    return blocks * block_size + positions % block_size
    ### END SOLUTION


class PagedCache:
    """Keys and values of many requests in one pool of blocks, which a BlockManager hands out.

    `pool` is [2, layers, blocks, block_size, heads, head_dim], keys first. `select` says which
    requests the next forward serves.
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
        """Let the rows of the next forward be these requests, each with its last `q_len` tokens.

        Their blocks must have been allocated; an unknown request is a ValueError. Keeps for
        `attend`: `new_slots` [rows, q_len], where the new tokens go; `all_slots` [rows, k_len],
        where all tokens of a row lie; `mask` [rows, 1, q_len, k_len]. Returns the new tokens'
        positions, as position ids for the model.
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
        """Write the new tokens to their slots, gather every row's tokens from theirs, attend.

        Writes in place: the pool stays the same memory.
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
        """Give a request's blocks back; what lies in a block that nobody holds is never read."""
        self.manager.free(request_id)

    def copy_block(self, source: int, target: int) -> None:
        self.pool[:, :, target] = self.pool[:, :, source]


class PagedBatcher(ContinuousBatcher):
    """Continuous batching over a pool of blocks. Here stands what paging changes.

    A request holds the blocks of the tokens it has, not of those it may get. So the pool can run
    empty in the middle of a text; then the newest request gives its blocks back and is computed
    again later. Between two steps `running` has no gaps: who was admitted last is the last one.
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
        # Not super(): ContinuousBatcher would reserve slots.
        Batcher.__init__(self, model, kv_cache, [], eos_token_id)
        self.max_running, self.preemptions = max_running, 0

    def require_room(self, end: int) -> None:
        """Refuse a text that would not fit into the pool if it had it to itself."""
        needed = self.manager.blocks_for(end - 1)  # the last token is never stored
        if needed > self.manager.num_blocks:
            raise ValueError(
                f"This request may grow to {end} tokens, which takes {needed} blocks; the pool "
                f"has {self.manager.num_blocks}. Ask for fewer tokens, or give the pool more "
                "blocks."
            )

    def name_of(self, slot: int) -> int:
        """The request's number: by it the manager knows its blocks."""
        return self.running[slot].number

    def make_room(self) -> None:
        """A place for the next token of every running request, the oldest first.

        Where the pool is empty, the newest running request, the last in `running`, is preempted,
        and again, until there is a block, or until the one that needs it has itself been preempted,
        even if it is the only one that runs.
        """
        ### BEGIN SOLUTION
        for request in list(self.running):
            while request in self.running and not self.manager.can_append(request.number):
                self.preempt(self.running[-1])
            if request in self.running:
                self.manager.append(request.number)
        ### END SOLUTION

    def preempt(self, request: Request) -> None:
        """Take a running request's blocks away; it waits in front of all others, with its tokens.

        Once admitted again, its keys and values are computed anew, in one prefill (recompute).
        """
        self.running.remove(request)
        self.manager.free(request.number)
        request.num_computed_tokens = 0
        self.waiting.appendleft(request)
        self.preemptions += 1

    def admit(self) -> list[int]:
        """Allocate blocks to those who have waited longest, while there are enough.

        Returns their places in `running`, at its end.
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
        """One iteration: room for those who run, then all as in lab 3; those who stay close up."""
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
    """Continuous batching over paged blocks; prompt and new tokens of each request, in order."""
    require_requests(model.config, prompts, max_new_tokens, max_running)
    batcher = PagedBatcher(model, num_blocks, block_size, max_running, eos_token_id)
    both = zip(prompts, max_new_tokens, strict=True)
    numbers = [batcher.submit(prompt, limit) for prompt, limit in both]
    batcher.run()
    return [batcher.outputs[number] for number in numbers]


# ---------------------------------------------------------------------------------- sharing


class Family:
    """Continuations of one prompt that share the blocks of whatever they have in common.

    logits: [rows, vocab], those that follow each row's last token. copies: blocks copied on write.
    peak_blocks: the most blocks that were in use.
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
        """Let row i continue what row `parents[i]` was: fork first, then forget the old ones."""
        first = max(self.members) + 1
        children = list(range(first, first + len(parents)))
        for child, parent in zip(children, parents, strict=True):
            self.manager.fork(self.members[parent], child)
        for member in self.members:
            self.manager.free(member)
        self.members = children

    def append(self, tokens: Sequence[int]) -> None:
        """Give each row its next token. Raises OutOfBlocks where the pool is too small for all."""
        for member in self.members:
            copy = self.manager.append(member)
            if copy is not None:
                self.kv_cache.copy_block(*copy)
                self.copies += 1
        self.forward([[token] for token in tokens])

    @torch.no_grad()
    def forward(self, new_ids: list[list[int]]) -> None:
        self.peak_blocks = max(self.peak_blocks, self.manager.used_blocks)
        input_ids = torch.tensor(new_ids, device=self.kv_cache.pool.device)
        position_ids = self.kv_cache.select(self.members, input_ids.shape[1])
        self.logits = self.model(input_ids, position_ids, self.kv_cache)[:, -1]


def branches(
    family: Family, prompt: Sequence[int], max_new_tokens: int, count: int
) -> list[list[int]]:
    """Continue a prompt once for each of the `count` likeliest next tokens, greedily from there.

    Prompt and new tokens of each, the likeliest beginning first.
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
