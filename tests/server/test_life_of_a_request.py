"""The page "The life of a request" in solutions/README.md, held against a request's real way."""

import re
import threading
from pathlib import Path

import httpx2
import pytest

from solutions.server.here import serve_here
from tests.common.clients import ROOT, body, is_whole
from tests.server.test_faults import eventually

SOLUTIONS = f"{ROOT / 'solutions'}/"
HANDED_OVER = "server/engine_thread.py"  # before that, the engine's thread is only idle


@pytest.fixture
def traced():
    """A server, and the files of solutions/ that its threads enter, in order."""
    entered: dict[str, None] = {}

    def note(frame, event, argument):
        file = frame.f_code.co_filename
        is_idle = HANDED_OVER not in entered and threading.current_thread().name == "engine"
        if event == "call" and file.startswith(SOLUTIONS) and not is_idle:
            entered.setdefault(file.removeprefix(SOLUTIONS))

    threading.setprofile(note)
    with serve_here() as server:
        threading.setprofile(None)
        server.app.state.service.engine.vocabulary.result()  # made by another thread
        yield server, entered


def test_a_request_enters_the_files_that_the_page_names_in_their_order(traced):
    server, entered = traced
    page = Path(SOLUTIONS, "README.md").read_text(encoding="utf-8")
    [steps] = re.findall(r"## The life of a request\n.*?\n(1\. .*?)\n\n(?!\d\.)", page, re.DOTALL)
    state = server.server.server_state
    for _ in range(2):  # the first request also makes what later ones find
        eventually(lambda: is_whole(server) and not (state.connections or state.tasks))
        entered.clear()
        httpx2.post(f"{server.url}/v1/completions", json=body(stream=True), timeout=60)
    print(f"A request enters {len(entered)} files.")
    assert list(entered) == list(dict.fromkeys(re.findall(r"`([\w/]+\.py)`", steps)))
