"""Answers to lab 23's exercises: thin products, rows of many adapters, slots, salts, a queue."""

import torch

from solutions.adapters import (
    AdapterCache,
    adapter_rows,
    delta,
    gathered,
    in_segments,
    merged,
    next_request,
    salted,
    served,
    stacked,
)
from tests.common.attempts import right, wrong, wrong_result

wrong_result(stacked, lambda both: both[0], "stacked returns all A and all B; this is a Tensor.")
wrong_result(
    adapter_rows, lambda rows: rows.tolist(), "What it returned is a list; expected: it is"
)
wrong_result(salted, lambda salt: salt.hex(), "What it returned is a str; expected: it is bytes.")
wrong_result(served, lambda both: both[0], "served returns an adapter and a version; this is")


@right(delta)
def scaled_rows(hidden, added):
    return hidden * added.alpha @ added.a / len(added.b) @ added.b


@wrong(delta, "The matrix products take ")
def through_merged(hidden, added):
    zeros = hidden.new_zeros(len(added.a), added.b.shape[1])
    return hidden @ merged(zeros, added)


@wrong(merged, "What it returned is the weight that it was given; expected: it is a tensor of its")
def into_the_weight(weight, added, sign=1):
    return weight.copy_(merged(weight, added, sign))


@right(gathered)
def by_segments(hidden, all_a, all_b, numbers):
    return in_segments(hidden, all_a, all_b, numbers)


@right(in_segments)
def by_index(hidden, all_a, all_b, numbers, product=torch.matmul):
    out = torch.zeros(len(hidden), all_b.shape[2], dtype=hidden.dtype)
    for number in {*numbers.tolist()} - {0}:
        (its,) = torch.where(numbers == number)
        thin = product(hidden[its], all_a[number])
        out.index_copy_(0, its, product(thin, all_b[number]))
    return out


@wrong(in_segments, "The number of calls of `product` is 0; expected")
def by_gathering(hidden, all_a, all_b, numbers, product=torch.matmul):
    return gathered(hidden, all_a, all_b, numbers)


@right(AdapterCache.take)
def with_counts_that_stay(self, adapter):
    """An adapter that was evicted keeps a count of 0."""
    before = dict.fromkeys(self.users, 0)
    slot = AdapterCache.take(self, adapter)
    self.users = before | self.users
    return slot


@wrong(AdapterCache.take, "take 'c' raised NoSlot; expected: it returned something")
def only_into_free_slots(self, adapter):
    if adapter not in self.slots and len(self.slots) == self.size:
        error = type("NoSlot", (Exception,), {})
        raise error
    return AdapterCache.take(self, adapter)


@right(salted)
def as_a_text(salt, adapter, version):
    return repr((salt, adapter, version)).encode()


@right(next_request)
def one_after_the_other(waiting, running, passed, most, patience):
    for place in range(len(waiting)):
        if passed[place] > patience:
            its = next_request([waiting[place]], running, [0], most, patience)
            return place if its == 0 else None
    return next_request(waiting, running, [0] * len(waiting), most, 1)


# ------------------------------------------------------------- mutants that do the same by right

EQUIVALENT = {
    "adapters.stacked": {"adapters[0] -> adapters[-1]": "all of them have the same shapes"},
    "adapters.gathered": {
        "torch.bmm(thin, all_b[numbers])[:, 0] -> torch.bmm(thin, all_b[numbers])[:, -1]": (
            "the dimension has one place"
        ),
    },
    "adapters.AdapterCache.take": {
        "del self.users[unused[0]] -> dropped": "a count of 0 that stays does no harm",
    },
    "adapters.salted": {
        "len(part).to_bytes(8, 'big') -> len(part).to_bytes(7, 'big')": "lengths still fit",
        "len(part).to_bytes(8, 'big') -> len(part).to_bytes(9, 'big')": "lengths still fit",
    },
    "adapters.next_request": {"return None -> dropped": "a function returns None at its end"},
}
