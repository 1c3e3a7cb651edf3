"""Drivers, one module a lab: they run an attempt on plain data and bring plain data back.

A driver imports nothing but `gpt` and the solutions of earlier labs, so it can run in a process
that holds no answers. It states the calls that an exercise promises to make, and nothing else.
"""
