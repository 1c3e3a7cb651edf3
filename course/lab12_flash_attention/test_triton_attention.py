"""The Triton kernel of lab 12 against the tiles that a learner writes, on a GPU or interpreted."""

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from solutions.flash_attention import attend_in_tiles

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="module")
def kernel() -> Callable[..., Any]:
    """Compiled where there is a GPU, else interpreted: that is chosen before triton is imported."""
    if DEVICE == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    from solutions.kernels.triton_attention import flash_attention_triton

    return flash_attention_triton


def parts(heads: int, q_len: int, k_len: int, head_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def random(tokens: int) -> Tensor:
        return torch.randn(heads, tokens, head_dim, generator=generator).to(DEVICE)

    return random(q_len), random(k_len), random(k_len)


@pytest.mark.needs("triton")
@pytest.mark.parametrize(
    "sizes",
    [
        (1, 1, 1, 16),
        (2, 15, 15, 16),
        (2, 16, 16, 32),
        (1, 17, 17, 32),
        (2, 5, 37, 16),
        (1, 1, 40, 64),
    ],
)
def test_the_kernel_does_what_the_tiles_do(kernel, sizes):
    given = parts(*sizes)
    found = kernel(*given)
    for one, other in zip(found, attend_in_tiles(*given, 16, 16), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=5e-6)


@pytest.mark.needs("triton")
def test_scores_in_the_thousands_do_not_overflow(kernel: Callable[..., Any]) -> None:
    queries, keys, values = parts(1, 20, 20, 16)
    given = 100 * queries.round(), 10 * keys.round(), values
    for one, other in zip(kernel(*given), attend_in_tiles(*given, 16, 16), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-5)


@pytest.mark.needs("triton")
@pytest.mark.parametrize("sizes", [(1, 4, 4, 8), (1, 4, 4, 24), (1, 5, 4, 16)])
def test_what_it_cannot_do_is_refused(kernel, sizes):
    with pytest.raises(ValueError, match="The kernel takes heads of 16, 32, 64 or more"):
        kernel(*parts(*sizes))


def test_without_triton_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "solutions.kernels.triton_attention", raising=False)
    with pytest.raises(ImportError, match=r"pip install -e \"\.\[gpu\]\""):
        import solutions.kernels.triton_attention  # noqa: F401
