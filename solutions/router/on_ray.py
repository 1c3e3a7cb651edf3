"""Serve on Ray: the same app in as many replicas as the load needs, on one machine or on many.

    python -m solutions.router.on_ray --model fable --replicas 2 --port 8000

Ray starts replicas where the cluster has room, sends each request to one that has few, adds some
under load, and starts a replica again that has died. But it answers 500 for the requests that the
dead one had accepted. So the router is in front of it, and asks again if no token has come.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve
from ray.serve.config import BackpressureConfig

from solutions.router.app import new_router_app
from solutions.server.connections import DrainingServer, listening
from solutions.server.settings import TECHNIQUES, Settings

TRIES, PAUSE = 5, 0.5  # Ray's router, each time after a pause: it must notice first what has died


def main(arguments: Sequence[str]) -> int:
    parsed = argparse.ArgumentParser("python -m solutions.router.on_ray")
    add = parsed.add_argument
    add("--model", default="fable", help="a shipped model, a folder, or a name on the hub")
    add("--technique", choices=TECHNIQUES, default="engine")
    add("--replicas", type=int, default=2, help="at least so many")
    add("--most-replicas", type=int, default=0, help="under load; by default not more")
    add("--threads", type=int, default=1, help="of each replica, which Ray reserves cores for")
    add("--port", type=int, default=8000, help="on 127.0.0.1")
    options = vars(parsed.parse_args(arguments))
    try:
        serve_on_ray(options.pop("port"), options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def serve_on_ray(port: int, options: dict[str, Any]) -> None:
    """Serve on a port of this machine until a signal comes. Raises ValueError if it is taken."""
    with listening("127.0.0.1", port) as public:
        with listening("127.0.0.1", 0) as free:
            inner = free.getsockname()[1]
        deployed = application(options)
        ray.init(logging_level="WARNING", log_to_driver=False)
        serve.start(http_options={"host": "127.0.0.1", "port": inner})
        try:
            serve.run(deployed)
            settings, upstream = Settings(), [f"http://127.0.0.1:{inner}"] * TRIES
            app = new_router_app(settings, upstream, pause=PAUSE)
            print(f"Serving on Ray at http://127.0.0.1:{public.getsockname()[1]}", flush=True)
            DrainingServer(app, settings, app.state.router.drain).run([public])
        finally:
            serve.shutdown()
            ray.shutdown()


def application(options: dict[str, Any]) -> Any:
    """Return what Ray deploys. given: the options above without the port, and `names`, by which
    clients may call, as a cluster's configuration has them.

    Requests beyond what the replicas and the queue hold get a 429.
    """
    options = {"replicas": 2, "most_replicas": 0, "threads": 1, "names": (), **options}
    names = "replicas", "most_replicas", "threads"
    replicas, most, threads = (int(options.pop(name)) for name in names)
    settings = Settings(threads=threads, hosts=tuple(options.pop("names")), **options)

    def app() -> FastAPI:  # called in each replica
        from solutions.server.app import new_app
        from solutions.server.engine_thread import EngineThread
        from solutions.server.loaded import load

        return new_app(settings, EngineThread(load(settings)))

    deployment = serve.deployment(
        serve.ingress(app)(),
        name="engine",
        max_ongoing_requests=settings.max_running,
        max_queued_requests=settings.max_waiting,
        backpressure_config=BackpressureConfig(status_code=429, retry_after_s=1),
        autoscaling_config={
            "min_replicas": replicas,
            "max_replicas": max(replicas, most),
            "target_ongoing_requests": settings.max_running // 2,
        },
        ray_actor_options={"num_cpus": threads},
        graceful_shutdown_timeout_s=settings.drain,
    )
    return deployment.bind()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
