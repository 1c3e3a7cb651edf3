"""Lab 11, given: an engine that swaps preempted requests, and a store that keeps them in files.

Lab 7's engine recomputes a preempted request from its first token. This one copies its keys and
values to a HostPool and back: they are copied twice, but computed only once.
"""

from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from solutions.engine.engine import Engine, Output
from solutions.engine.limits import Limits, or_four_numbers
from solutions.engine.managers import EngineManager
from solutions.engine.runner import FastCache, new_runner
from solutions.engine.scheduler import Plan, Scheduler
from solutions.engine.sequence import Sequence
from solutions.kv_cache import CachedLMHead
from solutions.paged_attention import OutOfBlocks, PagedCache


class FileStore(MutableMapping[int, Tensor]):
    """A mapping from request id to tensor that keeps each tensor in a file of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, request_id: int) -> Path:
        return self.folder / f"{request_id}.safetensors"

    def __setitem__(self, request_id: int, kv: Tensor) -> None:
        save_file({"kv": kv.contiguous()}, self.path(request_id))

    def __getitem__(self, request_id: int) -> Tensor:
        if not self.path(request_id).exists():
            raise KeyError(request_id)
        return load_file(self.path(request_id))["kv"]

    def __delitem__(self, request_id: int) -> None:
        if not self.path(request_id).exists():
            raise KeyError(request_id)
        self.path(request_id).unlink()

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(int(path.stem) for path in self.folder.glob("*.safetensors")))

    def __len__(self) -> int:
        return len(list(self.folder.glob("*.safetensors")))


class SwappingScheduler(Scheduler):
    """Lab 7's scheduler, except that a preempted request is swapped to the host pool.

    host: a HostPool. cache: the PagedCache that it copies from and to.
    swapped: request number to the tokens it has in the host pool, for each swapped request.
    """

    def __init__(self, cache: Any, token_budget: int, max_running: int, host: Any) -> None:
        super().__init__(cache.manager, token_budget, max_running)
        self.cache, self.host = cache, host
        self.swapped: dict[int, int] = {}

    def preempt(self, sequence: Sequence) -> None:
        """Swap a running request out and put it in front of the waiting queue.

        Its tokens still count as computed.
        """
        self.running.remove(sequence)
        self.swapped[sequence.number] = self.manager.lengths[sequence.number]
        self.host.swap_out(self.cache, sequence.number)
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def admit(self) -> bool:
        """Let the first waiting request run, if there is room for all its tokens."""
        if not self.waiting or self.waiting[0].number not in self.swapped:
            return super().admit()
        newcomer = self.waiting[0]
        if len(self.running) == self.max_running or not self.has_room(newcomer):
            return False
        self.host.swap_in(self.cache, newcomer.number)
        del self.swapped[newcomer.number]
        self.manager.grow(newcomer.number, len(newcomer.text))
        self.running.append(self.waiting.popleft())
        return True

    def has_room(self, newcomer: Sequence) -> bool:
        """Whether enough blocks are free for its swapped tokens and those not computed yet."""
        tokens = max(self.swapped[newcomer.number], len(newcomer.text))
        try:
            self.manager.require_free(self.manager.blocks_for(tokens))
        except OutOfBlocks:
            return False
        return True

    def schedule(self) -> Plan:
        """Plan as in lab 7, without requests that get no tokens.

        A swapped request may come back with drafts that the budget has no room for.
        """
        return {request: count for request, count in super().schedule().items() if count > 0}

    def retire(self, sequence: Sequence) -> None:
        super().retire(sequence)
        self.swapped.pop(sequence.number, None)
        self.host.forget(sequence.number)


@or_four_numbers
def swapping_engine(
    model: CachedLMHead,
    limits: Limits,
    on_output: Callable[[Output], None],
    host: Any,
    **drafts: Any,
) -> Engine:
    """Return lab 7's engine with a scheduler that swaps to `host`, a HostPool.

    drafts: new_drafter and k, as in lab 7.
    """
    manager = EngineManager(limits.num_blocks, limits.block_size)
    weight = model.transformer.wte.weight
    cache = PagedCache(model.config, manager, weight.device, weight.dtype)
    scheduler = SwappingScheduler(cache, limits.token_budget, limits.max_running, host)
    runner = new_runner(model, FastCache(cache))
    return Engine(model.config, scheduler, runner, on_output, **drafts)
