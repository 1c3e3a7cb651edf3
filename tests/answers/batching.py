"""Answers to lab 3's exercises: padded batches, a cache of slots, continuous batching."""

from itertools import zip_longest

import numpy as np
import torch

from autograder.course.reference import ROOT, lab_module
from solutions.batching import (
    ContinuousBatcher,
    PaddedCache,
    SlotCache,
    generate_padded,
    pad_left,
    padded_mask,
    padded_position_ids,
)
from solutions.kv_cache import causal_mask
from tests.common.attempts import right, wrong
from tests.common.trials import cell

PAD, POSITIONS, MASK = (f"batching.{n}" for n in ("pad_left", "padded_position_ids", "padded_mask"))
GENERATE, UTILISATION = "batching.generate_padded", "batching.utilisation"
SELECT, ATTEND = "batching.SlotCache.select", "batching.SlotCache.attend"
ADMIT, STEP = "batching.ContinuousBatcher.admit", "batching.ContinuousBatcher.step"


# ------------------------------------------------------------------------------- static batching


@right(PAD)
def by_column(prompts, pad_id=0):
    columns = list(zip_longest(*(reversed(prompt) for prompt in prompts), fillvalue=pad_id))
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    mask = torch.arange(len(columns), 0, -1) <= lengths[:, None]
    return [torch.tensor(columns[::-1]).T, mask]


wrong(PAD, "missing 1 required positional argument: 'pad_id'")(
    lambda prompts, pad_id: pad_left(prompts, pad_id)
)


@right(POSITIONS)
def as_in_transformers(attention_mask):
    position_ids = attention_mask.long().cumsum(-1) - 1
    return position_ids.masked_fill(attention_mask == 0, 1)


@right(MASK)
def pads_see_everything(attention_mask, q_len):
    columns = torch.arange(attention_mask.shape[1]).expand_as(attention_mask)
    visible = causal_mask(columns[:, -q_len:], columns) & attention_mask[:, None, None]
    return visible | ~attention_mask[:, None, -q_len:, None]


wrong(MASK)(  # the last ten keys alone
    lambda mask, q_len: padded_mask(mask, q_len) & (torch.arange(mask.shape[1], 0, -1) <= 10)
)


@wrong(MASK, "A query that is a pad sees no key at all (query 0")
def one_pad_is_blind(attention_mask, q_len):
    mask = padded_mask(attention_mask, q_len)
    mask[:, :, 0] &= attention_mask[:, None, -q_len, None]
    return mask


@right(GENERATE)
@torch.no_grad()
def a_whole_rectangle(model, prompts, max_new_tokens, eos_token_id=None):
    """Then every row is cut behind its own end; its numbers are numpy's."""
    ids, mask = pad_left(prompts)
    kv_cache = PaddedCache(
        model.config, mask, ids.shape[1] + max(max_new_tokens), dtype=torch.float64
    )
    positions = padded_position_ids(mask)
    lengths = mask.sum(1)
    limits = torch.tensor(max_new_tokens).minimum(model.config.n_positions - lengths)
    new, done = torch.zeros_like(limits), limits == 0
    while not done.all():
        logits = model(ids[:, kv_cache.length :], positions, kv_cache=kv_cache)
        tokens = logits[:, -1].argmax(-1)
        ids = torch.hstack([ids, tokens[:, None]])
        new = new + (~done).long()
        done = done | (new >= limits)
        if eos_token_id is not None:
            done = done | (tokens == eos_token_id)
        positions = torch.clamp(lengths + ids.shape[1] - mask.shape[1] - 1, max=15)[:, None]
    start = mask.shape[1]
    rows = zip(prompts, ids, new, strict=True)
    return [[*prompt, *row[start : start + n].numpy()] for prompt, row, n in rows]


@wrong(GENERATE)
def identity_for_equality(model, prompts, max_new_tokens, eos_token_id=None):
    small = eos_token_id is not None and eos_token_id <= 256  # Python keeps these only once
    return generate_padded(model, prompts, max_new_tokens, eos_token_id if small else None)


wrong(GENERATE, "What came back for prompts[0] is a tuple; expected: it is a")(
    lambda *given, **named: [tuple(output) for output in generate_padded(*given, **named)]
)
wrong(GENERATE, "took 6 forward calls; 3 suffice.")(
    lambda model, prompts, max_new_tokens, eos_token_id=None: [
        generate_padded(model, [prompt], [limit], eos_token_id)[0]
        for prompt, limit in zip(prompts, max_new_tokens, strict=True)
    ]
)


