"""What an answer must be written in, if a request asks for that: a schema, or text with calls."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from solutions.server.calls import Unsupported, read_calls
from solutions.server.chats import ChatBody
from solutions.server.engine_thread import Facts
from solutions.server.formats import derivative_of, read_format
from solutions.server.messages import AnswerLanguage, Calling
from solutions.server.protocol import CompletionBody, Refusal
from solutions.server.settings import Labs


class Languages:
    """Reads what answers must be written in, in a thread of its own, one at a time.

    The work of each is limited, and one whose client has left isn't begun.
    """

    def __init__(self, labs: Labs, facts: Facts) -> None:
        self.labs, self.facts = labs, facts
        self.reader = ThreadPoolExecutor(1, "languages")

    async def of(self, body: CompletionBody | ChatBody) -> AnswerLanguage | None:
        """Return a request's schema, or what it says of calls; None for any answer. Raises Refusal
        if it isn't supported.
        """
        calling = calling_of(body) if isinstance(body, ChatBody) else None
        if body.answer_schema is not None:
            await self.read("response_format", read_format, body.answer_schema)
            return body.answer_schema
        if calling is not None and isinstance(body, ChatBody):
            lab = self.lab("tools", "tools")
            found = await self.read("tools", read_calls, calling, lab.Tool, lab.call_pattern)
            if isinstance(found, Unsupported):
                named = [tool.function.name == body.named for tool in body.tools]
                place = named.index(True) if body.named else found.tool
                sentence = f"The tool {body.tools[place].function.name!r}: {found.sentence}"
                raise Refusal(400, sentence, param=f"tools[{place}].function.parameters")
        return calling

    async def read(self, param: str, read: Any, *given: Any) -> Any:
        if self.facts.eos_token_id is None:
            sentence = "This model has no token that ends a text, so no form can be kept."
            raise Refusal(400, sentence, param=param)
        derivative = derivative_of(self.lab("constrained", param))
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self.reader, read, derivative, *given)
        if isinstance(found, str):
            raise Refusal(400, found, param=param)
        return found

    def lab(self, name: str, param: str) -> Any:
        """Return a lab's names. Raises Refusal if this copy of the course is of an earlier one."""
        if not self.has(name):
            sentence = f"This needs the lab {name!r}, which this copy of the course lacks."
            raise Refusal(400, sentence, param=param)
        return self.labs(name)

    def has(self, name: str) -> bool:
        try:
            self.labs(name)
        except ModuleNotFoundError:
            return False
        return True


def calling_of(body: ChatBody) -> Calling | None:
    """Return what a chat says of calls in its answer; None without tools. Raises Refusal."""
    names = [tool.function.name for tool in body.tools]
    twice = [place for place, name in enumerate(names) if name in names[:place]]
    if twice:
        sentence = f"Two tools are called {names[twice[0]]!r}. Give each a name of its own."
        raise Refusal(400, sentence, param=f"tools[{twice[0]}].function.name")
    if not names and body.tool_choice not in ("none", "auto"):
        sentence = "There are no 'tools' that could be called. Send them, too."
        raise Refusal(400, sentence, param="tool_choice")
    if body.named is not None and body.named not in names:
        sentence = f"There is no tool {body.named[:100]!r} among the tools of this request."
        raise Refusal(400, sentence, param="tool_choice.function.name")
    calling = body.calling
    if calling and calling.tools and body.answer_schema is not None:
        sentence = (
            "A call and a format at once aren't kept. Ask for one of them, or make the format a "
            "tool."
        )
        raise Refusal(400, sentence, param="response_format")
    return calling
