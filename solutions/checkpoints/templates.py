"""From a chat to token ids, in the way that a checkpoint brings along.

A chat model has learned one way to write a chat down. Its checkpoint has it as a template in Jinja,
which is a program from a file that was downloaded. So it runs in Jinja's sandbox, which lets it
reach no attribute of Python's own (CVE-2024-34359 was a template that did), and what it writes is
limited.

Control tokens are ids that no text may produce. Otherwise a user who writes "<|im_end|>" ends
their own turn, and goes on as the system.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from solutions.gguf.file import GGUF, gguf_in

LONGEST_TEMPLATE = 100_000  # characters; the longest known ones have about 20,000
LONGEST_CHAT = 4_000_000  # characters that a template may write
CALL = "tools", "<tool_call>", '"arguments": '
THOUGHTS = "<think>", "</think>"  # the marks around them, as DeepSeek-R1 and Qwen3 write them
BREAK = "\ue000"  # private use: a character that stands for no text


def template_in(path: Path) -> tuple[str | None, dict[str, str]]:
    """Return a checkpoint's chat template, None if it has none, and the tokens that it names."""
    file = gguf_in(path)
    if file is not None:
        entries = GGUF(file).entries
        ids = {end: entries.get(f"tokenizer.ggml.{end}_token_id") for end in ("bos", "eos")}
        tokens = entries.get("tokenizer.ggml.tokens", [])
        ends = {f"{end}_token": tokens[n] for end, n in ids.items() if n is not None}
        return entries.get("tokenizer.chat_template"), ends
    settings = path / "tokenizer_config.json"
    found = json.loads(settings.read_text(encoding="utf-8")) if settings.exists() else {}
    template = found.get("chat_template")
    if isinstance(template, list):  # several, by name
        template = {one["name"]: one["template"] for one in template}.get("default")
    if (path / "chat_template.jinja").exists():
        template = (path / "chat_template.jinja").read_text(encoding="utf-8")
    tokens = {end: found.get(end) for end in ("bos_token", "eos_token")}
    return template, {end: content_of(token) for end, token in tokens.items() if token}


def content_of(token: str | Mapping[str, str]) -> str:
    return token if isinstance(token, str) else token["content"]


class RefusedChat(ValueError):
    """A chat that the template doesn't take; the message says why."""


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with what the hub's templates expect, and without texts times a number."""

    intercepted_binops = frozenset(["*", "**"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        self.globals |= {"raise_exception": refuse, "strftime_now": datetime.now().strftime}
        self.filters["tojson"] = partial(json.dumps, ensure_ascii=False)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if not isinstance(left, int | float) or operator == "**":
            refuse(f"The chat template uses {operator}, which could write without end.")
        return super().call_binop(context, operator, left, right)


def refuse(message: str) -> None:
    raise RefusedChat(message)


class ChatTemplate:
    """Writes chats down as a model has learned to read them, as token ids.

    ends: the control tokens that a template calls bos_token and eos_token. writes_calls: whether it
    takes tools, and writes calls in the form of CALL, as Qwen's do. thinks: whether it knows of
    THOUGHTS, so that the model thinks before it answers. Raises ValueError for a template that
    isn't one.
    """

    def __init__(self, template: str, tokenizer: Tokenizer, ends: Mapping[str, str]) -> None:
        if len(template) > LONGEST_TEMPLATE:
            raise ValueError(f"A chat template has at most {LONGEST_TEMPLATE:,} characters here.")
        self.ends, self.writes_calls = ends, all(part in template for part in CALL)
        self.thinks = THOUGHTS[0] in template
        try:
            self.template = Sandbox().from_string(template)
        except TemplateError as error:
            raise ValueError(f"The chat template isn't one of Jinja's: {error}.") from error
        self.tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self.tokenizer.encode_special_tokens = True  # a control token's name is text like any other
        added = tokenizer.get_added_tokens_decoder().items()
        self.control = {token.content: number for number, token in added if token.special}
        longest_first = sorted(self.control, key=len, reverse=True)
        self.names = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def ids(
        self, messages: Iterable[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return the ids of a chat up to the answer. Raises RefusedChat.

        tools: those that the model may call, as OpenAI's API has them.
        """
        text = self.written(self.broken([*messages]), self.broken([*tools]))
        ids: list[int] = []
        end = 0
        for name in self.names.finditer(text):
            ids += self.encode(text[end : name.start()])
            ids.append(self.control[name[0]])
            end = name.end()
        return ids + self.encode(text[end:])

    def broken(self, value: Any) -> Any:
        """Return what people have written with the names of control tokens broken in two.

        So only the template's own are found. BREAK itself is taken away from the text.
        """
        if isinstance(value, str):
            whole = value.replace(BREAK, "")
            return self.names.sub(lambda name: name[0][0] + BREAK + name[0][1:], whole)
        if isinstance(value, Mapping):
            return {self.broken(key): self.broken(part) for key, part in value.items()}
        return [self.broken(part) for part in value] if isinstance(value, list) else value

    def encode(self, text: str) -> list[int]:
        whole = text.replace(BREAK, "")
        return self.tokenizer.encode(whole, add_special_tokens=False).ids if whole else []

    def written(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        """Return the chat as the template writes it."""
        pieces, length = [], 0
        try:
            for piece in self.template.generate(
                messages=messages, tools=tools or None, add_generation_prompt=True, **self.ends
            ):
                pieces.append(piece)
                length += len(piece)
                if length > LONGEST_CHAT:
                    refuse(f"The chat is longer than {LONGEST_CHAT:,} characters.")
        except RefusedChat:
            raise
        except Exception as error:  # a template can fail in any way
            raise RefusedChat(f"The chat template failed: {error}") from error
        return "".join(pieces)
