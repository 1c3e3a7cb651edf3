"""Lab 17: MLPs split into experts. All of them give the same tokens; half of them do less work."""

import copy
import functools
from dataclasses import dataclass
from typing import Any

from gpt import GPTLMHead
from solutions.experts.layers import layers_of, take
from solutions.experts.splitting import mlp_inputs
from solutions.kv_cache import KVCache, generate
from solutions.quality.bits_per_byte import CALIBRATION, passages
from timing.table import (
    HAIR,
    Anew,
    Batches,
    Bench,
    Lossy,
    Own,
    Rows,
    kv_bytes,
    loss_of,
    one_prompt_at_a_time,
)
from timing.table.workloads import LENGTHS
from timing.work import weight_bytes

EXPERTS, HALF = 8, 4
TEXTS, LENGTH = 4, 512  # by whose activations neurons are grouped


@dataclass(frozen=True)
class Routed(Batches):
    """Requests one at a time, whose tokens read only the weights of their own experts."""

    @property
    def weight_bytes(self) -> int:
        layers = layers_of(self.model)
        unread = [weight_bytes(m.experts) * (1 - m.k / len(m.experts)) for m in layers]
        return weight_bytes(self.model) - round(sum(unread))


@functools.cache  # both rows use the same experts
def split_model(bench: Bench) -> Any:
    bench.require_gpt2("the MLPs of a GPT-2 are split into experts")
    model = bench.load()
    length = min(LENGTH, model.config.n_positions)
    texts = passages(CALIBRATION, str(bench.folder), length)[:TEXTS]
    inputs = mlp_inputs(bench.load(GPTLMHead), texts)
    return bench.lab("moe").split(model, EXPERTS, EXPERTS, inputs)


@functools.cache  # measuring a loss takes seconds
def halved(bench: Bench) -> tuple[Any, Lossy]:
    model = copy.deepcopy(split_model(bench))
    take(model, HALF)
    why, wins = f"a token uses {HALF} of {EXPERTS} experts", "half of the MLPs' work for a token"
    new_cache = functools.partial(KVCache, model.config, 1, model.config.n_positions, bench.device)
    lost = loss_of(model, bench.load(), bench.folder)
    return model, Lossy(why, Anew(model, new_cache), HAIR, wins, lost)


def experts(bench: Bench) -> Routed:
    about = f"every MLP split into {EXPERTS} experts, and all of them used (lab 17)"
    return Routed(about, split_model(bench), one_prompt_at_a_time(generate), kv_bytes.of_object)


def experts_half(bench: Bench) -> Routed:
    about = f"the same experts; a token uses the {HALF} of {EXPERTS} that a router picks (lab 17)"
    model, lossy = halved(bench)
    return Routed(about, model, one_prompt_at_a_time(generate), kv_bytes.of_object, lossy=lossy)


ROWS: Rows = {"experts": {LENGTHS: experts}, "experts-half": {LENGTHS: experts_half}}
PARTS = "moe_forward", "dispatch", "route", "split_mlp"
OWN = [Own("your experts (lab 17)", "moe", PARTS, [LENGTHS], experts)]
