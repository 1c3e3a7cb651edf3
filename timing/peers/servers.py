"""Servers that speak OpenAI's API, ours and others, to load them one after the other.

Each serves the same checkpoint in float32, on this machine only, and otherwise as it does by
default.
"""

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

from gpt import read_config
from timing.peers.worker import GRACE_SECONDS, ROOT, WAITING, PeerFailed

START_SECONDS, LOOK_SECONDS = 180, 0.1
OFFLINE = {"HF_HUB_OFFLINE": "1"}  # the model is a folder, so nothing need be looked up
SLOTS = 16  # of llama.cpp, which divides its memory among them

Command = Callable[[Path, int, Path], list[str]]


@dataclass(frozen=True)
class Server:
    """One server. command: what starts it, from the model's folder, a port and a scratch folder.

    modules, programs: what must be installed. advice: how to install it. has_name: whether clients
    ask for the model by the folder's name, not by its path.
    """

    command: Command
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    advice: str = ""
    has_name: bool = True

    @property
    def missing(self) -> str | None:
        """Why it can't be started here, or None."""
        absent = [name for name in self.modules if importlib.util.find_spec(name) is None]
        absent += [name for name in self.programs if shutil.which(name) is None]
        if not absent:
            return None
        return f"not installed: it needs {' and '.join(absent)}. {self.advice}"


def ours(folder: Path, port: int, scratch: Path) -> list[str]:
    return [sys.executable, "serve.py", "--model", str(folder), "--port", str(port)]


def transformers(folder: Path, port: int, scratch: Path) -> list[str]:
    program = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(folder)]
    return [*program, "--device", "cpu", "--host", "127.0.0.1", "--port", str(port)]


def transformers_batching(folder: Path, port: int, scratch: Path) -> list[str]:
    """Start it with continuous batching, whose pool would take most of the memory by default."""
    pool = ["--cb-num-blocks", "256", "--cb-max-batch-tokens", "256"]
    return [*transformers(folder, port, scratch), "--continuous-batching", *pool]


def llama_cpp(folder: Path, port: int, scratch: Path) -> list[str]:
    """Start it with keys and values in float32, too, and room for a longest text in each slot."""
    model = scratch / "model.gguf"
    convert = [sys.executable, "-m", "timing.peers.gguf_file", str(folder), str(model), "float32"]
    subprocess.run(convert, cwd=ROOT, check=True)
    context = str(SLOTS * read_config(folder).n_positions)
    return [
        *("llama-server", "--model", str(model), "--alias", folder.name),
        *("--parallel", str(SLOTS), "--ctx-size", context),
        *("--cache-type-k", "f32", "--cache-type-v", "f32"),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]


def vllm(folder: Path, port: int, scratch: Path) -> list[str]:
    """Start it as its documentation says; not tried, because there was no GPU."""
    return [
        *("vllm", "serve", str(folder), "--served-model-name", folder.name, "--dtype", "float32"),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]


ACCELERATE = "To install it: python -m pip install accelerate"

SERVERS = {
    "ours": Server(ours),
    "transformers": Server(transformers, ("accelerate",), advice=ACCELERATE, has_name=False),
    "transformers-batching": Server(
        transformers_batching, ("accelerate",), advice=ACCELERATE, has_name=False
    ),
    "llama.cpp": Server(
        llama_cpp,
        ("gguf",),
        ("llama-server",),
        advice="To install the package: python -m pip install gguf --constraint constraints.txt. "
        "The program comes with llama.cpp.",
    ),
    "vllm": Server(
        vllm,
        programs=("vllm",),
        advice="It needs its own version of torch, so install it in another environment, start it "
        "there, and load it with --url.",
    ),
}


@contextmanager
def started(name: str, folder: Path, scratch: Path) -> Iterator[tuple[str, str]]:
    """Start a server, and yield its address and its model's name once it answers; then stop it.

    Raises PeerFailed if it ends or doesn't answer in time.
    """
    server, port, log = SERVERS[name], free_port(), scratch / f"{name}.log"
    url, variables = f"http://127.0.0.1:{port}", {**os.environ, **WAITING, **OFFLINE}
    try:
        command = server.command(folder, port, scratch)
    except subprocess.CalledProcessError as error:
        raise PeerFailed("its model could not be converted; the reason is above.") from error
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        wait_for(url, process, log)
        yield url, folder.name if server.has_name else str(folder)
    finally:
        process.terminate()
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(url: str, process: subprocess.Popen, log: Path) -> None:
    """Wait until the server is healthy, which it is once the model is loaded."""
    latest = time.monotonic() + START_SECONDS
    with httpx2.Client(trust_env=False) as client:
        while time.monotonic() < latest:
            if process.poll() is not None:
                lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
                said = next((line for line in reversed(lines) if line.strip()), "no message")
                raise PeerFailed(f"its process ended: {said.strip()}")
            try:
                if client.get(f"{url}/health").status_code == 200:
                    return
            except httpx2.HTTPError:
                pass  # it doesn't listen yet
            time.sleep(LOOK_SECONDS)
    raise PeerFailed(f"it didn't answer within {START_SECONDS} seconds.")


def free_port() -> int:
    """Return a port that is free now; most of these servers can't choose one and tell."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]
