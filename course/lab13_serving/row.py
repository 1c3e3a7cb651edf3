"""Lab 13: the engine behind an HTTP server."""

from importlib.util import find_spec

from course.lab07_engine.row import limits_for
from timing.table import Absent, Bench, Prepared, Rows
from timing.table.workloads import LENGTHS, RAGGED

PACKAGES = "fastapi", "httptools", "httpx2", "prometheus_client", "uvicorn"


def serve(bench: Bench) -> Prepared:
    """Prepare the row `engine` behind HTTP: the difference is what HTTP costs."""
    if bench.device.type != "cpu":
        return Absent("the server computes on the processor.")
    if not all(map(find_spec, PACKAGES)):
        return Absent("it needs the server's packages. Install them: pip install -e '.[serve]'")
    from timing.table.over_http import OverHTTP  # needs these packages

    about = "the engine behind an HTTP server, each answer a stream of events (lab 13)"
    return OverHTTP(about, bench.folder, limits_for)


ROWS: Rows = {"serve": dict.fromkeys([LENGTHS, RAGGED], serve)}
