"""Measuring: the workloads, techniques and table of timed_generate.py, and clocks for labs."""
