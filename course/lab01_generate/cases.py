"""The exercises of lab 1: the naive loop, and the metrics of a request."""

from functools import partial
from typing import Any

import torch

from autograder.attempt.drivers import generate as drivers
from autograder.judging.comparisons import compare_ids
from autograder.judging.draws import LOOP, prompt_ids, prompt_list, prompt_where
from autograder.judging.exercise import Case, Exercise
from autograder.lending.naive import lend_naive_model

# ------------------------------------------------------------------------------------- generate


def generate_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, *requests: tuple[Any, ...]) -> Case:
        """A request may leave out its EOS, because the contract says that EOS is optional."""
        names = "input_ids", "max_new_tokens", "eos_token_id"
        return Case(label, {"requests": [dict(zip(names, r, strict=False)) for r in requests]})

    prompt, full = partial(prompt_ids, generator), LOOP.n_positions
    # Python keeps only one object for each number up to 256, so `is` seems right for these.
    varied, new = prompt_where(
        generator, 4, lambda ids, new: len({*ids, *new}) == 10 and new[2] > 256
    )
    zero, _ = prompt_where(generator, 3, lambda _, new: 0 in new[1:4] and new[0] != 0)
    inside, _ = prompt_where(generator, 4, lambda ids, new: ids[1] not in new)
    last, _ = prompt_where(generator, 3, lambda ids, new: ids[-1] in new[2:5] and ids[-1] != new[0])
    with_zeros = [*prompt_list(generator, 1), 0, 0, 1]
    own, _ = prompt_where(generator, 3, lambda _, new: LOOP.eos_token_id in new[:4])
    ids, several = torch.tensor([varied]), "prompts of different lengths, one after another"
    return [
        case("a one-token prompt, one new token", (prompt(1), 1)),
        case("three new tokens", (prompt(2), 3)),
        case("max_new_tokens is 0", (prompt(3), 0)),
        case("the first new token is EOS", (ids, 6, new[0])),
        case("EOS comes after a few new tokens", (ids, 6, new[2])),
        case("EOS is the last of max_new_tokens", (ids, 3, new[2])),
        case("the EOS token's id is 0", (torch.tensor([zero]), 6, 0)),
        case("the prompt contains token 0", (torch.tensor([with_zeros]), 3)),
        case("the prompt contains the EOS token", (torch.tensor([inside]), 4, inside[1])),
        case("the prompt ends with EOS", (torch.tensor([last]), 6, last[-1])),
        case("the model's own EOS comes, but eos_token_id is None", (torch.tensor([own]), 6)),
        case("a batch of two prompts", (prompt(3, batch=2), 4)),
        case("the prompt leaves room for two tokens in the context", (prompt(full - 2), 5)),
        case("the prompt fills the context", (prompt(full), 3)),
        case(
            "three prompts of equal length, one after another", *((prompt(4), 3) for _ in range(3))
        ),
        case(several, (prompt(5), 4), (prompt(2), 3), (prompt(3, batch=2), 2)),
    ]


# -------------------------------------------------------------------------------------- metrics


def metrics_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, start: float, n: int) -> Case:
        """Prefill takes 0.2 to 0.7 s, each decode step 0.01 to 0.11 s."""
        gaps = 0.01 + 0.1 * torch.rand(n, generator=generator, dtype=torch.float64)
        gaps[0] = 0.2 + 0.5 * torch.rand((), generator=generator)
        return Case(label, {"start": start, "token_times": (start + gaps.cumsum(0)).tolist()})

    clock = 1e6 * (
        1 + torch.rand((), generator=generator).item()
    )  # seconds: the machine has been up for weeks
    return [
        case("one token", 0.0, 1),
        case("two tokens, the request at time 0", 0.0, 2),
        case("one token, on a clock that is already running", clock, 1),
        case("five tokens, on a clock that is already running", clock, 5),
        case("forty tokens", clock, 40),
    ]


EXERCISES = (
    Exercise("generate.generate", drivers.generate, generate_cases, compare_ids, lend_naive_model),
    Exercise("generate.metrics", drivers.metrics, metrics_cases),
)
