"""Lab 21, given: what surrounds the learner's functions in the kernel.

Read weights, steps, kernel, runner, choice and drafter, in turn; before them solutions/compiler.py.
"""
