"""One streamed request to a server that speaks OpenAI's API, and what became of it."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import httpx2

from solutions.server.events import data_of, whole_events
from solutions.serving import Served
from timing.load.requests import Request

DEADLINE = 30.0  # seconds for one request, after which it counts as failed
REFUSED = "refused"


@dataclass(frozen=True)
class ServedInEvents(Served):
    """An answer whose events may hold several tokens. in_first: how many the first one held."""

    in_first: int = 1

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first event; None if it was the only one."""
        if self.first is None or self.last is None or self.tokens <= self.in_first:
            return None
        return (self.last - self.first) / (self.tokens - self.in_first)


@dataclass(frozen=True)
class Answer:
    """What became of a request. Times are in seconds of the event loop's clock.

    sent, end: when it was really sent, and when nothing more could come. why: "" if it is whole,
    REFUSED, or what went wrong. has_usage: whether the server has told how many tokens the answer
    has; otherwise its events with text are counted.
    """

    served: Served
    sent: float
    end: float
    why: str
    text: str
    has_usage: bool

    @property
    def lag(self) -> float:
        """Seconds from the due time until it was sent."""
        return self.sent - self.served.due

    @property
    def latency(self) -> float:
        """Seconds from the due time to the end."""
        return self.end - self.served.due


class Reading:
    """What has been read of an answer so far. why: why it isn't whole."""

    def __init__(self) -> None:
        self.why = "the answer broke off"
        self.first: float | None = None
        self.last: float | None = None
        self.text, self.pieces = "", 0
        self.tokens: int | None = None

    def take(self, data: bytes, now: float) -> None:
        """Take in an event. Raises ValueError if it isn't one of this API."""
        if data == b"[DONE]":
            return
        event = json.loads(data)
        if not isinstance(event, dict):
            raise ValueError("An event must be an object.")
        if "error" in event:
            self.why = f"an error event: {sentence_of(event)}"
        if usage := event.get("usage"):
            self.tokens = usage["completion_tokens"]
        for choice in event.get("choices", []):
            self.take_choice(choice, now)

    def take_choice(self, choice: dict[str, Any], now: float) -> None:
        """Note a piece of the text. The last token may have no text of its own, such as an EOS."""
        text, reason = choice.get("text") or "", choice.get("finish_reason")
        self.text += text
        self.pieces += bool(text)
        if text or reason:
            self.first, self.last = self.first or now, now
        if reason:
            self.why = ""

    def answer(self, due: float, sent: float, end: float) -> Answer:
        tokens = self.pieces if self.tokens is None else self.tokens
        in_first = max(1, round(tokens / (self.pieces or 1)))  # as many as an event on average
        served = ServedInEvents(due, self.first, self.last, tokens, not self.why, in_first)
        return Answer(served, sent, end, self.why, self.text, self.tokens is not None)


class Unusable(Exception):
    """The server can't be measured. The message is a sentence that says why."""


async def name_of_model(url: str, api_key: str | None) -> str:
    """Return the first model that a server lists. Raises Unusable."""
    try:
        async with Client(url, "", api_key) as client:
            response = await client.http.get("/v1/models")
            response.raise_for_status()
            return response.json()["data"][0]["id"]
    except httpx2.HTTPStatusError as error:
        raise Unusable(f"{url}/v1/models: {await why_not(error.response)}.") from error
    except httpx2.HTTPError as error:
        raise Unusable(
            f"No server answers at {url} ({type(error).__name__}). Start one with `make serve`, or "
            "name another with --url."
        ) from error
    except (ValueError, LookupError, TypeError) as error:
        raise Unusable(f"{url} lists no model. Name one with --model.") from error


def sentence_of(body: Any) -> str:
    """Return what an error's body says, whatever server it is."""
    told = body.get("error", body.get("detail", body)) if isinstance(body, dict) else body
    return str(told.get("message", told) if isinstance(told, dict) else told)[:200]


class Client:
    """Sends greedy requests to the server at `url`, over as many connections as it takes.

    deadline: seconds, after which a request is given up. Neither proxies nor redirects are
    followed: requests go to this server or nowhere.
    """

    def __init__(
        self, url: str, model: str, api_key: str | None = None, deadline: float = DEADLINE
    ) -> None:
        self.model, self.deadline = model, deadline
        self.on_answer: Callable[[], object] = lambda: None
        self.http = httpx2.AsyncClient(
            base_url=url,
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=deadline,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.http.aclose()

    async def ask(self, request: Request, due: float) -> Answer:
        """Send a request now, and read its answer as it comes."""
        now: Callable[[], float] = asyncio.get_running_loop().time
        sent, read = now(), Reading()
        body = {
            "model": self.model,
            "prompt": request.prompt,
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            async with (
                asyncio.timeout(self.deadline),
                self.http.stream("POST", "/v1/completions", json=body) as response,
            ):
                if response.status_code == 200:
                    async for events in whole_events(response.aiter_bytes()):
                        for data in data_of(events):
                            read.take(data, now())
                else:
                    read.why = await why_not(response)
        except TimeoutError:
            read.why = f"no whole answer within {self.deadline:g} s"
        except httpx2.HTTPError as error:
            read.why = f"the connection failed ({type(error).__name__})"
        except (ValueError, KeyError, TypeError, AttributeError):
            read.why = "an event that isn't one of this API"
        self.on_answer()
        return read.answer(due, sent, now())


async def why_not(response: httpx2.Response) -> str:
    """Return why a server has not answered a request."""
    if response.status_code == 429:
        return REFUSED
    text = (await response.aread()).decode(errors="replace")
    try:
        told = sentence_of(json.loads(text))
    except ValueError:
        told = text[:200]
    return f"status {response.status_code}: {told}"
