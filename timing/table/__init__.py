"""What timed_generate.py is made of: workloads, techniques, verified and timed rows."""
