"""Server-sent events as a client reads them: whole ones from a stream of bytes, and their data.

Source: WHATWG, "HTML Standard", section 9.2.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator

MOST_EVENT = 1_000_000  # bytes
END = re.compile(rb"\r?\n\r?\n")


class TooMuch(ValueError):
    """A server has sent more than is kept of one event or answer."""


async def whole_events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield events as they come, one or more at a time, each whole: an error can follow any.

    Comments before the first event are held back, because they are no beginning of an answer.
    Raises TooMuch.
    """
    rest, has_begun = b"", False
    async for chunk in chunks:
        rest += chunk
        end = max((match.end() for match in END.finditer(rest)), default=0)
        has_begun = has_begun or b"data:" in rest[:end]
        if end and has_begun:
            yield rest[:end]
            rest = rest[end:]
        if len(rest) > MOST_EVENT:
            raise TooMuch


def data_of(events: bytes) -> list[bytes]:
    """Return the data of each of these whole events.

    Lines end at line breaks alone. `str.splitlines` would also break them at characters such as
    U+2028, which JSON may contain.
    """
    contents = []
    for event in END.split(events):
        lines = [line.removesuffix(b"\r") for line in event.split(b"\n")]
        data = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
        if data:
            contents.append(b"\n".join(data))
    return contents
