"""Measuring: for timed_generate.py its workloads, techniques and table, for labs their clocks."""
