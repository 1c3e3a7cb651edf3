"""OpenAI's API: the bodies of requests that are no chats, and errors as its clients know them.

One rule holds for every field: a value that changes nothing is accepted, and one that would change
the answer is either heeded or refused. See `Strict`.

Source: OpenAI, "API reference" (completions, chat completions, embeddings, error codes).
"""

import json
import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi.responses import JSONResponse
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

TYPES = {  # of an error, by its status; any other is an invalid request
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
LONGEST_TEXT = 200_000  # characters of a prompt, far more than any context holds
Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
Texts = Annotated[list[Text], Field(min_length=1)] | Annotated[list[Ids], Field(min_length=1)]
Stop = Annotated[str, Field(min_length=1, max_length=200)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Token = Annotated[str, Field(pattern=r"^\d{1,9}$")]
Bias = Annotated[float, Field(ge=-100, le=100)]
WITHOUT_EFFECT = {  # on any answer, whatever their values are
    "metadata",
    "parallel_tool_calls",  # only a chat has tools
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
}
USUAL: dict[str, tuple[Any, ...]] = {  # values of fields that say what happens without them, too
    "best_of": (1,),
    "detokenize": (True,),
    "function_call": ("none", "auto"),
    "length_penalty": (1, 1.0),
    "logprobs": (False,),
    "modalities": (["text"],),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "tool_choice": ("none", "auto"),
    "top_k": (-1, 0),
    "truncate_prompt_tokens": (-1,),
    "verbosity": ("medium",),
}


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
        self.response = error_response(status, message, code, param, retry_after)


def error_response(
    status: int,
    message: str,
    code: str | None = None,
    param: str | None = None,
    retry_after: float | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Return an error as OpenAI's clients expect it. retry_after: in seconds, rounded up."""
    kind = TYPES.get(status, "invalid_request_error")
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    headers = dict(headers or {})
    if retry_after is not None:
        headers["retry-after"] = str(max(1, -int(-retry_after // 1)))
    return JSONResponse(body, status, headers)


class Strict(BaseModel):
    """Knows all fields that may change the answer. Another one is refused, unless it does nothing.

    null says nothing about any field. Of a field that isn't known here, neither does false, an
    empty value, or what `USUAL` says happens anyway.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def without_idle_fields(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        return {name: value for name, value in body.items() if not cls.is_idle(name, value)}

    @classmethod
    def is_idle(cls, name: str, value: Any) -> bool:
        if value is None or name in WITHOUT_EFFECT:
            return True
        if name not in cls.model_fields and value in (False, "", [], {}):
            return True
        return any(value == one and type(value) is type(one) for one in USUAL.get(name, ()))


class StreamOptions(BaseModel):
    """include_usage: whether a last event has the usage. Other options don't change the answer."""

    include_usage: bool | None = False


class NamedSchema(BaseModel):
    """A schema, and what OpenAI's clients send with it. Answers always keep to the schema."""

    schema_: dict[str, Any] = Field(alias="schema")
    name: str = ""
    description: str | None = None
    strict: bool | None = None


class Format(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TextFormat(Format):
    type: Literal["text"]


class ObjectFormat(Format):
    """Any JSON object."""

    type: Literal["json_object"]


class SchemaFormat(Format):
    type: Literal["json_schema"]
    json_schema: NamedSchema


def listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class Sampling(Strict):
    """What both kinds of requests have in common.

    Beyond OpenAI's API, as vLLM has it: top_k, min_p, repetition_penalty; ignore_eos, to go on
    after EOS; min_tokens, before which no EOS comes. Ours: speculation, whether to draft tokens.
    best_of: how many texts are written, of which the likeliest n are sent.
    """

    model: str
    max_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int | None = Field(None, ge=1)
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, gt=0, le=10)
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: dict[Token, Bias] = Field(default={}, max_length=1000)
    ignore_eos: bool = False
    min_tokens: int = Field(0, ge=0)
    n: int = Field(1, ge=1, le=16)
    best_of: int | None = Field(None, ge=1, le=16)
    response_format: (
        Annotated[TextFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")] | None
    ) = None
    stop: Annotated[list[Stop], BeforeValidator(listed), Field(max_length=4)] = []
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    speculation: bool = False

    @property
    def answer_schema(self) -> str | None:
        """The JSON schema that the answer must fit, as text; None for any answer."""
        match self.response_format:
            case SchemaFormat(json_schema=named):
                return json.dumps(named.schema_)
            case ObjectFormat():
                return json.dumps({"type": "object"})
        return None

    @property
    def is_bound(self) -> bool:
        """Whether the answer must have a certain form."""
        return self.answer_schema is not None

    @property
    def samples(self) -> int:
        """How many texts are written for each prompt."""
        return self.best_of or self.n

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options.include_usage)


class CompletionBody(Sampling):
    """The body of POST /v1/completions. echo: whether the prompt comes before the answer."""

    max_tokens: int | None = Field(None, ge=0)
    prompt: Text | Ids | Texts = ""
    logprobs: int | None = Field(None, ge=0, le=5)
    echo: bool = False

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        prompt: Any = self.prompt
        return prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]

    @property
    def alternatives(self) -> int | None:
        return self.logprobs


class EmbeddingBody(Strict):
    """The body of POST /v1/embeddings."""

    model: str
    input: Text | Ids | Texts
    encoding_format: Literal["float", "base64"] = "float"

    @property
    def as_completion(self) -> CompletionBody:
        fields = {"model": self.model, "prompt": self.input, "max_tokens": 0}
        return CompletionBody.model_validate(fields)


class AdapterBody(Strict):
    """The body of POST /v1/load_lora_adapter and unload_lora_adapter, as vLLM has it, but for the
    path: adapters are in the folder that the server was started with.
    """

    lora_name: str


def head_of(kind: str, answer_id: str, model: str) -> dict[str, Any]:
    """Return the fields that every event of an answer begins with."""
    return {"id": answer_id, "object": kind, "created": int(time.time()), "model": model}
