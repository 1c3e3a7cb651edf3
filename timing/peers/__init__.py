"""Widely used engines, to compare ours with on the table. Each is optional.

Each engine runs in a process of its own, because every engine has a pool of threads, and two pools
in one process compete for the cores. `catalogue` lists the engines, `row` makes an engine's row of
the table, `worker` talks to its process, and `__main__` is that process. The other files each drive
one engine, and only its process imports them.
"""
