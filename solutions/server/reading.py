"""What a request wants to know of its own prompt: each token's logprob, or the hidden states.

An engine computes logits after the last token only. But the hidden states of all tokens that it
computes pass through its runner, so they are looked at there.
"""

from collections.abc import Callable, Sequence

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
