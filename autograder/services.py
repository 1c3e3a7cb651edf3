"""What the trusted side lends a driver: small models with random weights, whose work is counted."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from autograder.failure import TooMuchWork
from autograder.sandbox.shown import ShownModel
from gpt import GPTConfig, GPTLMHead

# By a part of the weight's name, times 1/sqrt(inputs); 1 for the others. With these, greedy output
# varies, and every wrong position and every hidden prefix that we tried changed it.
SCALES = {"wpe": 2.0, "c_attn": 3.0, "attn.c_proj": 8.0, "mlp.c_proj": 4.0}

MOST_TOKENS = 1024  # of one forward; the cases have some hundred

FORWARDS, TOKENS = "forward calls", "tokens computed"
MOVED = "numbers moved"  # to and from slow memory


class CountedModel(ShownModel):
    """A model whose work is counted on this side, where an attempt can't change the counts."""

    lends = frozenset({""})  # that it can be called

    def __init__(self, model: Any) -> None:
        own = model.transformer
        super().__init__(model.config, own.wte.weight, own.wpe.weight)
        self._model = model
        self._forwards = self._tokens = 0
        self._most: Mapping[str, int] = {}

    def __call__(
        self,
        inputs: Int[Tensor, "batch seq"],
        position_ids: Int[Tensor, "batch seq"],
        *kv_cache: Any,
        **named_kv_cache: Any,
    ) -> Any:
        tokens = inputs.numel() if isinstance(inputs, Tensor) else 0
        if tokens > MOST_TOKENS:
            raise TooMuchWork(f"It was stopped at a forward over {tokens:,} tokens.")
        self._forwards += 1
        self._tokens += tokens
        for what, most in self._most.items():
            if self.counts()[what] > most:
                raise TooMuchWork(
                    f"It was stopped after {most} {what}, several times what is needed. "
                    "Does the loop come to its end?"
                )
        with torch.no_grad():
            return self._model(inputs, position_ids, *kv_cache, **named_kv_cache)

    def counts(self) -> dict[str, int]:
        return {FORWARDS: self._forwards, TOKENS: self._tokens}

    def limit(self, counts: Mapping[str, int]) -> None:
        self._most = counts

    def untouched(self) -> bool:
        own = self._model.transformer
        pairs = zip(self.embeddings(), [own.wte.weight, own.wpe.weight], strict=True)
        return all(torch.equal(shown, real) for shown, real in pairs)


def public_names(thing: Any) -> frozenset[str]:
    """The names of an object that whoever borrows it may use."""
    return frozenset(name for name in dir(thing) if not name.startswith("_"))


def random_weights(config: GPTConfig, seed: int) -> dict[str, Tensor]:
    """A state_dict for GPTLMHead, and for every model that keeps its names, in float64.

    The weights are large. Small ones leave the hidden state near the token's own embedding: the
    model repeats one token whatever the positions and the mask, and hides every error in them.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(shape: torch.Size, scale: float) -> Tensor:
        return scale * torch.randn(shape, generator=generator, dtype=torch.float64)

    weights = {}
    for name, parameter in GPTLMHead(config).state_dict().items():
        if ".ln_" in name and name.endswith("weight"):
            weights[name] = 1 + normal(parameter.shape, 0.1)
        elif name.endswith("bias"):
            weights[name] = normal(parameter.shape, 0.1)
        else:
            scale = next((s for part, s in SCALES.items() if part in name), 1.0)
            fan_in = 1 if "wte" in name or "wpe" in name else parameter.shape[0]
            weights[name] = normal(parameter.shape, scale / fan_in**0.5)
    return weights


def random_model(cls: Callable[[GPTConfig], Any], config: GPTConfig, seed: int) -> Any:
    """A model of `cls` (GPTLMHead, CachedLMHead) with `random_weights`, in float64."""
    model = cls(config).double()
    model.load_state_dict(random_weights(config, seed))
    return model.eval().requires_grad_(False)
