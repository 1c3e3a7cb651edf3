"""The parts of timed_generate.py: workloads, techniques, verified and timed rows."""
