"""What stands behind timed_generate.py: workloads, techniques, verification, table, plot."""
