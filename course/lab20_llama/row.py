"""Lab 20: the engine on a model of Llama's family, and on the codes of its file."""

import functools
from dataclasses import replace
from typing import Any

from course.lab07_engine.row import engine_of
from solutions.families import kv_bytes, load_model
from timing.table import (
    COARSE_HAIR,
    HAIR,
    ROUNDED,
    Anew,
    Bench,
    Lossy,
    NotTimed,
    Rows,
    Served,
    loss_of,
)
from timing.table.workloads import EQUAL, LENGTHS, RAGGED
from timing.work import weight_bytes


@functools.cache  # several workloads use the same models, and measuring a loss takes seconds
def beside(bench: Bench) -> tuple[Bench, Lossy]:
    """Return the bench of the model of Llama's family that stands beside this one."""
    name = f"{bench.folder.name}-llama"
    folder = bench.folder.with_name(name)
    if not folder.is_dir():
        raise NotTimed(f"it compares a model with {name}, and there is none beside it.")
    other = replace(bench, folder=folder)
    llama, gpt2 = other.load(), bench.load()
    held = [kv_bytes(model.config, 4) for model in (llama, gpt2)]
    wins = f"{held[0]:,} KV bytes a token, not {held[1]:,}"
    lost = loss_of(llama, gpt2, bench.folder)
    return other, Lossy("another model", llama, HAIR, wins, lost)


def llama(bench: Bench) -> Served:
    other, lossy = beside(bench)
    about = f"the engine on {other.folder.name}, of Llama's family, beside {bench.folder.name}"
    return replace(engine_of(other, f"{about} (lab 20)"), lossy=lossy)


@functools.cache
def on_codes(bench: Bench) -> tuple[Any, Lossy]:
    try:
        model = load_model(bench.folder, codes=True)
    except ValueError as error:
        raise NotTimed(str(error)) from error
    exact = bench.load()
    now, before = (weight_bytes(model) / 1e6 for model in (model, exact))
    wins = f"{now:.1f} MB of weights instead of {before:.1f}"
    naive, lost = Anew(model, lambda: None), loss_of(model, exact, bench.folder)
    return model, Lossy(ROUNDED, naive, COARSE_HAIR, wins, lost)


def codes(bench: Bench) -> Served:
    about = "the engine on the file's own codes of 4 bits, embedding and head in 8 (lab 20)"
    model, lossy = on_codes(bench)
    return replace(engine_of(bench, about), model=model, lossy=lossy)


KINDS = LENGTHS, RAGGED, EQUAL
ROWS: Rows = {"llama": dict.fromkeys(KINDS, llama), "codes": dict.fromkeys(KINDS, codes)}
