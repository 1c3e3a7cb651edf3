"""What the trusted side lends a driver: small models with random weights, whose work is counted."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from gpt import GPTConfig, GPTLMHead

# By a part of the weight's name, times 1/sqrt(inputs); 1 for the others. With these, greedy output
# varies, and every wrong position and every hidden prefix that we tried changed it.
SCALES = {"wpe": 2.0, "c_attn": 3.0, "attn.c_proj": 8.0, "mlp.c_proj": 4.0}


class CountedModel:
    """A model as an exercise sees it: its config and its forward, and the work it has done.

    Called as the model is, model(inputs, position_ids), with a kv_cache behind them where the model
    takes one. The counts stand on this side, where an attempt can't change them.
    """

    def __init__(self, model: Any) -> None:
        self.config: GPTConfig = model.config
        self._model = model
        self._lengths: list[int] = []
        self._tokens = 0

    def __call__(
        self,
        inputs: Int[Tensor, "batch seq"],
        position_ids: Int[Tensor, "batch seq"],
        *kv_cache: Any,
        **named_kv_cache: Any,
    ) -> Any:
        self._lengths.append(inputs.shape[-1])
        self._tokens += inputs.numel()
        with torch.no_grad():
            return self._model(inputs, position_ids, *kv_cache, **named_kv_cache)

    forward = __call__

    def eval(self) -> "CountedModel":
        return self

    def parameters(self) -> Iterator[Tensor]:
        """One empty tensor: enough for an attempt that asks on which device the model is."""
        yield next(self._model.parameters())[:0]

    def counts(self) -> dict[str, int]:
        return {
            "forward calls": len(self._lengths),
            "tokens computed": self._tokens,
            "longest forward": max(self._lengths, default=0),
        }


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
