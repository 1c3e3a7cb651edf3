"""Lab 23, given: lab 7's engine for requests of a base model and of many adapters.

The scheduler says who may run together, and holds the slots of those who do. The runner knows the
slot of each row of a step, and each of the model's products adds what the row's adapter adds.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxtyping import Float, Int
from torch import Tensor

from solutions import adapters as reference
from solutions.adapted.adapter import Adapter, as_numbers_of
from solutions.adapters import AdapterCache, LowRank
from solutions.engine.engine import Engine
from solutions.engine.runner import Chunk, Runner
from solutions.engine.scheduler import Scheduler
from solutions.engine.sequence import Sequence as Request
from solutions.gguf.names import LINEAR

PATIENCE = 16  # how often others may be admitted before a request

if TYPE_CHECKING:
    Base = Scheduler
else:
    Base = object

Product = Callable[[Float[Tensor, "rows n_in"]], Float[Tensor, "rows n_out"]]


class AdapterPool:
    """The adapters in all slots, stacked for each matrix.

    both: A and B of all slots, by matrix. numbers: the slot of each row of the next step.
    """

    def __init__(self, size: int, like: Tensor, lab: Any) -> None:
        self.held: list[Mapping[str, LowRank]] = [{}] * size
        self.both: dict[str, tuple[Tensor, Tensor]] = {}
        self.numbers: Int[Tensor, " rows"] | None = None
        self.like, self.lab = like, lab

    def load(self, adapter: Any, slot: int) -> None:
        """Put an adapter into a slot, in the dtype and on the device of the model."""
        own = {n: as_numbers_of(self.like, added) for n, added in adapter.matrices.items()}
        names = own.keys() | self.held[slot - 1].keys()
        self.held[slot - 1] = own
        for name in names:
            self.stack(name)

    def stack(self, name: str) -> None:
        there = [held[name] for held in self.held if name in held]
        if not there:
            del self.both[name]
            return
        a, b, _ = there[0]
        nothing = LowRank(a.new_zeros(len(a), 1), b.new_zeros(1, b.shape[1]), 1.0)
        self.both[name] = self.lab.stacked([held.get(name, nothing) for held in self.held])

    def added(self, name: str, product: Product) -> Product:
        """Return a product of the model that also adds what each row's adapter adds."""

        def with_adapters(hidden: Float[Tensor, "rows n_in"]) -> Float[Tensor, "rows n_out"]:
            out = product(hidden)
            if self.numbers is not None and name in self.both:
                out += self.lab.in_segments(hidden, *self.both[name], self.numbers)
            return out

        return with_adapters


class AdapterHooks(Base):
    """What a scheduler does for adapters, to mix into any scheduler class, a student's too.

    It admits requests so that no more adapters run than there are slots, and holds their slots.
    slots: the slot of each running request, 0 for none. passed: how often others were admitted
    before each waiting request.
    """

    def serve_adapters(self, cache: AdapterCache, lab: Any) -> None:
        self.cache, self.lab = cache, lab
        self.slots: dict[int, int] = {}
        self.passed = Counter[int]()

    def admit(self) -> bool:
        numbers: dict[Adapter | None, int] = {None: 0}
        waiting, running = (
            [numbers.setdefault(request.adapter, len(numbers)) for request in requests]
            for requests in (self.waiting, self.running)
        )
        passed = [self.passed[request.number] for request in self.waiting]
        place = self.lab.next_request(waiting, running, passed, self.cache.size, PATIENCE)
        if place is None:
            return False
        self.waiting.rotate(-place)
        is_admitted = super().admit()
        self.waiting.rotate(place)  # the others keep their order
        if is_admitted:
            newcomer = self.running[-1]
            held = 0 if newcomer.adapter is None else self.cache.take(newcomer.adapter)
            self.slots[newcomer.number] = held
            self.passed = Counter({r.number: self.passed[r.number] + 1 for r in self.waiting})
        return is_admitted

    def preempt(self, sequence: Request) -> None:
        super().preempt(sequence)
        self.give_back(sequence)

    def retire(self, sequence: Request) -> None:
        super().retire(sequence)
        self.give_back(sequence)

    def give_back(self, sequence: Request) -> None:
        """Release the slot of a request that runs no more; one that has only waited holds none."""
        if self.slots.pop(sequence.number, 0):
            self.cache.release(sequence.adapter)


class AdapterRunner(Runner):
    """A runner that tells the pool which slot each row has. slots: by request."""

    def __init__(self, usual: Runner, pool: AdapterPool, slots: Mapping[int, int]) -> None:
        super().__init__(usual.transformer, usual.lm_head, usual.kv_cache, usual.watcher)
        self.pool, self.slots = pool, slots

    def forward(self, batch: Sequence[Chunk]) -> dict[int, Float[Tensor, "wanted vocab"]]:
        if batch:
            numbers = self.pool.lab.adapter_rows(batch, self.slots)
            self.pool.numbers = numbers if numbers.any() else None
        return super().forward(batch)


def add_adapters(engine: Engine, size: int, lab: Any = reference) -> None:
    """Let an engine that has no requests yet serve adapters, at most `size` in a step.

    `submit` below takes a request's adapter. lab: where the lab's parts come from, which may be a
    notebook.
    """
    runner, usual = engine.runner, engine.scheduler
    transformer: Any = runner.transformer
    pool = AdapterPool(size, transformer.last_norm[1], lab)
    kind = type("AdapterScheduler", (AdapterHooks, type(usual)), {})
    scheduler: Any = kind(usual.manager, usual.token_budget, usual.max_running)
    scheduler.serve_adapters(lab.AdapterCache(size, pool.load), lab)
    engine.scheduler = scheduler
    for number, (ln_1, c_attn, attn_proj, ln_2, c_fc, mlp_proj) in enumerate(transformer.layers):
        products = [
            pool.added(f"h.{number}.{name}", product)
            for name, product in zip(LINEAR, (c_attn, attn_proj, c_fc, mlp_proj), strict=True)
        ]
        transformer.layers[number] = ln_1, products[0], products[1], ln_2, *products[2:]
    engine.runner = AdapterRunner(runner, pool, scheduler.slots)


def submit(
    engine: Engine, *request: Any, adapter: Adapter | None = None, salt: bytes = b"", **others: Any
) -> int:
    """Add a request as `engine.submit` does; only its adapter's requests may share its blocks."""
    runner: Any = engine.runner
    name, version = (None, 0) if adapter is None else (adapter.name, adapter.version)
    others |= {"adapter": adapter, "salt": runner.pool.lab.salted(salt, name, version)}
    return engine.submit(*request, **others)
