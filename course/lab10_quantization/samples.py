"""The arguments of the pictures."""

import torch

from tests.samples import of, randn
from visuals import quantization as visuals

FORMATS = {"halves": [n / 2 for n in range(-4, 5)], "quarters": [n / 4 for n in range(-8, 9)]}
INT3 = torch.tensor([[-3, 0, 0], [1, 0, 3]], dtype=torch.int8)
UINT2 = torch.tensor([0, 1, 2, 3, 3], dtype=torch.uint8)
WEIGHT = torch.tensor([[1.0, -2.0, 3.0], [-4.0, 0.5, 2.0], [0.0, 6.0, -1.0], [0.1, 0.2, -5.0]])
CLIPPED = torch.tensor([-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 8.0])
SCALES = torch.tensor([0.5, 1.0, 2.0, 4.0])
ERRORS = {
    "rounding": torch.tensor([1.0, 2.0, 4.0, 8.0]),
    "clipping": torch.tensor([90.0, 6.0, 1.0, 0.0]),
}
CHOSEN = {"min-max": 4.0, "99 %": 1.0, "least squared error": 2.0}
ACTIVATIONS = torch.tensor([[1.0, -40.0, 2.0, 0.5], [-2.0, 10.0, 1.0, 0.25]])
ROWS = torch.tensor([[0.5, -1.0], [0.1, 0.05], [2.0, 0.0], [1.0, -4.0]])
SMOOTHED = ACTIVATIONS, ACTIVATIONS / 2, ROWS, ROWS * 2
POINTS = {
    "int8": (8.06, -0.0003, 0.0001),
    "int4": (4.06, 0.006, 0.0015),
    "GPTQ, 3 bits": (3.06, 0.019, 0.003),
    "int3": (3.06, 0.06, 0.005),
    "int2": (2.06, 1.4, 0.05),
    "float32": (32, 0, 0),
}
NORMAL = randn(64, 6, seed=1)


def to_steps(weight: torch.Tensor, bits: int, grain: str) -> torch.Tensor:
    """Round to multiples of a step that differs for each number of bits and each grain."""
    step = {"tensor": 1.0, "channel": 0.5, "group": 0.25}[grain] / 2**bits * 4
    return (weight / step).round() * step


METHODS = {f"a method with a name, {n}": (4.06, n // 3 / 1000, 0.001) for n in range(20)}

EXAMPLES = (
    of(visuals.number_line, FORMATS, 0.7),
    of(visuals.codes_histogram, {"int3": INT3}, {"int3": range(-3, 4)}),
    of(visuals.codes_histogram, {"": torch.zeros(1).char()}, {"": range(-127, 128)}),
    of(visuals.grain, WEIGHT, 2),
    of(visuals.grain, torch.zeros(1, 1), 1),
    of(visuals.clipping, CLIPPED, SCALES, ERRORS, CHOSEN, 2),
    of(visuals.channels, *SMOOTHED),
    of(visuals.channels, torch.tensor([[0.0, 0, 0, 5]]), None, ROWS, None),
    of(visuals.ahead, torch.tensor([1.0, 3.0]), torch.tensor([1.0, 2.0])),
    of(visuals.pareto, POINTS),
    of(visuals.pareto, METHODS),
    of(visuals.pareto, {"one": (4, 0.1, 0.01)}, "KB of cache"),
    of(visuals.weights_and_grid, NORMAL, NORMAL, "tensor"),
    of(visuals.explore_bits, torch.nn.Parameter(NORMAL), to_steps),
)
