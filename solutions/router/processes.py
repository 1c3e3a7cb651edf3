"""Replicas on this machine: servers in processes of their own, started again if they die."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

SERVE = Path(__file__).resolve().parents[2] / "serve.py"
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds before a replica is started again; it doubles
STEADY = 60.0  # seconds after which a replica that dies is started again after the first pause
STOP_WITHIN = 10.0  # seconds, after those that its running requests may take


@contextmanager
def replicas(count: int, arguments: Sequence[str], stop_within: float) -> Iterator[list[str]]:
    """Start servers with these arguments of serve.py, and yield their addresses.

    In the end they finish their requests and stop, or are killed after so many seconds. Raises
    ValueError if one can't be started.
    """
    started = [ReplicaProcess(number + 1, arguments) for number in range(count)]
    try:
        yield [replica.address.result() for replica in started]
    finally:
        for replica in started:
            replica.stop()
        for replica in started:
            replica.wait(stop_within)


class ReplicaProcess:
    """Runs a server, again and again, on the port that it took at first. address: of the first.

    The server stops when its standard input ends, and so it also does if this process is killed.
    """

    def __init__(self, number: int, arguments: Sequence[str]) -> None:
        self.number, self.arguments, self.port = number, arguments, "0"
        self.address: Future[str] = Future()
        self.is_stopping = threading.Event()
        self.process = self.started()
        self.thread = threading.Thread(target=self.run, name=f"replica {number}", daemon=True)
        self.thread.start()

    def started(self) -> subprocess.Popen[str]:
        """Start a process in a group of its own: Ctrl+C is for the router, which then drains."""
        options = ["--port", self.port, "--until-input-ends"]
        return subprocess.Popen(
            [sys.executable, str(SERVE), *options, *self.arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0,
        )  # fmt: skip

    def run(self) -> None:
        pause = FIRST_PAUSE
        while True:
            began = time.monotonic()
            self.read_address()
            code = self.process.wait()
            if not self.address.done():
                sentence = f"Replica {self.number} has ended before it could serve."
                self.address.set_exception(ValueError(sentence))
                return
            pause = FIRST_PAUSE if time.monotonic() > began + STEADY else pause
            if not self.is_stopping.is_set():
                how = f"by signal {-code}" if code < 0 else f"with status {code}"
                sentence = f"Replica {self.number} has ended {how}. It starts again in {pause:g} s."
                print(sentence, file=sys.stderr, flush=True)
            if self.is_stopping.wait(pause):
                return
            pause = min(2 * pause, LONGEST_PAUSE)
            self.process = self.started()
            if self.is_stopping.is_set():
                self.stop()

    def read_address(self) -> None:
        """Wait until the server is ready: the last line that it prints has its address."""
        assert self.process.stdout is not None
        for line in iter(self.process.stdout.readline, ""):
            if line.startswith("Serving "):
                url = line.split()[-1]
                if not self.address.done():
                    self.port = url.rpartition(":")[2]
                    self.address.set_result(url)
                return

    def stop(self) -> None:
        self.is_stopping.set()
        assert self.process.stdin is not None
        self.process.stdin.close()

    def wait(self, seconds: float) -> None:
        self.thread.join(seconds)
        self.process.kill()
        self.thread.join()
