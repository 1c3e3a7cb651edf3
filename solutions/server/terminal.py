"""A chat in the terminal, with a server as any other client has it."""

import json
import unicodedata
from collections.abc import Iterator
from contextlib import suppress

import httpx2

HELP = "Ctrl-C stops an answer, /new begins a new chat, and Ctrl-D ends it."
LOST = "The server has broken off."
# Greedy, because a small model in 4 bits is unsure: asked for the capital of France, SmolLM2 begins
# with "The" in 15 of 100 answers and with "L" in 14, and the latter ends in a loop.
USUAL = {"temperature": 0}
Messages = list[dict[str, str]]


class Failed(Exception):
    """A request got no whole answer; the message is the server's sentence."""


def talk(url: str, model: str, api_key: str | None = None) -> None:
    """Chat with a model until the input ends."""
    with suppress(ImportError):  # Windows has none
        import readline  # noqa: F401, as arrow keys then edit the line
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    messages: Messages = []
    print(HELP)
    with httpx2.Client(base_url=url, headers=headers, timeout=None) as client:
        while True:
            try:
                line = input("\n> ").strip()
            except KeyboardInterrupt:
                continue
            except EOFError:
                print()
                return
            if line == "/new":
                messages = []
                print("A new chat.")
            elif line:
                question = {"role": "user", "content": line}
                messages = answered(client, model, [*messages, question])


def answered(client: httpx2.Client, model: str, messages: Messages) -> Messages:
    """Print the answer as it comes, with thoughts in brackets. Return the chat with it, and without
    a question that failed.
    """
    thoughts = answer = ""
    try:
        for delta in deltas(client, model, messages):
            if thought := delta.get("reasoning_content"):
                print("" if thoughts else "[", visible(thought), sep="", end="", flush=True)
                thoughts += thought
            if piece := delta.get("content"):
                print(
                    "] " if thoughts and not answer else "",
                    visible(piece),
                    sep="",
                    end="",
                    flush=True,
                )
                answer += piece
    except KeyboardInterrupt:
        print(" … stopped", end="")
    except (Failed, httpx2.HTTPError) as error:
        print(error if isinstance(error, Failed) else LOST)
        return messages[:-1]
    print()
    return [*messages, {"role": "assistant", "content": answer}]


def deltas(client: httpx2.Client, model: str, messages: Messages) -> Iterator[dict[str, str]]:
    """Yield what each event adds to the answer. Raises Failed."""
    body = {"model": model, "messages": messages, "stream": True, **USUAL}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            raise Failed(json.loads(response.read())["error"]["message"])
        for line in response.iter_lines():
            if line == "data: [DONE]":
                return
            if line:
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    raise Failed(event["error"]["message"])
                for choice in event["choices"]:
                    yield choice["delta"]
    raise Failed(LOST)


def visible(text: str) -> str:
    """Return a text without control characters, by which a model could steer the terminal."""
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) != "Cc")
