"""Lab 23: requests of the base and of three adapters, in one engine and merged one by one.

A request's adapter follows from its prompt, so both rows serve the same, and each text is verified
against its own merged model. The adapters are random: the time doesn't depend on what they add.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from course.lab07_engine.row import engine_of
from gpt import GPTLMHead
from solutions.adapted.adapter import Adapter, merged_model, shapes_of
from solutions.adapted.engine import add_adapters
from solutions.adapters import LowRank, salted
from solutions.kv_cache import generate
from timing.table import (
    HAIR,
    Batches,
    Bench,
    Ids,
    Lossy,
    Rows,
    Served,
    kv_bytes,
)
from timing.table.workloads import EQUAL, Workload

ADAPTERS, RANK = 3, 8
WHY = f"a request in {ADAPTERS + 1} is the base's, and each other one an adapter's"


def number_of(prompt: Ids) -> int:
    """Return the number of a request's adapter, 0 for none, by the prompt's first token."""
    return prompt[0] % (ADAPTERS + 1)


def random_adapters(model: Any) -> list[Adapter]:
    draw = torch.Generator().manual_seed(0)

    def matrix(n_in: int, n_out: int) -> Tensor:
        return torch.randn(n_in, n_out, generator=draw) / n_in**0.5

    shapes = shapes_of(model.config).items()
    return [
        Adapter(
            f"random {number}",
            1,
            {
                n: LowRank(matrix(n_in, RANK), matrix(RANK, n_out), 1.0)
                for n, (n_in, n_out) in shapes
            },
        )
        for number in range(ADAPTERS)
    ]


class Merged(nn.Module):
    """The base and its merged models; a text of which the first token is given picks one.

    All have one embedding, which no adapter changes.
    """

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.wholes = nn.ModuleList(
            [base, *(merged_model(base, each.matrices) for each in random_adapters(base))]
        )
        self.transformer, self.config, self.number = base.transformer, base.config, 0

    def forward(self, input_ids: Tensor, positions: Tensor, *cache: Any, **others: Any) -> Tensor:
        if not positions[0, 0]:
            self.number = number_of(input_ids[0].tolist())
        return self.wholes[self.number](input_ids, positions, *cache, **others)


@functools.cache
def other_models(bench: Bench) -> Lossy:
    return Lossy(WHY, Merged(bench.load(GPTLMHead)), HAIR)


def adapters(bench: Bench) -> Served:
    bench.require_gpt2("its merged models are of GPT-2's blocks")
    about = f"the engine with {ADAPTERS} adapters and the base (lab 23)"
    served = engine_of(bench, about)
    all_of_them = [None, *random_adapters(bench.load())]

    def new_engine(model: Any, workload: Workload, on_output: Callable) -> Any:
        engine: Any = served.new_engine(model, workload, on_output)
        add_adapters(engine, ADAPTERS)
        submit = engine.submit

        def with_adapter(prompt: Ids, new_tokens: int) -> int:
            adapter = all_of_them[number_of(prompt)]
            name, version = (adapter.name, adapter.version) if adapter else (None, 0)
            salt = salted(b"", name, version)
            return submit(prompt, new_tokens, adapter=adapter, salt=salt)

        engine.submit = with_adapter
        return engine

    given = about, served.model, new_engine, served.size
    return Served(*given, lossy=other_models(bench))


def one_by_one(bench: Bench) -> Batches:
    """Prepare lab 2's loop on whole models, for one request after the other."""
    bench.require_gpt2("its merged models are of GPT-2's blocks")
    about = f"{ADAPTERS} merged models and the base, one request at a time (lab 23)"

    def one(model: Any, prompts: list[Ids], new_tokens: list[int]) -> list[Ids]:
        return generate(model, torch.tensor(prompts), *new_tokens).tolist()

    model = Merged(bench.load())
    return Batches(about, model, one, kv_bytes.of_object, lossy=other_models(bench))


ROWS: Rows = {"merged": {EQUAL: one_by_one}, "adapters": {EQUAL: adapters}}
