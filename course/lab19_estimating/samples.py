"""What the pictures are handed."""

import math

import torch

from tests.samples import of
from visuals import estimating as visuals

COUNTS = {
    "small": {"embedding": 3e6, "matrices": 65e5, "vectors": 5e5, "head": 0, "total": 1e7},
    "large": {"embedding": 5e8, "matrices": 89e8, "vectors": 1e8, "head": 5e8, "total": 1e10},
}


def both(batch: int, context: int = 0) -> tuple[float, float]:
    """The seconds of reading and of computing."""
    return (16 + batch * context / 100) / 1000, batch / 1000


def ridge(context: int) -> float:
    return 16 / (1 - context / 100) if context < 100 else math.inf


PRICES = {"fast": [(0.01, 4.0), (0.012, 1.0), (0.03, 0.5)], "slow": [(0.05, 3.0), (0.1, 2.0)]}
CURVES = {1e18: ([1e8, 3e8, 1e9], [3.2, 3.0, 3.1]), 1e19: ([3e8, 1e9, 3e9], [2.9, 2.7, 2.8])}
OPTIMA = [(3e8, 3.0), (1e9, 2.7)]
ALPHAS, BETAS = [0.2, 0.3, 0.4], [0.1, 0.3, 0.5, 0.7]
ERRORS = torch.tensor([[4.0, 3, 3, 4], [3, 1, 2, 3], [3, 2, 3, 5]]) / 100
FITS = [(7e10, 1.4e12), (4e10, 2.4e12), (9e10, 1e12)]

EXAMPLES = (
    of(visuals.parameter_shares, COUNTS),
    of(visuals.step_times, both, 16.0),
    of(visuals.step_times, both, math.inf),
    of(visuals.explore_steps, both, ridge, [0, 50, 100]),
    of(visuals.price_curves, PRICES, 0.02),
    of(visuals.isoflop_curves, CURVES, OPTIMA),
    of(visuals.error_map, ALPHAS, BETAS, ERRORS, {"the true law": (0.3, 0.3)}),
    of(visuals.optima_cloud, FITS, {"the true law": (7.2e10, 1.33e12)}),
)
