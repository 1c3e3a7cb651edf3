"""Lab 1: turn forward passes into text, and measure how long that takes.

`generate` is the naive loop: it passes the whole sequence to the model at every step. The rest of
the course computes the same tokens with less work.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from gpt import GPTLMHead


def require_prompt(
    model: GPTLMHead,
    input_ids: Int[Tensor, "batch seq"],
    max_new_tokens: int,
    eos_token_id: int | None,
) -> None:
    """Raise ValueError for a request that no generation loop can serve."""
    if input_ids.ndim != 2 or input_ids.numel() == 0:
        raise ValueError(
            f"input_ids must be [batch, seq] with at least one token, not {list(input_ids.shape)}. "
            "To start from an empty text, take the model's EOS token as the prompt."
        )
    if input_ids.shape[1] > model.config.n_positions:
        raise ValueError(
            f"The prompt has {input_ids.shape[1]} tokens; the model sees at most "
            f"{model.config.n_positions}. Shorten the prompt."
        )
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens must be 0 or more, not {max_new_tokens}.")
    if eos_token_id is not None and len(input_ids) > 1:
        raise ValueError(
            "With EOS, the rows of a batch end at different steps. Pass one prompt at a time, or "
            "leave eos_token_id out; in lab 3 the prompts of a batch end independently."
        )


@torch.no_grad()
def generate(
    model: GPTLMHead,
    input_ids: Int[Tensor, "batch seq"],
    max_new_tokens: int,
    eos_token_id: int | None = None,
) -> Int[Tensor, "batch seq_and_new"]:
    """Extend the prompt greedily, one token at a time; return the prompt and the new tokens.

    Generation ends after `max_new_tokens`, or right after the EOS token (which is kept as the last
    token), or when the sequence fills the context of `model.config.n_positions` tokens, whichever
    comes first. `input_ids` is not changed.
    """
    require_prompt(model, input_ids, max_new_tokens, eos_token_id)
    ### BEGIN SOLUTION
    ids = input_ids
    room = model.config.n_positions - ids.shape[1]
    for _ in range(min(max_new_tokens, room)):
        position_ids = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        logits = model(ids, position_ids)
        next_ids = logits[:, -1].argmax(dim=-1, keepdim=True)
        ids = torch.cat([ids, next_ids], dim=1)
        if eos_token_id is not None and next_ids.item() == eos_token_id:
            break
    return ids
    ### END SOLUTION


@dataclass(frozen=True)
class Metrics:
    """How fast one request was for the person who sent it. Times are in seconds.

    ttft: time to first token, from the request to the first new token.
    tpot: time per output token, the mean gap between new tokens; None if there is only one token.
    latency: from the request to the last new token.
    throughput: new tokens per second of latency.
    """

    ttft: float
    tpot: float | None
    latency: float
    throughput: float


def metrics(start: float, token_times: Sequence[float]) -> Metrics:
    """Compute TTFT, TPOT, latency and throughput of one request.

    `start` is the time of the request, `token_times` the time of each new token, both in seconds.
    There is at least one time, and the list is not changed. TPOT is (last - first token time) /
    (n - 1), so latency = TTFT + TPOT * (n - 1). With one token, TPOT is None.
    """
    if not token_times:
        raise ValueError("There are no tokens to measure: token_times is empty.")
    ### BEGIN SOLUTION
    n = len(token_times)
    first, last = token_times[0], token_times[-1]
    return Metrics(
        ttft=first - start,
        tpot=(last - first) / (n - 1) if n > 1 else None,
        latency=last - start,
        throughput=n / (last - start),
    )
    ### END SOLUTION
