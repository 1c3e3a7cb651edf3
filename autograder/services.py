"""What the trusted side lends a driver: small models with random weights, whose work is counted."""

import copy
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from autograder.failure import TooMuchWork
from gpt import GPTConfig, GPTLMHead

# By a part of the weight's name, times 1/sqrt(inputs); 1 for the others. With these, greedy output
# varies, and every wrong position and every hidden prefix that we tried changed it.
SCALES = {"wpe": 2.0, "c_attn": 3.0, "attn.c_proj": 8.0, "mlp.c_proj": 4.0}

FORWARDS, TOKENS = "forward calls", "tokens computed"


class CountedModel:
    """A model as an exercise sees it: what a loop may ask of it, and a count of its work.

    Called as the model is, model(inputs, position_ids), with a kv_cache behind them where the model
    takes one. Its embeddings are copies. The counts stand on this side, where an attempt can't
    change them.
    """

    training = False

    def __init__(self, model: Any) -> None:
        self.config: GPTConfig = model.config
        self._model = model
        self._forwards = self._tokens = 0
        self._most: Mapping[str, int] = {}
        own = model.transformer
        self.transformer = SimpleNamespace(
            wte=copy.deepcopy(own.wte), wpe=copy.deepcopy(own.wpe), h=range(len(own.h))
        )

    def __call__(
        self,
        inputs: Int[Tensor, "batch seq"],
        position_ids: Int[Tensor, "batch seq"],
        *kv_cache: Any,
        **named_kv_cache: Any,
    ) -> Any:
        self._forwards += 1
        self._tokens += inputs.numel() if isinstance(inputs, Tensor) else 0
        for what, most in self._most.items():
            if self.counts()[what] > most:
                raise TooMuchWork(
                    f"It was stopped after {most} {what}, several times what is needed. "
                    "Does the loop come to its end?"
                )
        with torch.no_grad():
            return self._model(inputs, position_ids, *kv_cache, **named_kv_cache)

    forward = __call__

    def eval(self) -> "CountedModel":
        return self

    def to(self, *device: Any, **named: Any) -> "CountedModel":
        return self

    def train(self, mode: bool = True) -> "CountedModel":
        return self

    def parameters(self) -> Iterator[Tensor]:
        yield from self.transformer.wte.parameters()
        yield from self.transformer.wpe.parameters()

    def counts(self) -> dict[str, int]:
        return {FORWARDS: self._forwards, TOKENS: self._tokens}

    def limit(self, counts: Mapping[str, int]) -> None:
        self._most = counts

    def untouched(self) -> bool:
        own = self._model.transformer
        return all(
            torch.equal(shown.weight, real.weight)
            for shown, real in [(self.transformer.wte, own.wte), (self.transformer.wpe, own.wpe)]
        )


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
