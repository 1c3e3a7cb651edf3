"""The roofline shows what it is handed."""

from timing.machine import Machine, Work
from visuals.roofline import roofline


def test_roofline_draws_each_measurement_at_its_intensity_and_speed():
    machine = Machine(bandwidth=10e9, flops=50e9)
    works = [Work("prefill", 128e9, 1e9, 4.0), Work("decode", 1e9, 2e9, 0.5)]
    (axes,) = roofline(machine, works).axes
    points = {(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines[2:]}
    assert points == {(128, 32), (0.5, 2)}
    assert {"prefill", "decode"} <= {text.get_text() for text in axes.texts}
    low, high = axes.get_xlim()
    assert low < 0.5
    assert high > 128
