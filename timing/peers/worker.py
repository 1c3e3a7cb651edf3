"""One engine's process, as the table sees it: orders go in, answers come back, or a reason."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Timer
from typing import Any, Self

from timing.peers.engine import Ids

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "timing.peers"]
LOAD_SECONDS, ANSWER_SECONDS = 600, 600  # after which an engine is taken to hang
GRACE_SECONDS = 5  # for a process that has closed its side of the wire to end

# Read when an engine's thread pool is made. A pool whose threads wait by spinning would take the
# cores from the engine that is timed next.
THREADS = "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"
WAITING = {"OMP_WAIT_POLICY": "passive", "TOKENIZERS_PARALLELISM": "false"}


class PeerFailed(Exception):
    """Why an engine is not on the table, in a sentence."""


class Worker:
    """A process with one engine in it: `command`, whose stderr goes to the file `log`.

    Raises PeerFailed where it ends, or does not answer in time; the process is gone then.
    """

    def __init__(self, command: list[str], threads: int, log: Path) -> None:
        self.log = log
        variables = {**os.environ, **WAITING, **dict.fromkeys(THREADS, str(threads))}
        with open(log, "wb") as stderr:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=variables, text=True, encoding="utf-8",
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
            )  # fmt: skip
        self.answer(LOAD_SECONDS)

    def serve(
        self, prompts: list[Ids], new_tokens: list[int], size: int
    ) -> tuple[list[Ids], list[list[float]]]:
        """The new tokens of each request, and when they were there, in seconds from the start."""
        assert self.process.stdin is not None
        order = {"prompts": prompts, "new_tokens": new_tokens, "size": size}
        with suppress(OSError):  # it has ended; that there is no answer says so
            print(json.dumps(order), file=self.process.stdin, flush=True)
        done = self.answer(ANSWER_SECONDS)
        return done["outputs"], done["token_times"]

    def answer(self, limit: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        late = Event()

        def stop() -> None:
            late.set()
            self.process.kill()

        timer = Timer(limit, stop)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        if line.endswith("\n"):
            return json.loads(line)
        with suppress(subprocess.TimeoutExpired):  # its own exit status says more than being killed
            self.process.wait(GRACE_SECONDS)
        self.close()
        if late.is_set():
            raise PeerFailed(f"it was stopped after {limit:,.0f} seconds without an answer.")
        raise PeerFailed(f"its process ended: {self.last_words()}")

    def last_words(self) -> str:
        if self.process.returncode < 0:  # what it wrote before is about other things
            return f"signal {signal.Signals(-self.process.returncode).name}."
        lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return said[-1] if said else f"exit status {self.process.returncode}, without a word."

    def close(self) -> None:
        """End the process; a second time does nothing."""
        self.process.kill()
        self.process.communicate()


class Workers:
    """The processes of all engines, started when they are first asked for, ended together."""

    def __enter__(self) -> Self:
        self.scratch = TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True)
        self.running: dict[tuple[str, Path, int], Worker] = {}
        self.unloadable: dict[tuple[str, Path, int], PeerFailed] = {}
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self.running.values():
            worker.close()
        self.scratch.cleanup()

    def get(self, name: str, folder: Path, threads: int) -> Worker:
        """The process of an engine with so many threads. Raises PeerFailed where it cannot load."""
        key = name, folder, threads
        if key in self.unloadable:
            raise self.unloadable[key]
        if key not in self.running or self.running[key].process.poll() is not None:
            scratch, log = Path(self.scratch.name), f"{name}-{threads}.log"
            arguments = [name, str(folder.resolve()), str(threads), str(scratch)]
            try:
                self.running[key] = Worker([*COMMAND, *arguments], threads, scratch / log)
            except PeerFailed as failure:
                self.unloadable[key] = failure
                raise
        return self.running[key]
