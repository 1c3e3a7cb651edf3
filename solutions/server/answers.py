"""From the engine's outputs to the bytes of an answer, through the lab's parts.

The engine pushes outputs into the queues of the lab's pool. From there on, all is pulled: the
answer takes them from its texts' queues as fast as its client reads.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from solutions.server.chats import ChatBody
from solutions.server.engine_process import EngineProcess
from solutions.server.engine_thread import EngineThread
from solutions.server.messages import (
    Calling,
    EngineFault,
    TextOutput,
    TextRequest,
    Thinking,
    TokenLogprob,
)
from solutions.server.metrics import Metrics
from solutions.server.protocol import CompletionBody
from solutions.server.requests import Body, Requests
from solutions.server.settings import Labs
from solutions.server.texts import Delta, TextInParts
from solutions.server.tokens import Growing


@dataclass(frozen=True)
class Piece:
    """A piece of one text: what its newest tokens have added. index: which text of the answer.

    logprobs: of the tokens, if they are asked for; None for a token that nothing comes before.
    offsets: for each token, how many characters of the text come before it. deltas: what is added
    to its thoughts and calls; a piece of a stream has one of them at most, and no text beside it.
    is_first: whether no piece of the text comes before it.
    """

    index: int
    text: str = ""
    finish_reason: str | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob | None] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)
    is_first: bool = True


@dataclass
class Answer:
    """The answer to a request: its texts, each a request to the engine, and what they have used.

    embeddings: of the prompts, where these are asked for.
    """

    body: Body
    texts: list[TextRequest]
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    embeddings: dict[int, list[float]] = field(default_factory=dict)
    arrived: float = field(default_factory=time.monotonic)

    @property
    def id(self) -> str:
        return self.texts[0].id.rpartition("-")[0]

    @property
    def prompt_tokens(self) -> int:
        """The tokens of all prompts, each of which has several texts."""
        return sum(len(text.prompt) for text in self.texts) // self.body.samples

    def usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }


Outputs = list[tuple[str, TextOutput | EngineFault]]  # of a step, each with its text's id
Form = Callable[[Piece], dict[str, Any]]  # a piece as a choice of OpenAI's API


class Answers:
    """Writes answers. running: the ids of those that are being written."""

    def __init__(
        self,
        engine: EngineThread | EngineProcess,
        labs: Labs,
        requests: Requests,
        metrics: Metrics,
    ) -> None:
        self.lab, self.requests, self.metrics = labs("serving"), requests, metrics
        self.labs = labs
        self.bytes_of = requests.bytes_of
        self.pool = self.lab.RequestPool(engine)
        self.running: set[str] = set()

    def receive(self, outputs: Outputs) -> None:
        """Put a step's outputs into the queues of their texts."""
        self.metrics.came(sum(len(o.new_ids) for _, o in outputs if isinstance(o, TextOutput)))
        for text_id, output in outputs:
            self.pool.deliver(text_id, output)

    def fail(self, fault: Exception) -> None:
        """End all texts that are being written."""
        for text_id in list(self.pool.queues):
            self.pool.deliver(text_id, fault)

    def new(self, body: Body, texts: list[TextRequest]) -> Answer:
        answer = Answer(body, texts)
        self.metrics.tokens("prompt", answer.prompt_tokens)
        self.running.add(answer.id)
        return answer

    # ---------------------------------------------------------------------------------- pieces

    async def pieces(self, answer: Answer) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of all texts as they come. However it ends, nothing stays counted."""
        try:
            is_one = len(answer.texts) == 1
            source = self.text_pieces(answer, 0) if is_one else self.merged(answer)
            async with aclosing(source) as pieces:
                async for piece in pieces:
                    yield piece
            self.metrics.count("whole")
        except Exception:
            self.metrics.count("failed")
            raise
        except BaseException:
            self.metrics.count("left")
            raise
        finally:
            self.running.discard(answer.id)

    async def merged(self, answer: Answer) -> AsyncGenerator[Piece, None]:
        ready: asyncio.Queue[Piece | BaseException | None] = asyncio.Queue()

        async def write(index: int) -> None:
            try:
                async with aclosing(self.text_pieces(answer, index)) as pieces:
                    async for piece in pieces:
                        ready.put_nowait(piece)
                ready.put_nowait(None)
            except Exception as error:
                ready.put_nowait(error)

        tasks = [asyncio.create_task(write(index)) for index in range(len(answer.texts))]
        try:
            unfinished = len(tasks)
            while unfinished:
                piece = await ready.get()
                if isinstance(piece, BaseException):
                    raise piece
                if piece is None:
                    unfinished -= 1
                else:
                    yield piece
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def text_pieces(self, answer: Answer, index: int) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of one text, up to the one that has a reason why it ends."""
        request, body = answer.texts[index], answer.body
        grown = Growing(self.bytes_of)
        parts = None
        if isinstance(request.language, Calling | Thinking):
            parts = TextInParts(self.labs, grown, request.language, body.stop)
        text = parts or self.lab.TextStream(grown, request.stops)
        first = last = 0.0
        has_begun, is_first, count, reason = False, True, 0, None
        echoed = 0  # characters of the prompt that come before the answer
        try:
            async with aclosing(self.pool.stream(request)) as outputs:
                async for output in outputs:
                    before, last = last, time.monotonic()
                    if has_begun:
                        self.metrics.gaps.observe(last - before)
                    else:
                        has_begun, first = True, last
                        self.begin(answer, index, output, first)
                        if isinstance(body, CompletionBody) and body.echo:
                            yield (prompt := self.prompt_piece(index, request, output))
                            echoed = len(prompt.text)
                        if body.max_tokens == 0:  # the engine always writes a token
                            reason = "length"
                            yield Piece(index, finish_reason=reason)
                            break
                    shown, offsets = "", list[int]()
                    for token in output.new_ids:
                        offsets.append(echoed + len(grown.text))
                        shown += text.push(token)
                        if text.has_stopped:
                            break
                    ids, logprobs = output.new_ids[: len(offsets)], output.logprobs[: len(offsets)]
                    count += len(ids)
                    answer.completion_tokens += len(ids)
                    reason = "stop" if text.has_stopped else output.finish_reason
                    if reason is not None:
                        shown += text.finish()
                    new = new_pieces(index, shown, parts)
                    new[0] = replace(new[0], ids=ids, logprobs=[*logprobs], offsets=offsets)
                    new[-1] = replace(new[-1], finish_reason=self.told(reason, body, parts))
                    for piece in new:
                        if piece.text or piece.logprobs or piece.deltas or piece.finish_reason:
                            yield replace(piece, is_first=is_first)
                            is_first = False
                    if reason is not None:
                        break
        finally:
            if not has_begun:
                self.requests.release(request)
            self.metrics.tokens("completion" if reason else "aborted", count)
            self.metrics.ended(reason, count, last - answer.arrived)
            if parts is not None:
                answer.reasoning_tokens += parts.reasoning_tokens
                self.metrics.called(*parts.called)
            if count > 1 and reason:
                self.metrics.tpot((last - first) / (count - 1))

    def told(self, reason: str | None, body: Body, parts: TextInParts | None) -> str | None:
        """Return the reason that a client is told."""
        if reason and parts and parts.calls and isinstance(body, ChatBody):
            count = parts.calls.count
            return str(self.labs("tools").finish_reason(reason, count, body.tool_choice))
        return reason

    def begin(self, answer: Answer, index: int, output: TextOutput, now: float) -> None:
        """Count a text's first token. Of the copies of a prompt, the first one counts it."""
        text = answer.texts[index]
        self.requests.begin(text, now)
        self.metrics.ttft(now - answer.arrived)
        if index % answer.body.samples == 0:
            self.metrics.tokens("cached", output.cached)
            answer.cached_tokens += output.cached
        self.metrics.admitted(len(text.prompt), output.cached, output.queued)
        if output.embedding:
            answer.embeddings[index] = output.embedding

    def prompt_piece(self, index: int, request: TextRequest, output: TextOutput) -> Piece:
        """Return the prompt as the piece of a text that begins with it."""
        grown, offsets = Growing(self.bytes_of), list[int]()
        for place in range(len(request.prompt)):
            offsets.append(len(grown.text))
            text = grown(request.prompt[: place + 1])
        logprobs = [] if request.reads == "nothing" else [None, *output.prompt_logprobs]
        return Piece(index, text, None, request.prompt, logprobs, offsets)

    # ------------------------------------------------------------- choices, as in the API: forms

    def completion(self, piece: Piece) -> dict[str, Any]:
        logprobs = None
        if piece.logprobs:
            name = self.bytes_of.name
            logprobs = {
                "tokens": [name(token) for token in piece.ids],
                "token_logprobs": [scores and scores.logprob for scores in piece.logprobs],
                "top_logprobs": [
                    scores and {name(token): logprob for token, logprob in scores.top}
                    for scores in piece.logprobs
                ],
                "text_offset": piece.offsets,
                "drafted": [bool(scores and scores.is_drafted) for scores in piece.logprobs],
            }
        return {
            "index": piece.index,
            "text": piece.text,
            "logprobs": logprobs,
            "finish_reason": piece.finish_reason,
        }

    def chat(self, body: ChatBody, piece: Piece) -> dict[str, Any]:
        """Return a chat's choice, which holds a whole "message" or a "delta"."""
        logprobs = None
        if piece.logprobs:
            both = zip(piece.ids, piece.logprobs, strict=True)
            logprobs = {"content": [self.chat_logprob(*token) for token in both]}
        said = {"delta": delta_of(piece)} if body.stream else {"message": self.message(body, piece)}
        return {
            "index": piece.index,
            **said,
            "logprobs": logprobs,
            "finish_reason": piece.finish_reason,
        }

    def message(self, body: ChatBody, piece: Piece) -> dict[str, Any]:
        """Return a whole answer. Without words, its content is null if it has calls or was cut."""
        message: dict[str, Any] = {"role": "assistant", "content": piece.text}
        if body.tools:
            message = self.labs("tools").assembled([{"content": piece.text}, *piece.deltas])
        thoughts = "".join(delta.get("reasoning_content", "") for delta in piece.deltas)
        if not thoughts:
            return message
        was_cut = piece.finish_reason == "length" and not piece.text
        return message | {"reasoning_content": thoughts} | ({"content": None} if was_cut else {})

    def chat_logprob(self, token: int, scores: TokenLogprob | None) -> dict[str, Any]:
        assert scores is not None, "a chat's prompt isn't echoed"

        def entry(token: int, logprob: float) -> dict[str, Any]:
            name, content = self.bytes_of.name(token), self.bytes_of(token)
            return {"token": name, "logprob": logprob, "bytes": list(content)}

        tops, drafted = [entry(*top) for top in scores.top], scores.is_drafted
        return {**entry(token, scores.logprob), "top_logprobs": tops, "drafted": drafted}

    # ----------------------------------------------------------------------------------- answers

    async def events(
        self, answer: Answer, form: Form, head: dict[str, Any]
    ) -> AsyncGenerator[bytes, None]:
        """Yield the events of a streamed answer. The lab's `sse` needn't close what it reads."""
        usage = answer.usage if answer.body.include_usage else None
        async with aclosing(self.pieces(answer)) as pieces:
            choices = (form(piece) async for piece in pieces)
            async with aclosing(self.lab.sse(choices, head, usage)) as events:
                async for event in events:
                    yield event

    async def whole(self, answer: Answer) -> list[Piece]:
        """Return the texts of an answer, each as one piece."""
        texts: list[list[Piece]] = [[] for _ in answer.texts]
        async with aclosing(self.pieces(answer)) as pieces:
            async for piece in pieces:
                texts[piece.index].append(piece)
        whole = [
            Piece(
                index,
                "".join(piece.text for piece in parts),
                parts[-1].finish_reason,
                [token for piece in parts for token in piece.ids],
                [scores for piece in parts for scores in piece.logprobs],
                [offset for piece in parts for offset in piece.offsets],
                [delta for piece in parts for delta in piece.deltas],
            )
            for index, parts in enumerate(texts)
        ]
        return whole if answer.body.samples == answer.body.n else self.best(answer, whole)

    def best(self, answer: Answer, whole: list[Piece]) -> list[Piece]:
        """Return the n likeliest texts of each prompt, by the mean of their tokens' logprobs."""
        body, best_of = answer.body, self.labs("thinking").best_of
        kept = list[Piece]()
        for first in range(0, len(whole), body.samples):
            left = whole[first : first + body.samples]
            for _ in range(body.n):
                scores = [self.own_logprobs(answer, piece) for piece in left]
                kept.append(left.pop(best_of([piece.text for piece in left], scores, "mean")))
        shown = [piece.logprobs if body.alternatives is not None else [] for piece in kept]
        return [
            replace(piece, index=index, logprobs=logprobs)
            for index, (piece, logprobs) in enumerate(zip(kept, shown, strict=True))
        ]

    def own_logprobs(self, answer: Answer, piece: Piece) -> list[float]:
        """Return the logprobs of a text's tokens, without those of an echoed prompt."""
        text = answer.texts[piece.index]
        prompt = len(text.prompt) if text.reads == "logprobs" else 0
        return [scores.logprob for scores in piece.logprobs[prompt:] if scores is not None]


def new_pieces(index: int, words: str, parts: TextInParts | None) -> list[Piece]:
    """Return what a step has added to a text, in its order: thoughts, words, calls. At least one
    piece, which may be empty.
    """
    thoughts, calls = parts.taken() if parts else ([], [])
    said = [Piece(index, words)] if words or not thoughts + calls else []
    added = [Piece(index, deltas=[delta]) for delta in thoughts + calls]
    return [*added[: len(thoughts)], *said, *added[len(thoughts) :]]


def delta_of(piece: Piece) -> Delta:
    """Return what a piece of a streamed chat adds to its message."""
    added = piece.deltas[-1] if piece.deltas else {"content": piece.text}
    return ({"role": "assistant"} if piece.is_first else {}) | added
