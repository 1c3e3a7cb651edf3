"""OpenAI's API: the bodies of requests, and errors of the types that its clients know.

Source: OpenAI, "API reference" (completions, chat completions, error codes).
"""

import json
import time
from typing import Annotated, Any, Literal

from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

TYPES = {  # of an error, by its status; any other is an invalid request
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
Stop = Annotated[str, Field(min_length=1, max_length=200)]
NoPenalty = Annotated[float | None, Field(ge=0, le=0)]
LONGEST_TEXT = 200_000  # characters of a prompt, far more than any context holds


class Refusal(Exception):
    """An answer to a bad or untimely request: a status and a sentence for the client."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.retry_after = status, code, param, retry_after


def error_response(
    status: int,
    message: str,
    code: str | None = None,
    param: str | None = None,
    retry_after: float | None = None,
) -> JSONResponse:
    """Return an error as OpenAI's clients expect it. retry_after: in seconds, rounded up."""
    kind = TYPES.get(status, "invalid_request_error")
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    headers = {} if retry_after is None else {"retry-after": str(max(1, -int(-retry_after // 1)))}
    return JSONResponse(body, status, headers)


class StreamOptions(BaseModel):
    include_usage: bool = False


class NamedSchema(BaseModel):
    """A schema, and what OpenAI's clients send with it. Answers always keep to the schema."""

    schema_: dict[str, Any] = Field(alias="schema")
    name: str = ""
    description: str | None = None
    strict: bool | None = None


class TextFormat(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]


class SchemaFormat(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: Literal["json_schema"]
    json_schema: NamedSchema


class Sampling(BaseModel):
    """What both kinds of requests have in common. speculation: whether to draft tokens (ours).

    A parameter that isn't here is refused: ignoring it would give another answer than was asked.
    """

    model_config = ConfigDict(extra="forbid")

    model: str
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(1.0, ge=0, le=2)
    top_p: float | None = Field(1.0, gt=0, le=1)
    top_k: int | None = Field(None, ge=1)
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, gt=0, le=10)
    presence_penalty: NoPenalty = 0.0  # clients that know these send them even when they are off
    frequency_penalty: NoPenalty = 0.0
    n: int | None = Field(1, ge=1, le=16)
    response_format: Annotated[TextFormat | SchemaFormat, Field(discriminator="type")] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    speculation: bool = False
    user: str | None = None  # OpenAI's way to tell users apart; not used

    @property
    def answer_schema(self) -> str | None:
        """The JSON schema that the answer must fit, as text; None for any answer."""
        asked = self.response_format
        return json.dumps(asked.json_schema.schema_) if isinstance(asked, SchemaFormat) else None

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionBody(Sampling):
    """The body of POST /v1/completions."""

    prompt: (
        Annotated[str, Field(max_length=LONGEST_TEXT)]
        | Ids
        | Annotated[list[Annotated[str, Field(max_length=LONGEST_TEXT)]], Field(min_length=1)]
        | Annotated[list[Ids], Field(min_length=1)]
    ) = ""
    logprobs: int | None = Field(None, ge=0, le=5)
    echo: Literal[False] | None = False

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        prompt: Any = self.prompt
        return prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]

    @property
    def alternatives(self) -> int | None:
        return self.logprobs


class TextPart(BaseModel):
    type: Literal["text"]
    text: str = Field(max_length=LONGEST_TEXT)


class Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, Field(max_length=LONGEST_TEXT)] | list[TextPart]

    @property
    def text(self) -> str:
        parts = self.content
        return parts if isinstance(parts, str) else "".join(part.text for part in parts)


class ChatBody(Sampling):
    """The body of POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1, max_length=1000)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = False
    top_logprobs: int | None = Field(None, ge=0, le=5)

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


def transcript(messages: list[Message]) -> str:
    """Return a chat as a plain text that ends where the answer begins.

    The shipped models have no chat template: they have only ever seen books.
    """
    turns = (f"{message.role}: {message.text}\n\n" for message in messages)
    return "".join(turns) + "assistant:"


def head_of(kind: str, answer_id: str, model: str) -> dict[str, Any]:
    """Return the fields that every event of an answer begins with."""
    return {"id": answer_id, "object": kind, "created": int(time.time()), "model": model}
