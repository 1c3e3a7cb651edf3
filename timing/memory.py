"""How a server's KV memory is used; labs import it from here, next to the measuring tools."""

from solutions.memory import *  # noqa: F403
