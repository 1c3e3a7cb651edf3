"""From a request's body to the pieces of its answer, through the lab's parts."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from solutions.decoding import SamplingParams
from solutions.server.engine_process import EngineProcess
from solutions.server.engine_thread import EngineThread
from solutions.server.formats import SentAutomaton, compiled
from solutions.server.loaded import read_tokenizer
from solutions.server.messages import EngineFault, Output, Request, TokenLogprob
from solutions.server.metrics import Metrics
from solutions.server.pace import Pace
from solutions.server.protocol import ChatBody, CompletionBody, Refusal, transcript
from solutions.server.settings import Labs, Settings

TORN = "\ufffd"  # as in lab 13, whose module a class doesn't get with the lab


@dataclass(frozen=True)
class Piece:
    """A piece of one text: what its newest tokens have added. index: which text of the answer."""

    index: int
    text: str
    finish_reason: str | None
    ids: list[int]
    logprobs: list[TokenLogprob]


@dataclass
class Answer:
    """An admitted request: its texts, each a request to the engine, and what they have used."""

    body: CompletionBody | ChatBody
    texts: list[Request]
    prompt_tokens: int
    cached_tokens: int = 0
    completion_tokens: int = 0
    arrived: float = field(default_factory=time.monotonic)

    @property
    def id(self) -> str:
        return self.texts[0].id.rpartition("-")[0]

    def usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class Service:
    """One model behind one engine. lab: the names of lab 13, the reference's or a learner's; labs:
    where those of lab 14 come from.
    """

    def __init__(
        self, settings: Settings, lab: Any, engine: EngineThread | EngineProcess, labs: Labs
    ) -> None:
        self.settings, self.lab, self.engine, self.labs = settings, lab, engine, labs
        self.facts, self.metrics = engine.facts, Metrics(settings.name)
        self.tokenizer = read_tokenizer(settings.model)
        self.longest_token = max(len(token.encode()) for token in self.tokenizer.get_vocab())
        self.pool = lab.RequestPool(engine)
        self.admission = lab.Admission(settings.target_ttft, self.facts.prefill_rate)
        self.pace = Pace(self.facts.prefill_rate, settings.token_budget)
        self.running: set[str] = set()
        self.waiting = 0  # texts that have no token yet
        self.is_draining = False
        self.began = time.monotonic()

    def start(self, died: Callable[[], None]) -> None:
        """Begin to serve, in the event loop that runs now. died: called if the engine ends."""
        self.loop = asyncio.get_running_loop()
        self.engine.deliver = self.hand_over

        def fail_all() -> None:
            self.is_draining = True
            for request_id in list(self.pool.queues):
                self.pool.deliver(request_id, EngineFault())
            died()

        self.engine.on_death = lambda: self.loop.call_soon_threadsafe(fail_all)
        self.engine.start()

    def stop(self) -> None:
        self.engine.stop()

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, let the running ones end, and fail those that take longer."""
        self.is_draining = True
        latest = time.monotonic() + seconds
        while self.running and time.monotonic() < latest:
            await asyncio.sleep(0.02)
        for request_id in list(self.pool.queues):
            self.engine.abort(request_id)
            fault = self.lab.ServiceError("The server is shutting down.")
            self.pool.deliver(request_id, fault)
        while self.running and time.monotonic() < latest + 1:
            await asyncio.sleep(0.02)

    def hand_over(self, outputs: list[tuple[str, Output | EngineFault]]) -> None:
        """Take a step's outputs from the engine's thread to the event loop."""
        self.loop.call_soon_threadsafe(self.receive, outputs)

    def receive(self, outputs: list[tuple[str, Output | EngineFault]]) -> None:
        self.metrics.came(sum(len(o.new_ids) for _, o in outputs if isinstance(o, Output)))
        for request_id, output in outputs:
            self.pool.deliver(request_id, output)

    # ------------------------------------------------------------------------------- admission

    async def automaton_of(self, body: CompletionBody | ChatBody) -> SentAutomaton | None:
        """Return the automaton of the form that the answer is asked for in. Raises Refusal."""
        schema = body.answer_schema
        if schema is None:
            return None
        if self.facts.eos_token_id is None:
            told = "This model has no token that ends a text, so no format can be kept."
            raise Refusal(400, told, param="response_format")
        try:  # in a thread, because it may take seconds
            automaton_of = self.labs("constrained").automaton_of
            return await asyncio.to_thread(compiled, automaton_of, schema)
        except ValueError as error:  # a sentence of lab 14
            raise Refusal(400, str(error), param="response_format") from None
        except ModuleNotFoundError:
            told = "Formats are kept by lab 14's code, which this copy of the course lacks."
            raise Refusal(400, told, param="response_format") from None

    def admit(
        self, body: CompletionBody | ChatBody, automaton: SentAutomaton | None = None
    ) -> Answer:
        """Turn a body into requests, and count their prompts. Raises Refusal."""
        if self.is_draining:
            raise Refusal(503, "The server is shutting down. Try another one.", retry_after=5)
        if body.model != self.settings.name:
            told = f"The model {body.model[:100]!r} isn't served here; {self.settings.name!r} is."
            raise Refusal(404, told, "model_not_found", "model")
        texts = self.texts_of(body, automaton)
        if self.waiting + len(texts) > self.settings.max_waiting:
            self.metrics.count("refused")
            raise Refusal(429, "Too many requests are waiting. Try again later.",
                          "rate_limit_exceeded", retry_after=1)  # fmt: skip
        tokens = sum(len(text.prompt) for text in texts)
        wait = self.admission.admit(tokens)
        if wait is not None:
            self.metrics.count("refused")
            told = "The first token would take too long, because many requests are waiting."
            raise Refusal(429, told, "rate_limit_exceeded", retry_after=wait)
        self.waiting += len(texts)
        answer = Answer(body, texts, tokens // (body.n or 1))
        self.metrics.tokens("prompt", answer.prompt_tokens)
        self.running.add(answer.id)
        return answer

    def texts_of(
        self, body: CompletionBody | ChatBody, automaton: SentAutomaton | None
    ) -> list[Request]:
        if isinstance(body, ChatBody):
            prompts = [self.encode(transcript(body.messages))]
            asked = body.max_completion_tokens or body.max_tokens
            limit = asked or min(256, max(1, self.facts.n_positions - len(prompts[0])))
        else:
            prompts = [self.ids_of(prompt) for prompt in body.prompts]
            limit = body.max_tokens or 16
        copies = body.n or 1
        if len(prompts) * copies > self.settings.max_texts:
            told = f"A request is for at most {self.settings.max_texts} texts, prompts times n."
            raise Refusal(400, told, param="n")
        for prompt in prompts:
            if len(prompt) + limit > self.facts.n_positions:
                raise Refusal(
                    413,
                    f"The prompt has {len(prompt)} tokens and max_tokens is {limit}, together more "
                    f"than the model's context of {self.facts.n_positions}.",
                    "context_length_exceeded",
                )
        params, answer_id = self.params_of(body), f"cmpl-{secrets.token_hex(8)}"
        seed = secrets.randbits(62) if body.seed is None else body.seed % 2**63
        return [
            Request(
                id=f"{answer_id}-{i}",
                prompt=prompts[i // copies],
                max_new_tokens=limit,
                params=params,
                seed=(seed + i) % 2**63,
                eos_token_id=self.facts.eos_token_id,
                speculation=body.speculation,
                logprobs=body.alternatives,
                automaton=automaton,
            )
            for i in range(len(prompts) * copies)
        ]

    def params_of(self, body: CompletionBody | ChatBody) -> SamplingParams:
        try:
            return SamplingParams(
                temperature=1.0 if body.temperature is None else body.temperature,
                top_k=body.top_k,
                top_p=1.0 if body.top_p is None else body.top_p,
                min_p=body.min_p,
                repetition_penalty=body.repetition_penalty,
            )
        except ValueError as error:  # a sentence of lab 5
            raise Refusal(400, str(error)) from None

    def encode(self, text: str) -> list[int]:
        """Return a text's tokens; those of an empty text are the one that begins every text.

        Raises Refusal, before it computes any, if they must be more than the context has.
        """
        if len(text) > self.facts.n_positions * self.longest_token:
            raise Refusal(
                413,
                f"The prompt has {len(text):,} characters, more than fit into the model's context "
                f"of {self.facts.n_positions} tokens.",
                "context_length_exceeded",
            )
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids or [self.facts.eos_token_id or 0]

    def ids_of(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, str):
            return self.encode(prompt)
        vocab = self.facts.vocab_size
        if max(prompt) >= vocab:
            told = f"Token {max(prompt)} isn't in the vocabulary, which has {vocab} tokens."
            raise Refusal(400, told, param="prompt")
        return prompt

    def decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    # ----------------------------------------------------------------------------------- writing

    async def write(self, answer: Answer) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of all texts as they come. However it ends, nothing stays counted."""
        try:
            is_one = len(answer.texts) == 1
            pieces = self.write_one(answer, 0) if is_one else self.merged(answer)
            async with aclosing(pieces) as written:
                async for piece in written:
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
                async with aclosing(self.write_one(answer, index)) as written:
                    async for piece in written:
                        ready.put_nowait(piece)
                ready.put_nowait(None)
            except Exception as error:
                ready.put_nowait(error)

        tasks = [asyncio.create_task(write(index)) for index in range(len(answer.texts))]
        try:
            unfinished = len(tasks)
            while unfinished:
                came = await ready.get()
                if isinstance(came, BaseException):
                    raise came
                if came is None:
                    unfinished -= 1
                else:
                    yield came
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def write_one(self, answer: Answer, index: int) -> AsyncGenerator[Piece, None]:
        request = answer.texts[index]
        text = self.lab.TextStream(Growing(self.decode), answer.body.stops)
        first = last = 0.0
        count, reason = 0, None
        try:
            async with aclosing(self.pool.stream(request)) as outputs:
                async for output in outputs:
                    before, last = last, time.monotonic()
                    if count:
                        self.metrics.gaps.observe(last - before)
                    else:
                        first = last
                        self.begin(answer, request, output, first)
                    count += len(output.new_ids)
                    answer.completion_tokens += len(output.new_ids)
                    shown = "".join(map(text.push, output.new_ids))
                    reason = "stop" if text.has_stopped else output.finish_reason
                    if reason is not None:
                        shown += text.finish()
                    if shown or output.logprobs or reason is not None:
                        yield Piece(index, shown, reason, output.new_ids, output.logprobs)
                    if reason is not None:
                        break
        finally:
            if not count:  # it has left before its first token
                self.waiting -= 1
                self.admission.release(len(request.prompt))
            self.metrics.tokens("completion" if reason else "aborted", count)
            self.metrics.ended(reason, count, last - answer.arrived)
            if count > 1 and reason:
                self.metrics.tpot((last - first) / (count - 1))

    def begin(self, answer: Answer, request: Request, output: Output, now: float) -> None:
        """Count a text's first token."""
        self.waiting -= 1
        self.admission.release(len(request.prompt))
        waiting = self.admission.backlog
        self.admission.prefill_rate = self.pace.computed(len(request.prompt), waiting, now)
        self.metrics.ttft(now - answer.arrived)
        self.metrics.tokens("cached", output.cached)
        self.metrics.admitted(len(request.prompt), output.cached, output.queued)
        answer.cached_tokens += output.cached

    # --------------------------------------------------------------------- choices, as in the API

    def completion_choice(self, piece: Piece, offset: int = 0) -> dict[str, Any]:
        logprobs = None
        if piece.logprobs:
            tokens = [self.decode([token]) for token in piece.ids]
            logprobs = {
                "tokens": tokens,
                "token_logprobs": [one.logprob for one in piece.logprobs],
                "top_logprobs": [
                    {self.decode([token]): logprob for token, logprob in one.top}
                    for one in piece.logprobs
                ],
                "text_offset": list(accumulate(map(len, tokens[:-1]), initial=offset)),
                "drafted": [one.is_drafted for one in piece.logprobs],
            }
        return {
            "index": piece.index,
            "text": piece.text,
            "logprobs": logprobs,
            "finish_reason": piece.finish_reason,
        }

    def chat_choice(self, piece: Piece, is_whole: bool = False) -> dict[str, Any]:
        logprobs = None
        if piece.logprobs:
            both = zip(piece.ids, piece.logprobs, strict=True)
            logprobs = {"content": [self.chat_logprob(token, one) for token, one in both]}
        said = {"role": "assistant", "content": piece.text}
        return {
            "index": piece.index,
            **({"message": said} if is_whole else {"delta": said}),
            "logprobs": logprobs,
            "finish_reason": piece.finish_reason,
        }

    def chat_logprob(self, token: int, one: TokenLogprob) -> dict[str, Any]:
        def entry(token: int, logprob: float) -> dict[str, Any]:
            text = self.decode([token])
            return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

        return {**entry(token, one.logprob), "top_logprobs": [entry(*other) for other in one.top]}


class Growing:
    """Decodes a text that grows: only its newest tokens, after the last whole character.

    A text of a thousand tokens would otherwise be decoded a thousand times.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self.decode, self.count, self.text = decode, 0, ""

    def __call__(self, ids: list[int]) -> str:
        text = self.text + self.decode(ids[self.count :])
        if not text.endswith(TORN):
            self.count, self.text = len(ids), text
        return text


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Join the pieces of each text, in the order of the texts."""
    texts: dict[int, list[Piece]] = {}
    for piece in pieces:
        texts.setdefault(piece.index, []).append(piece)
    return [
        Piece(
            index,
            "".join(piece.text for piece in parts),
            parts[-1].finish_reason,
            [token for piece in parts for token in piece.ids],
            [one for piece in parts for one in piece.logprobs],
        )
        for index, parts in sorted(texts.items())
    ]
