"""The first process in the sandbox.

    python -m autograder.attempt CONTROL SCRATCH LAB USER

CONTROL is the number of a Unix socket to the oracle, SCRATCH the only folder that can be written,
USER whom to become where this is started as root: before anything else is even imported.
"""

import socket
import sys
from importlib import import_module
from pathlib import Path

from autograder.attempt.rights import become

if __name__ == "__main__":
    _, control, scratch, lab, user = sys.argv
    become(int(user))
    worker = import_module("autograder.attempt.worker")
    worker.main(socket.socket(fileno=int(control)), Path(scratch), lab)
