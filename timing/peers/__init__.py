"""Engines that people use, beside ours on the table: each optional, each in a process of its own.

Never two engines in one process: each brings a pool of threads, and the pools fight for the cores.
`catalogue` lists the engines, `row` puts one on the table, `worker` talks to its process, which is
`__main__`. The other files each drive one engine, and only that process imports them.
"""
