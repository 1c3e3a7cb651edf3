"""Start an engine's process, send it orders and receive its answers, or the reason it failed."""

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
from timing.table import NotTimed

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "timing.peers"]
LOAD_SECONDS, ANSWER_SECONDS = 600, 600  # after these, an engine counts as hanging
LONGEST_ANSWER = 1 << 26  # characters; an engine whose answer is longer has failed
GRACE_SECONDS = 5  # until a process that has closed its side of the wire must have ended

# An engine reads these when it creates its thread pool. Threads that wait by spinning would take
# cores from the engine that is timed next.
THREADS = "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"
WAITING = {"OMP_WAIT_POLICY": "passive", "TOKENIZERS_PARALLELISM": "false"}


class PeerFailed(NotTimed):
    """An engine's process has failed. The message is a sentence that says why."""


class Worker:
    """A process that runs one engine: `command`, with its stderr in the file `log`.

    greeting: its first answer, when the engine is loaded.

    Raises PeerFailed if the process ends or doesn't answer in time; a late process is killed.
    """

    def __init__(self, command: list[str], threads: int, log: Path) -> None:
        self.log = log
        variables = {**os.environ, **WAITING, **dict.fromkeys(THREADS, str(threads))}
        with open(log, "wb") as stderr:
            self.process = self.start(
                command, env=variables, text=True, encoding="utf-8",
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
            )  # fmt: skip
        self.greeting = self.answer(LOAD_SECONDS)

    def start(self, command: list[str], **options: Any) -> subprocess.Popen:
        return subprocess.Popen(command, cwd=ROOT, **options)

    def serve(
        self, prompts: list[Ids], new_tokens: list[int], size: int
    ) -> tuple[list[Ids], list[list[float]]]:
        """Return each request's new tokens and when they were available, in seconds since start."""
        assert self.process.stdin is not None
        order = {"prompts": prompts, "new_tokens": new_tokens, "size": size}
        with suppress(OSError):  # the process has ended, which the missing answer will show
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
            line = self.process.stdout.readline(LONGEST_ANSWER)
        finally:
            timer.cancel()
        if line.endswith("\n"):
            try:
                return json.loads(line)
            except (ValueError, RecursionError):
                self.close()
                raise PeerFailed("its answer isn't JSON.") from None
        with suppress(subprocess.TimeoutExpired):  # its own exit status says more than our kill
            self.process.wait(GRACE_SECONDS)
        self.close()
        if late.is_set():
            raise PeerFailed(f"stopped after {limit:,.0f} seconds without an answer.")
        raise PeerFailed(f"its process ended: {self.last_words()}")

    def last_words(self) -> str:
        if self.process.returncode < 0:  # then the log doesn't explain why it ended
            return f"signal {signal.Signals(-self.process.returncode).name}."
        lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return said[-1] if said else f"exit status {self.process.returncode}, without a message."

    def close(self) -> None:
        """End the process. Closing it again does nothing."""
        self.process.kill()
        self.process.communicate()


class Workers:
    """The processes of all engines: each starts at its first use, and all end together."""

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
        """Return an engine's process with this many threads. Raises PeerFailed if it can't load."""
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
