"""The exercises of lab 1: the naive loop, and the figures that describe a request."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from autograder.compare import first, same_counts, same_ids, same_number
from autograder.drivers import generate as drivers
from autograder.exercise import Case, Exercise
from autograder.misconceptions import generate as misconceptions
from autograder.services import CountedModel, random_model
from gpt import GPTConfig, GPTLMHead
from solutions import generate as reference

CONFIG = GPTConfig(vocab_size=48, n_positions=16, n_embd=32, n_layer=2, n_head=4)

Request = dict[str, Any]


@cache
def small_model() -> GPTLMHead:
    return random_model(GPTLMHead, CONFIG, seed=1)


def counted_model(data: Mapping[str, Any]) -> dict[str, Any]:
    return {"model": CountedModel(small_model())}


# ------------------------------------------------------------------------------------- generate


def request(
    input_ids: Int[Tensor, "batch seq"], max_new_tokens: int, eos_token_id: int | None = None
) -> Request:
    return {
        "input_ids": input_ids,
        "max_new_tokens": max_new_tokens,
        "eos_token_id": eos_token_id,
    }


def generate_cases(generator: torch.Generator) -> list[Case]:
    def prompt(seq: int, batch: int = 1) -> Int[Tensor, "batch seq"]:
        return torch.randint(CONFIG.vocab_size, (batch, seq), generator=generator)

    def until(
        seq: int, wanted: Callable[[list[int], list[int]], bool]
    ) -> tuple[Int[Tensor, "1 seq"], list[int]]:
        """A prompt for which wanted(its ids, the six new ids) holds, and the six new ids."""
        while True:
            for ids in reference.generate(small_model(), prompt(seq, batch=64), 6):
                old, new = ids[:seq].tolist(), ids[seq:].tolist()
                if wanted(old, new):
                    return ids[None, :seq].clone(), new

    full = CONFIG.n_positions
    varied, varied_new = until(4, lambda _, new: len(set(new)) > 3 and new[2] not in new[:2])
    zero, _ = until(3, lambda _, new: 0 in new[:4])
    inside, _ = until(4, lambda old, new: old[1] not in new)
    last, _ = until(3, lambda old, new: old[-1] not in new[:2] and old[-1] in new[2:5])
    return [
        Case("a one-token prompt, one new token", {"requests": [request(prompt(1), 1)]}),
        Case("three new tokens", {"requests": [request(prompt(2), 3)]}),
        Case("no new token asked for", {"requests": [request(prompt(3), 0)]}),
        Case(
            "the first new token is EOS",
            {"requests": [request(varied, 6, varied_new[0])]},
        ),
        Case(
            "EOS comes after a few new tokens",
            {"requests": [request(varied, 6, varied_new[2])]},
        ),
        Case(
            "the last new token asked for is EOS",
            {"requests": [request(varied, 3, varied_new[2])]},
        ),
        Case(
            "the EOS token's id is 0",
            {"requests": [request(zero, 6, 0)]},
        ),
        Case(
            "the EOS token stands in the prompt",
            {"requests": [request(inside, 4, int(inside[0, 1]))]},
        ),
        Case(
            "the prompt ends with EOS",
            {"requests": [request(last, 6, int(last[0, -1]))]},
        ),
        Case("a batch of two prompts", {"requests": [request(prompt(3, batch=2), 4)]}),
        Case(
            "the prompt leaves room for two tokens in the context",
            {"requests": [request(prompt(full - 2), 5)]},
        ),
        Case("the prompt fills the context", {"requests": [request(prompt(full), 3)]}),
        Case(
            "three prompts, one after the other",
            {
                "requests": [
                    request(prompt(5), 4),
                    request(prompt(2), 3),
                    request(prompt(3, batch=2), 2),
                ]
            },
        ),
    ]


def compare_generate(got: Any, expected: Any) -> str | None:
    requests = list(zip(got["returned"], expected["returned"], strict=True))
    for number, (g, e) in enumerate(requests, start=1):
        which = f" of prompt {number}" if len(requests) > 1 else ""
        difference = first(
            same_ids(g["ids"], e["ids"], f"What it returned{which}"),
            same_ids(
                g["prompt afterwards"], e["prompt afterwards"], f"`input_ids`{which}, afterwards,"
            ),
        )
        if difference is not None:
            return difference
    return same_counts(got["model"], expected["model"], "forward calls")


GENERATE = Exercise(
    name="generate.generate",
    lab="generate",
    title="The loop that turns a forward pass into text",
    points=5,
    difficulty=2,
    minutes=20,
    place="The outermost loop of every engine: prompt in, tokens out.",
    hints=(
        (
            "One step is: hand the model all ids so far with their positions, take the logits of "
            "the last position, take the best id, append it. Which three things can end the loop?"
        ),
        (
            "Positions count from 0 and there is one for every id: `torch.arange(ids.shape[1])`, "
            "expanded to the shape of the ids. `logits` is [batch, seq, vocab], so the row that "
            "predicts the next token is `logits[:, -1]`. Append with `torch.cat(..., dim=1)`: it "
            "makes a new tensor and leaves the prompt alone. Append first, then look for EOS."
        ),
        (
            "    ids = input_ids\n"
            "    room = model.config.n_positions - ids.shape[1]\n"
            "    for _ in range(min(max_new_tokens, room)):\n"
            "        position_ids = ...            # [batch, seq]\n"
            "        logits = model(ids, position_ids)\n"
            "        next_ids = ...                # [batch, 1]: argmax with keepdim=True\n"
            "        ids = torch.cat([ids, next_ids], dim=1)\n"
            "        ...                           # EOS: leave the loop\n"
            "    return ids"
        ),
    ),
    reference=reference.generate,
    driver=drivers.generate,
    cases=generate_cases,
    compare=compare_generate,
    misconceptions=misconceptions.GENERATE,
    services=counted_model,
)


# -------------------------------------------------------------------------------------- metrics


def metrics_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, start: float, n: int) -> Case:
        """The prefill takes 0.2 to 0.7 s, each step after it 0.01 to 0.11 s."""
        gaps = 0.01 + 0.1 * torch.rand(n, generator=generator, dtype=torch.float64)
        gaps[0] = 0.2 + 0.5 * torch.rand((), generator=generator)
        return Case(label, {"start": start, "token_times": (start + gaps.cumsum(0)).tolist()})

    clock = 1000 * torch.rand((), generator=generator).item()
    return [
        case("one token", 0.0, 1),
        case("two tokens, the request at time 0", 0.0, 2),
        case("one token, on a clock that is already running", clock, 1),
        case("five tokens, on a clock that is already running", clock, 5),
        case("forty tokens", clock, 40),
    ]


def compare_metrics(got: Any, expected: Any) -> str | None:
    got, expected = got["returned"], expected["returned"]
    missing = [f"`{name}`" for name in expected if name not in got]
    if missing:
        return (
            f"The result has no {', '.join(missing)}. "
            "Return Metrics(ttft=..., tpot=..., latency=..., throughput=...)."
        )
    return first(*(same_number(got[name], expected[name], f"`{name}`", 1e-6) for name in expected))


METRICS = Exercise(
    name="generate.metrics",
    lab="generate",
    title="TTFT, TPOT, latency, throughput",
    points=3,
    difficulty=1,
    minutes=10,
    place="What every serving benchmark reports, and the columns of this course's timing table.",
    hints=(
        (
            "Draw a line with the request and the new tokens on it. Each of the four figures is a "
            "distance on that line, or one divided by another."
        ),
        (
            "Between n tokens lie n - 1 gaps. TPOT is the mean gap, so one token alone has none. "
            "`start` need not be 0: subtract it wherever a time counts from the request."
        ),
        (
            "    n = len(token_times)\n"
            "    first, last = token_times[0], token_times[-1]\n"
            "    ttft = first - start\n"
            "    tpot = ... if n > 1 else None     # from first to last, over the gaps\n"
            "    latency = ...                     # from the request to the last token\n"
            "    throughput = ...                  # all n tokens, over all of the latency"
        ),
    ),
    reference=reference.metrics,
    driver=drivers.metrics,
    cases=metrics_cases,
    compare=compare_metrics,
    misconceptions=misconceptions.METRICS,
)

EXERCISES = (GENERATE, METRICS)
