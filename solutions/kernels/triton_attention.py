"""Lab 12's loop as a GPU kernel, in Triton: one program for each tile of queries of each head.

It needs the package triton (1 GB, Linux only), which the labs don't require. Without a GPU the
kernel can be interpreted on a CPU, slowly: set TRITON_INTERPRET=1 before you import this module.

Source: Dao, "FlashAttention-2", 2023; Triton's tutorial "Fused Attention".
"""

import torch
from jaxtyping import Float
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError(
        'The kernel needs triton: on Linux, run pip install -e ".[gpu]" in the course\'s folder. '
        "Without a GPU, also set TRITON_INTERPRET=1 before Python starts."
    ) from error

BLOCK = 16  # queries and keys of a tile: the minimum of a matrix unit


def flash_attention_triton(
    queries: Float[Tensor, "heads q_len head_dim"],
    keys: Float[Tensor, "heads k_len head_dim"],
    values: Float[Tensor, "heads k_len head_dim"],
) -> tuple[Float[Tensor, "heads q_len head_dim"], Float[Tensor, "heads q_len"]]:
    """Compute causal attention in float32; return output and lse, as `attend_in_tiles` does.

    The queries are the last of the k_len tokens. Raises ValueError if head_dim is no power of 2
    from 16 on, or if there are more queries than keys.
    """
    heads, q_len, head_dim = queries.shape
    k_len = keys.shape[1]
    if head_dim < 16 or head_dim & (head_dim - 1) or q_len > k_len:
        raise ValueError(
            "The kernel takes heads of 16, 32, 64 or more numbers, and no more queries than keys; "
            f"these have {head_dim} numbers, {q_len} queries and {k_len} keys."
        )
    inputs = [part.float().contiguous() for part in (queries, keys, values)]
    output, lse = torch.empty_like(inputs[0]), inputs[0].new_empty(heads, q_len)
    programs = triton.cdiv(q_len, BLOCK), heads
    one_tile[programs](*inputs, output, lse, q_len, k_len, head_dim**-0.5, head_dim, BLOCK)
    return output, lse


@triton.jit
def one_tile(  # noqa: ANN201
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    output: tl.tensor,
    lse: tl.tensor,
    q_len: tl.int32,
    k_len: tl.int32,
    scale: tl.float32,
    head_dim: tl.constexpr,
    block: tl.constexpr,
):
    """Run one program: one tile of queries against all keys that they see.

    The five tensors are addresses in slow memory. All named values are in fast memory; only
    `tl.load` and `tl.store` access slow memory.
    """
    head, dims = tl.program_id(1), tl.arange(0, head_dim)
    rows = tl.program_id(0) * block + tl.arange(0, block)
    before, is_query = k_len - q_len, rows < q_len
    own = (head * q_len + rows)[:, None] * head_dim + dims
    q = tl.load(queries + own, mask=is_query[:, None], other=0.0) * scale
    peak = tl.full([block], -float("inf"), tl.float32)
    total = tl.zeros([block], tl.float32)
    weighted = tl.zeros([block, head_dim], tl.float32)
    for first in range(0, tl.minimum(before + (tl.program_id(0) + 1) * block, k_len), block):
        columns = first + tl.arange(0, block)
        theirs = (head * k_len + columns)[:, None] * head_dim + dims
        k = tl.load(keys + theirs, mask=(columns < k_len)[:, None], other=0.0)
        v = tl.load(values + theirs, mask=(columns < k_len)[:, None], other=0.0)
        seen = (columns[None, :] <= before + rows[:, None]) & (columns < k_len)[None, :]
        scores = tl.where(seen, tl.dot(q, tl.trans(k), input_precision="ieee"), -float("inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))  # every query sees key 0: it is finite
        kept = tl.exp(peak - new_peak)
        weights = tl.exp(scores - new_peak[:, None])
        total = total * kept + tl.sum(weights, 1)
        weighted = weighted * kept[:, None] + tl.dot(weights, v, input_precision="ieee")
        peak = new_peak
    tl.store(output + own, weighted / total[:, None], mask=is_query[:, None])
    tl.store(lse + head * q_len + rows, peak + tl.log(total), mask=is_query)
