"""Lab 13, given: what stands before several servers, of ours or others that speak OpenAI's API.

Read replicas, prefixes, relay, figures and app, in turn. `processes` starts servers on this
machine, and `on_ray` on a cluster.
"""

__all__ = ["app", "on_ray", "processes"]
