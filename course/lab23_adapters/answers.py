"""Answers to lab 23's exercises: thin products, rows of many adapters, slots, salts, a queue."""


from solutions.adapters import (
    AdapterCache,
    adapter_rows,
    gathered,
    in_segments,
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


@right(gathered)
def by_segments(hidden, all_a, all_b, numbers):
    return in_segments(hidden, all_a, all_b, numbers)


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
