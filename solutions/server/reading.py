"""What a request wants to know of its own prompt: each token's logprob, or the hidden states.

An engine computes logits after the last token only. But the hidden states of all tokens that it
computes pass through its runner, so they are looked at there.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from solutions.server.messages import TextRequest, TokenLogprob


class PromptReader:
    """Reads one prompt, in the chunks in which an engine computes it. A chunk may come again.

    scores: of the prompt's tokens from the second on. states: the hidden state of each token.
    """

    def __init__(self, request: TextRequest, lm_head: Callable[..., Tensor]) -> None:
        self.request, self.lm_head = request, lm_head
        self.scores: list[TokenLogprob] = []
        self.states: list[Float[Tensor, " n_embd"]] = []

    def read(self, start: int, hidden: Float[Tensor, "tokens n_embd"]) -> None:
        """Take the hidden states of the tokens from `start` on, and leave out what isn't prompt."""
        request = self.request
        if request.reads == "embedding":
            self.states[start:] = hidden[: max(0, len(request.prompt) - start)]
            return
        following = request.prompt[start + 1 : start + 1 + len(hidden)]
        if following:
            logits = self.lm_head(hidden[: len(following)])
            self.scores[start:] = scored(logits, following, request.logprobs or 0)

    def embedding(self) -> list[float]:
        return torch.stack(self.states).float().mean(dim=0).tolist() if self.states else []


def read_prompts(runner: Any, readers: dict[int, PromptReader]) -> None:
    """Let a runner show each reader the hidden states of its prompt. readers: by request."""
    forward, transformer = runner.forward, runner.transformer
    seen: list[Tensor] = []

    def showing_transformer(*inputs: Any) -> Tensor:
        hidden = transformer(*inputs)
        seen[:] = [hidden[0]]
        return hidden

    def reading_forward(batch: Sequence[Any]) -> dict[int, Tensor]:
        batch = sorted(batch, key=lambda chunk: chunk.shape)  # as the runner packs them
        logits: dict[int, Tensor] = forward(batch)
        place = 0
        for chunk in batch:
            if reader := readers.get(chunk.request):
                reader.read(chunk.start, seen[0][place : place + len(chunk.ids)])
            place += len(chunk.ids)
        return logits

    runner.transformer, runner.forward = showing_transformer, reading_forward


def scored(
    logits: Float[Tensor, "rows vocab"], ids: Sequence[int], alternatives: int
) -> list[TokenLogprob]:
    """Return the logprob of the token that follows each row, and the likeliest alternatives."""
    rows = logits[: len(ids)].float().log_softmax(dim=-1)
    chosen = rows.gather(1, torch.tensor(ids, device=rows.device)[:, None])[:, 0].tolist()
    values, tokens = rows.topk(alternatives, dim=-1) if alternatives else (rows[:, :0],) * 2
    tops = [
        list(zip(*both, strict=True)) for both in zip(tokens.tolist(), values.tolist(), strict=True)
    ]
    return [TokenLogprob(logprob, top) for logprob, top in zip(chosen, tops, strict=True)]