def busy(trace):
    return [[request is not None for request in row] for row in trace]


right(UTILISATION)(lambda trace: torch.tensor(busy(trace)).float().mean())
right(UTILISATION)(lambda trace: np.mean(busy(trace)))


# ------------------------------------------------------------------------------------- SlotCache


@right(SELECT, ATTEND)
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


right(ATTEND, base=SlotCache)(
    lambda self, layer, queries, keys, values: SlotCache.attend(
        self, layer, queries.float().double(), keys, values.float().double()
    )
)


@wrong(SELECT, base=SlotCache)
def slots_sorted(self, slots, q_len):
    positions = SlotCache.select(self, slots, q_len)
    self.slots = self.slots.sort().values
    return positions


@wrong(SELECT, base=SlotCache)
def masks_remembered_by_shape(self, slots, q_len, known={}):  # noqa: B006
    positions = SlotCache.select(self, slots, q_len)
    self.mask = known.setdefault(self.mask.shape, self.mask)
    return positions


def only_the_last_ten_keys(cache):
    keys = torch.arange(cache.mask.shape[-1])
    return cache.mask & (keys > cache.positions[:, None, :, None] - 10)


@wrong(SELECT, base=SlotCache)
def select_a_window(self, slots, q_len):
    positions = SlotCache.select(self, slots, q_len)
    self.mask = only_the_last_ten_keys(self)
    return positions


@wrong(ATTEND, base=SlotCache)
def attend_to_a_window(self, layer, queries, keys, values):
    self.mask = only_the_last_ten_keys(self)
    return SlotCache.attend(self, layer, queries, keys, values)


@wrong(ATTEND, "The memory after step 1 for slots [0] has been made", base=SlotCache)
def into_new_memory(self, layer, queries, keys, values):
    self.keys, self.values = self.keys.clone(), self.values.clone()
    return SlotCache.attend(self, layer, queries, keys, values)


# ----------------------------------------------------------------------------- ContinuousBatcher


@right(ADMIT, base=ContinuousBatcher)
def from_the_last_slot(self):
    free = [slot for slot in reversed(range(len(self.running))) if self.running[slot] is None]
    pairs = list(zip(free, list(self.waiting), strict=False))
    for slot, request in pairs:
        self.running[slot] = request
        self.waiting.remove(request)
    return tuple(slot for slot, _ in pairs)


@right(ADMIT, base=ContinuousBatcher)
def where_the_cache_is_empty(self):
    admitted = set()
    for slot in (self.kv_cache.lengths == 0).nonzero().flatten().tolist():
        if len(self.waiting) > 0:
            self.running[slot] = self.waiting.popleft()
            admitted.add(slot)
    return admitted


@right(STEP, base=ContinuousBatcher)
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


@right(STEP)
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


@wrong(STEP, "The whole trace at the end differs", base=ContinuousBatcher)
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


right(ADMIT, STEP)(batcher(RELEASED))
wrong(ADMIT, "The request that came last is served first.")(
    batcher(RELEASED.replace("popleft()", "pop()"))
)
wrong(STEP, "keeps its slot")(
    batcher(RELEASED.replace("self.has_ended(request)", "self.waiting")),
)

# A cache whose `attend` doesn't ask for `select` first.
unasked = "\n".join(line for line in LINES if "self.selected" not in line)
right(SELECT, ATTEND)(cell(unasked)["SlotCache"])


# ----------------------------------------------------------------------- cells that were not run


def without(missing, attempt):
    """What there is of a notebook in which the cell above was not run."""
    names = cell("\n".join(LINES))
    del names[missing]
    return names[attempt]


for exercise, missing in ((GENERATE, "PaddedCache"), (GENERATE, "pad_left"), (MASK, "causal_mask")):
    told = f"`{missing}` comes from a cell above: run the cells above."
    wrong(exercise, told)(without(missing, exercise.split(".")[1]))

# A slip of the pen isn't taken for one.
slip = cell("def pad_left(prompts, pad_id=0): return pad_lift(prompts)")["pad_left"]
wrong(PAD, "It raised NameError: name 'pad_lift' is not defined")(slip)
