"""Lab 13, given: what serves one engine, around the lab's pieces.

`here` serves in a notebook, and `app` is the app, for any ASGI server. "The life of a request" in
solutions/README.md tells the order in which a request meets the other files.
"""

__all__ = [
    *("app", "connections", "engine_process", "engine_thread", "events", "formats", "here"),
    *("loaded", "metrics", "protocol", "settings", "terminal", "tokens", "web"),
]
