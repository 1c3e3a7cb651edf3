"""One text's tokens as what a client is sent: thoughts, then words, then calls."""

import secrets
import string
from collections.abc import Sequence
from typing import Any

from solutions.server.messages import Calling, Language, Thinking
from solutions.server.settings import Labs
from solutions.server.thoughts import END
from solutions.server.tokens import Growing

Delta = dict[str, Any]
LETTERS = string.ascii_letters + string.digits


class TextInParts:
    """Turns one text's tokens into words that may be shown, and into deltas of its other parts.

    It is used as lab 13's TextStream is: `push` and `finish` return the words. The deltas wait
    until they are taken. Stop strings end the words; in thoughts and calls they end nothing.
    language: says which parts there may be.
    """

    def __init__(
        self, labs: Labs, grown: Growing, language: Language, stops: Sequence[str]
    ) -> None:
        stream = labs("serving").TextStream
        thinks = isinstance(language, Thinking)
        answer = language.answer if isinstance(language, Thinking) else language
        may_call = isinstance(answer, Calling) and answer.tools != ""
        self.grown, self.text = grown, stream(grown)
        self.thoughts = labs("thinking").ThoughtStream(END) if thinks else None
        self.calls = labs("tools").CallStream(new_call_id) if may_call else None
        self.said = ""
        self.words = stream(lambda ids: self.said, tuple(stops))
        self.deltas: list[Delta] = []
        self.thought, self.starts = "", list[int]()  # of the tokens that thoughts may have

    @property
    def has_stopped(self) -> bool:
        return bool(self.words.has_stopped)

    def push(self, token: int) -> str:
        if self.thoughts is not None and self.thoughts.is_thinking:
            self.starts.append(len(self.grown.text))
        return self.sorted(self.deltas_of(self.text.push(token)), token)

    def finish(self) -> str:
        deltas = self.deltas_of(self.text.finish())
        for stream in self.thoughts, self.calls:
            deltas += stream.finish() if stream is not None else []
        return self.sorted(deltas) + str(self.words.finish())

    def deltas_of(self, piece: str) -> list[Delta]:
        deltas = [{"content": piece}] if self.thoughts is None else self.thoughts.push(piece)
        if self.calls is None:
            return list(deltas)
        return [
            one
            for delta in deltas
            for one in (self.calls.push(delta["content"]) if "content" in delta else [delta])
        ]

    def sorted(self, deltas: Sequence[Delta], token: int = 0) -> str:
        """Put all deltas but those of words aside, and return the new words that may be shown."""
        shown = ""
        for delta in deltas:
            if "content" in delta:
                self.said += delta["content"]
                shown += self.words.push(token)
            elif "reasoning_content" in delta:
                self.thought += delta["reasoning_content"]
                self.deltas.append(delta)
            elif not self.has_stopped:
                shown += self.words.finish()
                self.deltas.append(delta)
        return shown

    def taken(self) -> tuple[list[Delta], list[Delta]]:
        """Return the deltas that have come since the last time: of thoughts, and of calls."""
        thoughts = [delta for delta in self.deltas if "reasoning_content" in delta]
        calls = [delta for delta in self.deltas if "tool_calls" in delta]
        self.deltas = []
        return thoughts, calls

    @property
    def reasoning_tokens(self) -> int:
        """How many tokens begin in the thoughts. Those that only write the mark don't."""
        return sum(start < len(self.thought) for start in self.starts)

    @property
    def called(self) -> tuple[int, int]:
        """How many calls have begun, and how many of them haven't ended."""
        return (self.calls.count, int(self.calls.place == 2)) if self.calls is not None else (0, 0)


def new_call_id() -> str:
    return "call_" + "".join(secrets.choice(LETTERS) for _ in range(24))
