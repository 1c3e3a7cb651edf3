"""Measure a server under load: `python -m timing.load --help`.

Read `client` (one request), `requests` (what is sent), `runs` (a server's unit, its verification,
and loads), `printed` and `__main__`, in turn.
"""
