"""Lab 23: adapters. One engine on one set of weights serves many fine-tuned models.

An adapter leaves a matrix W as it is and adds a product of two thin ones: x W + scale * (x A) B.
With rank 8 that is a twenty-fifth of the numbers, so the weights are kept once and each customer's
adapter beside them. Requests with different adapters share a step: the large products are made for
all rows at once, and only the thin ones are made for each adapter's own rows.

Sources: Hu et al., "LoRA", ICLR 2022; Chen et al., "Punica: multi-tenant LoRA serving", MLSys 2024
(rows of many adapters in one batch); Sheng et al., "S-LoRA", MLSys 2024 (a pool of adapters).
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from solutions.engine.runner import Chunk

# ------------------------------------------------------------------------------------ one adapter


class LowRank(NamedTuple):
    """What an adapter adds to one matrix: alpha / rank * A @ B, a matrix of this rank at most."""

    a: Float[Tensor, "n_in rank"]
    b: Float[Tensor, "rank n_out"]
    alpha: float


def delta(hidden: Float[Tensor, "rows n_in"], added: LowRank) -> Float[Tensor, "rows n_out"]:
    """Return what an adapter adds to the product of each row.

    No matrix as large as the model's is made: hidden @ A is thin, and so is the rest of the work.
    Source: Hu et al., section 4.1.
    """
    ### BEGIN SOLUTION
    return (hidden @ added.a) @ added.b * (added.alpha / added.a.shape[1])
    ### END SOLUTION


def merged(
    weight: Float[Tensor, "n_in n_out"], added: LowRank, sign: int = 1
) -> Float[Tensor, "n_in n_out"]:
    """Return a new weight with the adapter in it (sign 1), or taken out again (sign -1).

    `weight` stays as it is, because other requests use it.
    """
    ### BEGIN SOLUTION
    return weight + sign * added.alpha / added.a.shape[1] * (added.a @ added.b)
    ### END SOLUTION


# ----------------------------------------------------------------------------- many in one batch


def stacked(
    adapters: Sequence[LowRank],
) -> tuple[Float[Tensor, "n+1 n_in most"], Float[Tensor, "n+1 most n_out"]]:
    """Stack what several adapters add to the same matrix, so that a number finds each.

    adapters: at least one; their ranks may differ. The first is number 1; number 0 is none, all
    zeros. `most` is the largest rank; a smaller one fills the first columns of A and the first rows
    of B, and the others are zero. Each scale, alpha over the adapter's own rank, is in B, so A @ B
    is all that is left to compute.
    """
    ### BEGIN SOLUTION
    most = max(a.shape[1] for a, _, _ in adapters)
    first = adapters[0]
    all_a = first.a.new_zeros(len(adapters) + 1, first.a.shape[0], most)
    all_b = first.b.new_zeros(len(adapters) + 1, most, first.b.shape[1])
    for number, (a, b, alpha) in enumerate(adapters, 1):
        rank = a.shape[1]
        all_a[number, :, :rank] = a
        all_b[number, :rank] = b * (alpha / rank)
    return all_a, all_b
    ### END SOLUTION


def adapter_rows(batch: Sequence[Chunk], adapter_of: Mapping[int, int]) -> Int[Tensor, " total"]:
    """Return the number of its adapter for each row of a step, that is, for each new token.

    adapter_of: the number for each request. The rows are in the order of lab 7's runner, which
    packs the chunks sorted by their `shape`; chunks of equal shape keep their order.
    """
    ### BEGIN SOLUTION
    packed = sorted(batch, key=lambda chunk: chunk.shape)
    return torch.tensor([adapter_of[chunk.request] for chunk in packed for _ in chunk.ids])
    ### END SOLUTION


def gathered(
    hidden: Float[Tensor, "rows n_in"],
    all_a: Float[Tensor, "n+1 n_in most"],
    all_b: Float[Tensor, "n+1 most n_out"],
    numbers: Int[Tensor, " rows"],
) -> Float[Tensor, "rows n_out"]:
    """Return what each row's adapter adds, in two batched products with each row's own A and B.

    Source: Chen et al., who call it BGMV.
    """
    ### BEGIN SOLUTION
    thin = torch.bmm(hidden[:, None], all_a[numbers])
    return torch.bmm(thin, all_b[numbers])[:, 0]
    ### END SOLUTION


def in_segments(
    hidden: Float[Tensor, "rows n_in"],
    all_a: Float[Tensor, "n+1 n_in most"],
    all_b: Float[Tensor, "n+1 most n_out"],
    numbers: Int[Tensor, " rows"],
    product: Callable[[Tensor, Tensor], Tensor] = torch.matmul,
) -> Float[Tensor, "rows n_out"]:
    """Return the same, with two calls of `product` for each adapter that is present.

    Rows of one adapter needn't be neighbors. Number 0 takes no product; its rows are zeros.
    Source: Chen et al., who call it SGMV.
    """
    ### BEGIN SOLUTION
    added = hidden.new_zeros(len(hidden), all_b.shape[2])
    for number in numbers.unique().tolist():
        if number != 0:
            its = numbers == number
            added[its] = product(product(hidden[its], all_a[number]), all_b[number])
    return added
    ### END SOLUTION


# ------------------------------------------------------------------------------- slots for many


class NoSlot(Exception):
    """All slots hold adapters that running requests use."""


class AdapterCache:
    """Slots for adapters in the engine's memory, numbered from 1.

    load: copies an adapter's weights into a slot. slots: the slot of each adapter that is there, in
    the order of their last use, the oldest first. users: how many running requests use each.
    """

    def __init__(self, size: int, load: Callable[[Hashable, int], None]) -> None:
        self.size, self.load = size, load
        self.slots: OrderedDict[Hashable, int] = OrderedDict()
        self.users: dict[Hashable, int] = {}

    def take(self, adapter: Hashable) -> int:
        """Hold an adapter for one more request; return its slot.

        It is loaded only if it isn't there: into the lowest free slot, or else in place of the
        adapter that has been unused for the longest time, never of one with users. Raises NoSlot,
        and changes nothing, if all have users. If `load` raises, the adapter isn't there, and the
        slot is free.
        """
        ### BEGIN SOLUTION
        if adapter not in self.slots:
            free = set(range(1, self.size + 1)) - set(self.slots.values())
            unused = [other for other in self.slots if self.users[other] == 0]
            if not free and not unused:
                raise NoSlot(f"All {self.size} slots are in use.")
            if not free:
                free = {self.slots.pop(unused[0])}
                del self.users[unused[0]]
            self.load(adapter, min(free))
            self.slots[adapter], self.users[adapter] = min(free), 0
        self.users[adapter] += 1
        self.slots.move_to_end(adapter)
        return self.slots[adapter]
        ### END SOLUTION

    def release(self, adapter: Hashable) -> None:
        """Give back what one request has held. The adapter stays in its slot, as the newest."""
        ### BEGIN SOLUTION
        self.users[adapter] -= 1
        self.slots.move_to_end(adapter)
        ### END SOLUTION


def salted(salt: bytes, adapter: str | None, version: int) -> bytes:
    """Return a salt for lab 8's manager that differs for any two (salt, adapter, version).

    Keys and values depend on the adapter, so only requests with the same one may share blocks, and
    not with those of an adapter that was loaded under the same name before. adapter: None for the
    base. salt: the request's own, in which a client may write anything, another result too.
    """
    ### BEGIN SOLUTION
    parts = [salt, b"" if adapter is None else f"{version}:{adapter}".encode()]
    return sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()
    ### END SOLUTION


def next_request(
    waiting: Sequence[int],
    running: Sequence[int],
    passed: Sequence[int],
    most: int,
    patience: int,
) -> int | None:
    """Choose the waiting request that is admitted next; return its place, or None for none now.

    waiting, running: the number of each request's adapter; 0 is none, and takes no slot. The
    waiting requests are in the order in which they came. passed: how often others were admitted
    before each. The first is chosen with which at most `most` adapters run. But once a request was
    passed more than `patience` times, none is admitted before it, so that slots become free; of
    several such requests the first one is tried.
    """
    ### BEGIN SOLUTION
    here = set(running) - {0}
    late = [place for place, times in enumerate(passed) if times > patience]
    for place in late[:1] or range(len(waiting)):
        if len(here | {waiting[place]} - {0}) <= most:
            return place
    return None
    ### END SOLUTION


def served(model: str, base: str, versions: Mapping[str, int]) -> tuple[str | None, int]:
    """Return which adapter a request's `model` names, and its version; (None, 0) for the base.

    An adapter's model is named base:adapter. Raises LookupError, with all names, for any other.
    """
    ### BEGIN SOLUTION
    names = {base: None} | {f"{base}:{adapter}": adapter for adapter in versions}
    if model not in names:
        raise LookupError(f"{model!r} isn't served here; these are: {', '.join(names)}.")
    adapter = names[model]
    return adapter, 0 if adapter is None else versions[adapter]
    ### END SOLUTION
