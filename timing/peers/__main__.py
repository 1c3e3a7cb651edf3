"""The process of one engine: python -m timing.peers NAME FOLDER THREADS SCRATCH

It loads the engine, reports that it is ready, and answers every order with the result. Orders on
stdin and answers on stdout are lines of JSON. It ends when stdin closes. Times are seconds since
the engine's start.
"""

import importlib
import json
import os
import sys
from pathlib import Path
from typing import IO

from timing.peers.catalogue import PEERS
from timing.peers.engine import Engine, Given


def main(name: str, folder: str, threads: str, scratch: str) -> None:
    wire = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # engines print, and only answers may reach the wire
    peer = PEERS[name]
    module, engine = peer.engine.split(".")
    given = Given(Path(folder), Path(scratch), peer.precision, int(threads))
    new_engine = getattr(importlib.import_module(f"timing.peers.{module}"), engine)
    answer(new_engine(given), sys.stdin, wire)


def answer(engine: Engine, orders: IO[str], wire: IO[str]) -> None:
    print(json.dumps({"ready": True}), file=wire, flush=True)
    for order in orders:
        served = engine.serve(**json.loads(order))
        token_times = [[time - served.start for time in times] for times in served.token_times]
        done = {"outputs": served.outputs, "token_times": token_times}
        print(json.dumps(done), file=wire, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
