"""Small models with random weights, whose greedy texts vary and depend on every position."""

import hashlib
import math
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpt import GPTConfig, GPTLMHead

# By a part of the weight's name, times 1/sqrt(inputs); 1 for the others. With these, greedy output
# varies, and every wrong position and every hidden prefix that we tried changed it.
SCALES = {"wpe": 2.0, "c_attn": 3.0, "attn.c_proj": 8.0, "mlp.c_proj": 4.0}

Normals = Callable[[Sequence[int]], Tensor]  # of a shape: float64, mean 0, standard deviation 1


def normals(seed: int | bytes) -> Normals:
    """Random numbers, a tensor a call.

    seed: a number, of which torch keeps 32 bits, so that from some of the numbers the others can be
        found in minutes; or a key of 128 bits or more, from which they can't.
    """
    if isinstance(seed, int):
        generator = torch.Generator().manual_seed(seed)
        return lambda shape: torch.randn(shape, generator=generator, dtype=torch.float64)
    calls = count()
    return lambda shape: secret_normals(seed + next(calls).to_bytes(8, "big"), shape)


def secret_normals(key: bytes, shape: Sequence[int]) -> Tensor:
    """The output of SHAKE-256 (FIPS 202) as uniforms of 52 bits, through the inverse of the normal
    distribution function."""
    size = math.prod(shape)
    words = np.frombuffer(hashlib.shake_256(key).digest(8 * size), dtype="<u8") >> 12
    uniforms = (torch.from_numpy(words.astype(np.float64)) + 0.5) / 2**52
    return torch.special.ndtri(uniforms).reshape(shape)


def random_weights(config: GPTConfig, seed: int | bytes) -> dict[str, Tensor]:
    """A state_dict for GPTLMHead, and for every model that keeps its names, in float64.

    The weights are large. Small ones leave the hidden state near the token's own embedding: the
    model repeats one token whatever the positions and the mask, and hides every error in them.
    """
    normal, weights = normals(seed), {}
    for name, parameter in GPTLMHead(config).state_dict().items():
        numbers = normal(parameter.shape)
        if ".ln_" in name and name.endswith("weight"):
            weights[name] = 1 + 0.1 * numbers
        elif name.endswith("bias"):
            weights[name] = 0.1 * numbers
        else:
            scale = next((s for part, s in SCALES.items() if part in name), 1.0)
            fan_in = 1 if "wte" in name or "wpe" in name else parameter.shape[0]
            weights[name] = scale / fan_in**0.5 * numbers
    return weights


def random_model(cls: Callable[[GPTConfig], Any], config: GPTConfig, seed: int | bytes) -> Any:
    """A model of `cls` (GPTLMHead, CachedLMHead) with `random_weights`, in float64."""
    model = cls(config).double()
    model.load_state_dict(random_weights(config, seed))
    return model.eval().requires_grad_(False)
