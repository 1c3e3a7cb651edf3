"""Answers to lab 3's exercises: padded batches, a cache of slots, continuous batching."""

import torch

from autograder.text.reference import ROOT, lab_module
from solutions.batching import (
    ContinuousBatcher,
    SlotCache,
    generate_padded,
    pad_left,
    padded_mask,
    padded_position_ids,
)
from solutions.kv_cache import causal_mask
from tests.common.attempts import right, wrong
from tests.common.trials import cell

# ------------------------------------------------------------------------------- static batching


@right(padded_position_ids)
def as_in_transformers(attention_mask):
    position_ids = attention_mask.long().cumsum(-1) - 1
    return position_ids.masked_fill(attention_mask == 0, 1)


@right(padded_mask)
def pads_see_everything(attention_mask, q_len):
    columns = torch.arange(attention_mask.shape[1]).expand_as(attention_mask)
    visible = causal_mask(columns[:, -q_len:], columns) & attention_mask[:, None, None]
    return visible | ~attention_mask[:, None, -q_len:, None]


wrong(padded_mask)(  # the last ten keys alone
    lambda mask, q_len: padded_mask(mask, q_len) & (torch.arange(mask.shape[1], 0, -1) <= 10)
)


@wrong(padded_position_ids, "differs first at [0, 128]: got 0, expected 128.")
def counted_in_int8(attention_mask):
    return (attention_mask.cumsum(1, dtype=torch.int8) - 1).clamp(min=0).long()


@wrong(padded_mask, "are laid along the wrong dimension")
def rows_in_the_place_of_heads(attention_mask, q_len):
    positions = padded_position_ids(attention_mask)
    return causal_mask(positions[:, -q_len:], positions) & attention_mask[None, :, None, :]


@wrong(padded_mask, "A query that is a pad sees no key at all (query 0")
def one_pad_is_blind(attention_mask, q_len):
    mask = padded_mask(attention_mask, q_len)
    mask[:, :, 0] &= attention_mask[:, None, -q_len, None]
    return mask


@wrong(generate_padded)
def identity_for_equality(model, prompts, max_new_tokens, eos_token_id=None):
    small = eos_token_id is not None and eos_token_id <= 256  # Python keeps these only once
    return generate_padded(model, prompts, max_new_tokens, eos_token_id if small else None)


wrong(generate_padded, "What came back for prompts[0] is a tuple; expected: it is a")(
    lambda *given, **named: [tuple(output) for output in generate_padded(*given, **named)]
)
wrong(generate_padded, "took 6 forward calls; 3 suffice.")(
    lambda model, prompts, max_new_tokens, eos_token_id=None: [
        generate_padded(model, [prompt], [limit], eos_token_id)[0]
        for prompt, limit in zip(prompts, max_new_tokens, strict=True)
    ]
)


# ------------------------------------------------------------------------------------- SlotCache


