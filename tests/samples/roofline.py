"""What the pictures are handed."""

from tests.samples import of
from timing.machine import Machine, Work
from visuals import roofline as visuals

MACHINE = Machine(bandwidth=10e9, flops=50e9)
WORKS = [Work("prefill", 128e9, 1e9, 4.0), Work("decode", 1e9, 2e9, 0.5)]

EXAMPLES = (of(visuals.roofline, MACHINE, WORKS),)
