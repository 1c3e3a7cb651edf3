"""What a request changes in the model's logits before lab 5's pipeline: penalties, biases, EOS.

Lab 5's repetition penalty looks at the whole text. These two look at the answer alone, and are
subtracted: so they come first, as in vLLM.

Source: OpenAI, "API reference" (presence_penalty, frequency_penalty, logit_bias).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from solutions.decoding import NEVER


@dataclass(frozen=True)
class Adjustments:
    """presence: subtracted from the logit of each token that the answer has. frequency: subtracted
    once for each time. bias: added to a token's logit. min_tokens: while the answer is shorter,
    none of `ends` can come.
    """

    presence: float = 0.0
    frequency: float = 0.0
    bias: dict[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    ends: tuple[int, ...] = ()

    def apply(
        self,
        logits: Float[Tensor, "drafts+1 vocab"],
        answer: Sequence[int],
        drafts: Sequence[int] = (),
    ) -> Float[Tensor, "drafts+1 vocab"]:
        """Return new logits for the tokens after the answer so far and after each draft."""
        adjusted = logits.clone()
        for place, row in enumerate(adjusted):
            written = torch.tensor([*answer, *drafts[:place]], dtype=torch.long, device=row.device)
            counts = written.bincount(minlength=len(row))[: len(row)]
            row -= self.frequency * counts + self.presence * (counts > 0)
            if len(written) < self.min_tokens:
                row[list(self.ends)] = NEVER
        adjusted[:, list(self.bias)] += adjusted.new_tensor(list(self.bias.values()))
        return adjusted