@right(SlotCache.select, SlotCache.attend)
class WithLengthsOfItsOwn(SlotCache):
    """Its `select` and its `attend` keep what the other wants to know."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.book = [0] * len(self.lengths)

    def select(self, slots, q_len):
        self.served, self.lengths = torch.tensor(slots), torch.tensor(self.book)
        return super().select(slots, q_len)

    def attend(self, layer, queries, keys, values):
        self.slots = self.served
        output = super().attend(layer, queries, keys, values)
        if layer == len(self.keys) - 1:
            self.book = self.lengths.tolist()
        return output

    def free(self, slot):
        super().free(slot)
        self.book[slot] = 0


@wrong(SlotCache.select)
def slots_sorted(self, slots, q_len):
    positions = SlotCache.select(self, slots, q_len)
    self.slots = self.slots.sort().values
    return positions


@wrong(SlotCache.select, "Every row starts at the length of the longest selected slot")
def all_rows_as_long(self, slots, q_len):
    lengths = self.lengths.clone()
    self.lengths[slots] = lengths[slots].max()
    positions = SlotCache.select(self, slots, q_len)
    self.lengths = lengths
    return positions


@wrong(SlotCache.select)
def masks_remembered_by_shape(self, slots, q_len, known={}):  # noqa: B006
    positions = SlotCache.select(self, slots, q_len)
    self.mask = known.setdefault(self.mask.shape, self.mask)
    return positions


@wrong(SlotCache.attend, "The output of step 1")
def hidden_by_minus_twenty(self, layer, queries, keys, values):
    """Enough in most cases: a hidden key gets next to no weight, unless all scores are low."""
    mask, self.mask = self.mask, torch.where(self.mask, 0.0, -20.0).to(queries)
    output = SlotCache.attend(self, layer, queries, keys, values)
    self.mask = mask
    return output


def only_the_last_ten_keys(cache):
    keys = torch.arange(cache.mask.shape[-1])
    return cache.mask & (keys > cache.positions[:, None, :, None] - 10)


@wrong(SlotCache.select)
def select_a_window(self, slots, q_len):
    positions = SlotCache.select(self, slots, q_len)
    self.mask = only_the_last_ten_keys(self)
    return positions


@wrong(SlotCache.attend)
def attend_to_a_window(self, layer, queries, keys, values):
    self.mask = only_the_last_ten_keys(self)
    return SlotCache.attend(self, layer, queries, keys, values)


@wrong(SlotCache.attend, "The memory after step 1 for slots [0] has been allocated")
def into_new_memory(self, layer, queries, keys, values):
    self.keys, self.values = self.keys.clone(), self.values.clone()
    return SlotCache.attend(self, layer, queries, keys, values)


# ----------------------------------------------------------------------------- ContinuousBatcher


@right(ContinuousBatcher.admit)
def from_the_last_slot(self):
    free = [slot for slot in reversed(range(len(self.running))) if self.running[slot] is None]
    pairs = list(zip(free, list(self.waiting), strict=False))
    for slot, request in pairs:
        self.running[slot] = request
        self.waiting.remove(request)
    return tuple(slot for slot, _ in pairs)


@right(ContinuousBatcher.admit)
def where_the_cache_is_empty(self):
    admitted = set()
    for slot in (self.kv_cache.lengths == 0).nonzero().flatten().tolist():
        if len(self.waiting) > 0:
            self.running[slot] = self.waiting.popleft()
            admitted.add(slot)
    return admitted


@right(ContinuousBatcher.admit)
class WithFreeSlotsOfItsOwn(ContinuousBatcher):
    """Its `step` keeps the list of free slots from which its `admit` takes."""

    def __init__(self, model, slots, *given):
        super().__init__(model, slots, *given)
        self.free_slots = list(range(slots))

    def admit(self):
        admitted = []
        while self.free_slots and self.waiting:
            admitted.append(self.free_slots.pop(0))
            self.running[admitted[-1]] = self.waiting.popleft()
        return admitted

    def step(self):
        super().step()
        self.free_slots = [slot for slot, request in enumerate(self.running) if request is None]


@wrong(ContinuousBatcher.admit, "The list of slots left free while requests wait after call 1 is [")
def never_the_last_slot(self):
    *others, last = self.running
    self.running = others
    admitted = ContinuousBatcher.admit(self)
    self.running = [*self.running, last]
    return admitted


@wrong(ContinuousBatcher.admit, "A request that may fill its slot is never admitted")
def with_a_place_to_spare(self):
    admitted = []
    for slot, request in enumerate(self.running):
        if request is None and self.waiting and self.waiting[0].end < self.kv_cache.max_length:
            self.running[slot] = self.waiting.popleft()
            admitted.append(slot)
    return admitted


@wrong(ContinuousBatcher.admit, "or counted as computed, here")
def counted_as_computed(self):
    admitted = ContinuousBatcher.admit(self)
    for slot in admitted:
        self.running[slot].num_computed_tokens = len(self.running[slot].ids)
    return admitted


@right(ContinuousBatcher.step)
@torch.no_grad()
def with_a_copy(self):
    before = list(self.running)
    newcomers = self.admit()
    old = [slot for slot in range(len(before)) if before[slot] is not None]
    if len(old) > 0:
        self.forward(old)
    for slot in newcomers:
        self.forward((slot,))
    self.trace.append(tuple(getattr(request, "number", None) for request in self.running))
    for slot in old + list(newcomers):
        if self.running[slot].has_ended:
            self.retire(slot)


@right(ContinuousBatcher.step)
class WithNewcomersOfItsOwn(ContinuousBatcher):
    """Its `admit` notes for `step` which slots are new."""

    def admit(self):
        self.newcomers = super().admit()
        return self.newcomers

    def step(self):
        self.admit()
        busy = [slot for slot, request in enumerate(self.running) if request]
        veterans = [slot for slot in busy if slot not in self.newcomers]
        for slots in [*([slot] for slot in self.newcomers), *([veterans] if veterans else [])]:
            self.forward(slots)
        self.trace.append([request.number if request else None for request in self.running])
        for slot in busy:
            if self.running[slot].has_ended:
                self.retire(slot)


@wrong(ContinuousBatcher.step, "What was added to the trace in step 1 has 0 items; exp")
def nothing_without_requests(self):
    if self.waiting or any(self.running):
        ContinuousBatcher.step(self)


@wrong(ContinuousBatcher.step, "The whole trace at the end differs")
def one_row_written_again_and_again(self):
    ContinuousBatcher.step(self)
    self.row = getattr(self, "row", [])
    self.row[:] = self.trace[-1]
    self.trace[-1] = self.row


# ------------------------------------------------------------------------ copies handed out earlier

LINES = lab_module("batching").lines
RELEASED = (ROOT / "tests" / "data" / "released_batcher.py").read_text()


def batcher(source):
    return cell(source)["ContinuousBatcher"]


right(ContinuousBatcher.admit, ContinuousBatcher.step)(batcher(RELEASED))
wrong(ContinuousBatcher.admit, "The request that came last is served first.")(
    batcher(RELEASED.replace("popleft()", "pop()"))
)
wrong(ContinuousBatcher.step, "keeps its slot")(
    batcher(RELEASED.replace("self.has_ended(request)", "False")),
)

# A cache whose `attend` doesn't ask for `select` first.
unasked = "\n".join(line for line in LINES if "self.selected" not in line)
right(SlotCache.select, SlotCache.attend)(cell(unasked)["SlotCache"])


# ----------------------------------------------------------------------- cells that were not run


def without(missing, attempt):
    """What there is of a notebook in which the cell above was not run."""
    names = cell("\n".join(LINES))
    del names[missing]
    return names[attempt]


for solution, missing in (
    *((generate_padded, "PaddedCache"), (generate_padded, "pad_left")),
    (padded_mask, "causal_mask"),
):
    told = f"`{missing}` comes from a cell above: run the cells above."
    wrong(solution, told)(without(missing, solution.__name__))

# A slip of the pen isn't taken for one.
slip = cell("def pad_left(prompts, pad_id=0): return pad_lift(prompts)")["pad_left"]
wrong(pad_left, "It raised NameError: name 'pad_lift' is not defined")(slip)


# ------------------------------------------------------------- mutants that do the same by right

EQUIVALENT = {
    "batching.generate_padded": {
        "config.n_positions - 1 -> config.n_positions - 2": (
            "a token at the last position fills the context: its row has ended, and what is "
            "computed along with the others doesn't count"
        ),
    },
}
