"""The body of a chat: its messages, and the tools that the model may call.

Source: OpenAI, "API reference" (chat completions, function calling).
"""

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator

from solutions.server.messages import Calling
from solutions.server.protocol import Sampling, Strict, Text

# ----------------------------------------------------------------------------------------- tools

NO_ARGUMENTS = {"type": "object", "properties": {}}


class Function(Strict):
    """A function that the model may call. Calls always keep to the schema of its parameters."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: Text = ""
    parameters: dict[str, Any] = Field(default={}, validate_default=True)
    strict: bool = False

    @field_validator("parameters")
    @classmethod
    def of_an_object(cls, parameters: dict[str, Any]) -> dict[str, Any]:
        if parameters.get("type", "object") != "object":
            raise ValueError("arguments have names, so the schema's type is 'object'")
        return {"type": "object", **parameters} if parameters else NO_ARGUMENTS


class ToolBody(Strict):
    type: Literal["function"]
    function: Function


def choice_of_tools(value: Any) -> Any:
    match value:
        case "none" | "auto" | "required" | {"type": "function", "function": {"name": str()}}:
            return value
    raise ValueError(
        "it is 'none', 'auto', 'required' or {'type': 'function', 'function': {'name': ...}}"
    )


def without_old_names(value: Any) -> None:
    if value:
        raise ValueError("this is an old name. Send 'tools' and 'tool_choice'")


# -------------------------------------------------------------------------------------- messages


class TextPart(Strict):
    type: Literal["text"]
    text: Text


class Spoken(Strict):
    """What all messages have in common: a text, or the parts of one."""

    may_be_empty: ClassVar[bool] = True
    content: list[TextPart] = Field(default=[], validate_default=True)

    @field_validator("content", mode="before")
    @classmethod
    def in_parts(cls, content: Any) -> Any:
        if content == [] and not cls.may_be_empty:
            raise ValueError("the content is missing")
        return [{"type": "text", "text": content}] if isinstance(content, str) else content

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content)


class Told(Spoken):
    """A message to the model."""

    may_be_empty = False
    role: Literal["system", "developer", "user"]

    @property
    def plain(self) -> dict[str, Any]:
        """The message as plain data. Chat templates have no role "developer"."""
        return {"role": "system" if self.role == "developer" else self.role, "content": self.text}


def json_object(text: str) -> str:
    try:
        is_object = isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise ValueError("arguments are the text of a JSON object")
    return text


class CalledFunction(Strict):
    name: Text
    arguments: Annotated[Text, AfterValidator(json_object)]


class Call(Strict):
    id: str = Field(min_length=1, max_length=200)
    type: Literal["function"] = "function"
    function: CalledFunction


class Answered(Spoken):
    """A message of the model's own."""

    role: Literal["assistant"]
    reasoning_content: Text = ""
    tool_calls: list[Call] = Field(default=[])

    @property
    def plain(self) -> dict[str, Any]:
        message = {"role": "assistant", "content": self.text}
        calls = [call.model_dump() for call in self.tool_calls]
        thoughts = {"reasoning_content": self.reasoning_content} if self.reasoning_content else {}
        return message | thoughts | ({"tool_calls": calls} if calls else {})


class Result(Spoken):
    """What a call has returned. name: the function's, which its call says, too."""

    role: Literal["tool"]
    tool_call_id: str
    name: str = ""

    @property
    def plain(self) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": self.tool_call_id, "content": self.text}


Message = Told | Answered | Result


def unanswered(messages: Sequence[Message]) -> tuple[int, str] | None:
    """Return the place of a message at which calls and results don't match, and a sentence."""
    waiting = list[str]()
    for place, message in enumerate(messages):
        if isinstance(message, Result):
            if message.tool_call_id not in waiting:
                told = f"No call before this result has the id {message.tool_call_id[:100]!r}."
                return place, told
            waiting.remove(message.tool_call_id)
            continue
        if waiting:
            break
        if isinstance(message, Answered):
            waiting, asked = [call.id for call in message.tool_calls], place
    if waiting:
        return asked, f"The call {waiting[0]!r} has no result. One follows it for each call."
    return None


def with_objects(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as chat templates take it: they write the arguments of calls as JSON."""
    calls = [
        {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}
        for call in message.get("tool_calls", [])
        for function in [call["function"]]
    ]
    return message | ({"tool_calls": calls} if calls else {})


def transcript(messages: Sequence[Message], written: Callable[[dict[str, Any]], str]) -> str:
    """Return a chat as a plain text that ends where the answer begins.

    It is for models without a chat template: those that are shipped have only ever seen books. An
    answer is repeated as the model wrote it, with no space that it didn't write: so the prompt of a
    turn begins with all that was computed in the turn before.
    """
    turns = (
        f"assistant:{written(message.plain)}"
        if isinstance(message, Answered)
        else f"{message.role}: {message.text}"
        for message in messages
    )
    return "\n\n".join([*turns, "assistant:"])


# ------------------------------------------------------------------------------------------ chats


class ChatBody(Sampling):
    """The body of POST /v1/chat/completions.

    Beyond OpenAI's API, thinking_budget: how many tokens may be thought before the answer.
    """

    messages: list[Annotated[Message, Field(discriminator="role")]] = Field(
        min_length=1, max_length=1000
    )
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=5)
    thinking_budget: int | None = Field(None, ge=0)
    tools: list[ToolBody] = Field(default=[], max_length=64)
    tool_choice: Annotated[Any, AfterValidator(choice_of_tools)] = "auto"
    parallel_tool_calls: bool = True
    functions: Annotated[Any, AfterValidator(without_old_names)] = None
    function_call: Annotated[Any, AfterValidator(without_old_names)] = None

    @classmethod
    def is_idle(cls, name: str, value: Any) -> bool:
        about_calls = name in ("tool_choice", "parallel_tool_calls")
        return value is None if about_calls else super().is_idle(name, value)

    @property
    def is_bound(self) -> bool:
        return super().is_bound or bool(self.tools) or self.tool_choice not in ("none", "auto")

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def named(self) -> str | None:
        """The only tool that may be called, if `tool_choice` names one."""
        return None if isinstance(self.tool_choice, str) else self.tool_choice["function"]["name"]

    @property
    def calling(self) -> Calling | None:
        """What the tools and `tool_choice` say of calls in the answer; None without tools."""
        if not self.tools:
            return None
        if self.tool_choice == "none":
            return Calling("", is_free=True, is_parallel=False)
        functions = [tool.function for tool in self.tools]
        callable_ones = [
            (function.name, function.parameters)
            for function in functions
            if self.named in (None, function.name)
        ]
        is_parallel = self.parallel_tool_calls and self.named is None
        return Calling(json.dumps(callable_ones), self.tool_choice == "auto", is_parallel)
