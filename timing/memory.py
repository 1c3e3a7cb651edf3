"""How a server's KV memory is used: where the labs import it from, beside what measures."""

from solutions.memory import *  # noqa: F403
