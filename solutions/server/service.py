"""From a request's body to the pieces of its answer, through the lab's parts."""

import asyncio
import hashlib
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal

from solutions.decoding import SamplingParams
from solutions.server.adjusting import Adjustments
from solutions.server.engine_process import EngineProcess
from solutions.server.engine_thread import EngineThread
from solutions.server.formats import derivative_of, read_format
from solutions.server.loaded import read_tokenizer
from solutions.server.messages import EngineFault, Output, Request, TokenLogprob
from solutions.server.metrics import Metrics
from solutions.server.pace import Pace
from solutions.server.protocol import ChatBody, CompletionBody, Refusal, transcript
from solutions.server.settings import Labs, Settings
from solutions.server.tokens import Growing, TokenBytes


@dataclass(frozen=True)
class Piece:
    """A piece of one text: what its newest tokens have added. index: which text of the answer.

    logprobs: of the tokens, if they are asked for; None for a token that nothing comes before.
    offsets: for each token, how many characters of the text come before it.
    """

    index: int
    text: str
    finish_reason: str | None
    ids: list[int]
    logprobs: list[TokenLogprob | None]
    offsets: list[int]


@dataclass
class Answer:
    """An admitted request: its texts, each a request to the engine, and what they have used.

    embeddings: of the prompts, where these are asked for.
    """

    body: CompletionBody | ChatBody
    texts: list[Request]
    prompt_tokens: int
    cached_tokens: int = 0
    completion_tokens: int = 0
    embeddings: dict[int, list[float]] = field(default_factory=dict)
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
        self.bytes_of = TokenBytes(self.tokenizer)
        self.pool = lab.RequestPool(engine)
        self.admission = lab.Admission(settings.target_ttft, self.facts.prefill_rate)
        self.pace = Pace(self.facts.prefill_rate, settings.token_budget)
        self.running: set[str] = set()
        self.waiting = 0  # texts that have no token yet
        self.is_draining = False
        self.reading = ThreadPoolExecutor(1, "formats")
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
        self.reading.shutdown(wait=False, cancel_futures=True)
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

    async def schema_of(self, body: CompletionBody | ChatBody) -> str | None:
        """Return the schema that the answer is asked to fit. Raises Refusal if it isn't supported.

        It is read in a thread of its own, one at a time. The work of each is limited, and one whose
        client has left isn't begun.
        """
        schema = body.answer_schema
        if schema is None:
            return None
        if self.facts.eos_token_id is None:
            told = "This model has no token that ends a text, so no format can be kept."
            raise Refusal(400, told, param="response_format")
        try:
            derivative = derivative_of(self.labs("constrained"))
        except ModuleNotFoundError:
            told = "Formats are kept by lab 14's code, which this copy of the course lacks."
            raise Refusal(400, told, param="response_format") from None
        found = await self.loop.run_in_executor(self.reading, read_format, derivative, schema)
        if isinstance(found, str):
            raise Refusal(400, found, param="response_format")
        return schema

    def require_model(self, name: str) -> None:
        """Raise Refusal for a model that isn't served here."""
        if name != self.settings.name:
            told = f"The model {name[:100]!r} isn't served here; {self.settings.name!r} is."
            raise Refusal(404, told, "model_not_found", "model")

    def admit(
        self,
        body: CompletionBody | ChatBody,
        schema: str | None = None,
        is_embedding: bool = False,
    ) -> Answer:
        """Turn a body into requests, and count their prompts. Raises Refusal."""
        if self.is_draining:
            raise Refusal(503, "The server is shutting down. Try another one.", retry_after=5)
        self.require_model(body.model)
        texts = self.texts_of(body, schema, is_embedding)
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
        answer = Answer(body, texts, tokens // body.n)
        self.metrics.tokens("prompt", answer.prompt_tokens)
        self.running.add(answer.id)
        return answer

    def texts_of(
        self,
        body: CompletionBody | ChatBody,
        schema: str | None,
        is_embedding: bool,
    ) -> list[Request]:
        reads: Literal["nothing", "logprobs", "embedding"] = "nothing"
        if isinstance(body, ChatBody):
            param = "messages"
            prompts = [self.encode(transcript(body.messages), param)]
            asked = body.max_completion_tokens or body.max_tokens
            limit = asked or min(256, max(1, self.facts.n_positions - len(prompts[0])))
        else:
            param = "input" if is_embedding else "prompt"
            prompts = [self.ids_of(prompt, param) for prompt in body.prompts]
            limit = 16 if body.max_tokens is None else max(1, body.max_tokens)
            if is_embedding:
                reads = "embedding"
            elif body.echo and body.logprobs is not None:
                reads = "logprobs"
        if len(prompts) * body.n > self.settings.max_texts:
            told = f"A request is for at most {self.settings.max_texts} texts, prompts times n."
            raise Refusal(400, told, param="n" if body.n > 1 else param)
        for prompt in prompts:
            if len(prompt) + limit > self.facts.n_positions:
                told = f"The prompt has {len(prompt)} tokens and max_tokens is {limit}, together"
                raise self.too_long(told, param)
        self.require_ends(body, limit, schema is not None)
        params, adjustments = self.params_of(body), self.adjustments_of(body)
        answer_id = f"cmpl-{secrets.token_hex(8)}"
        seed = secrets.randbits(62) if body.seed is None else body.seed
        return [
            Request(
                id=f"{answer_id}-{i}",
                prompt=prompts[i // body.n],
                max_new_tokens=limit,
                params=params,
                seed=seed_of(seed, i),
                eos_token_id=None if body.ignore_eos else self.facts.eos_token_id,
                speculation=body.speculation,
                logprobs=body.alternatives,
                stops=tuple(body.stop),
                schema=schema,
                adjustments=adjustments,
                reads=reads,
                # what is found in the cache isn't computed, so there would be nothing to read
                salt=b"" if reads == "nothing" else f"{answer_id}-{i}".encode(),
            )
            for i in range(len(prompts) * body.n)
        ]

    def too_long(self, told: str, param: str) -> Refusal:
        told = f"{told} more than the model's context of {self.facts.n_positions}."
        return Refusal(400, told, "context_length_exceeded", param)

    def require_ends(self, body: CompletionBody | ChatBody, limit: int, has_format: bool) -> None:
        """Raise Refusal if the request says in two ways where the text ends."""
        if body.min_tokens > limit:
            told = f"min_tokens is {body.min_tokens}, but max_tokens is {limit}."
            raise Refusal(400, told, param="min_tokens")
        if body.min_tokens and body.stop:
            told = "A stop string may end a text before min_tokens. Leave one of them out."
            raise Refusal(400, told, param="min_tokens")
        if has_format and (body.ignore_eos or body.min_tokens):
            told = "A response_format says itself where the text ends. Leave `{}` out."
            param = "ignore_eos" if body.ignore_eos else "min_tokens"
            raise Refusal(400, told.format(param), param=param)

    def params_of(self, body: CompletionBody | ChatBody) -> SamplingParams:
        try:
            return SamplingParams(
                temperature=body.temperature,
                top_k=body.top_k,
                top_p=body.top_p,
                min_p=body.min_p,
                repetition_penalty=body.repetition_penalty,
            )
        except ValueError as error:  # a sentence of lab 5
            raise Refusal(400, str(error)) from None

    def adjustments_of(self, body: CompletionBody | ChatBody) -> Adjustments | None:
        bias = {int(token): added for token, added in body.logit_bias.items()}
        self.require_tokens(bias, "logit_bias")
        eos = None if body.ignore_eos else self.facts.eos_token_id
        adjustments = Adjustments(
            body.presence_penalty, body.frequency_penalty, bias, body.min_tokens, eos
        )
        return None if adjustments == Adjustments(eos_token_id=eos) else adjustments

    def encode(self, text: str, param: str) -> list[int]:
        """Return a text's tokens; those of an empty text are the one that begins every text."""
        if len(text.encode()) > self.facts.n_positions * self.bytes_of.longest:
            raise self.too_long(f"The prompt has {len(text):,} characters,", param)
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids or [self.facts.eos_token_id or 0]

    def ids_of(self, prompt: str | list[int], param: str) -> list[int]:
        if isinstance(prompt, str):
            return self.encode(prompt, param)
        self.require_tokens(prompt, param)
        return prompt

    def require_tokens(self, ids: Collection[int], param: str) -> None:
        """Raise Refusal for a token that the model doesn't have."""
        vocab = self.facts.vocab_size
        if max(ids, default=0) >= vocab:
            told = f"Token {max(ids)} isn't in the vocabulary, which has {vocab} tokens."
            raise Refusal(400, told, param=param)

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
        request, body = answer.texts[index], answer.body
        grown = Growing(self.bytes_of)
        text = self.lab.TextStream(grown, request.stops)
        first = last = 0.0
        has_begun, count, reason = False, 0, None
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
                            yield Piece(index, "", reason, [], [], [])
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
                    if shown or logprobs or reason is not None:
                        yield Piece(index, shown, reason, ids, [*logprobs], offsets)
                    if reason is not None:
                        break
        finally:
            if not has_begun:  # it has left before its first token
                self.waiting -= 1
                self.admission.release(len(request.prompt))
            self.metrics.tokens("completion" if reason else "aborted", count)
            self.metrics.ended(reason, count, last - answer.arrived)
            if count > 1 and reason:
                self.metrics.tpot((last - first) / (count - 1))

    def begin(self, answer: Answer, index: int, output: Output, now: float) -> None:
        """Count a text's first token. Of the copies of a prompt, the first one counts it."""
        self.waiting -= 1
        prompt = len(answer.texts[index].prompt)
        self.admission.release(prompt)
        waiting = self.admission.backlog
        self.admission.prefill_rate = self.pace.computed(prompt, waiting, now)
        self.metrics.ttft(now - answer.arrived)
        if index % answer.body.n == 0:
            self.metrics.tokens("cached", output.cached)
            answer.cached_tokens += output.cached
        self.metrics.admitted(prompt, output.cached, output.queued)
        if output.embedding:
            answer.embeddings[index] = output.embedding

    def prompt_piece(self, index: int, request: Request, output: Output) -> Piece:
        """Return the prompt as the piece of a text that begins with it."""
        grown, offsets = Growing(self.bytes_of), list[int]()
        for place in range(len(request.prompt)):
            offsets.append(len(grown.text))
            text = grown(request.prompt[: place + 1])
        logprobs = [] if request.reads == "nothing" else [None, *output.prompt_logprobs]
        return Piece(index, text, None, request.prompt, logprobs, offsets)

    # --------------------------------------------------------------------- choices, as in the API

    def completion_choice(self, piece: Piece) -> dict[str, Any]:
        logprobs = None
        if piece.logprobs:
            name = self.bytes_of.name
            logprobs = {
                "tokens": [name(token) for token in piece.ids],
                "token_logprobs": [one and one.logprob for one in piece.logprobs],
                "top_logprobs": [
                    one and {name(token): logprob for token, logprob in one.top}
                    for one in piece.logprobs
                ],
                "text_offset": piece.offsets,
                "drafted": [one is not None and one.is_drafted for one in piece.logprobs],
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

    def chat_logprob(self, token: int, one: TokenLogprob | None) -> dict[str, Any]:
        assert one is not None, "a chat's prompt isn't echoed"

        def entry(token: int, logprob: float) -> dict[str, Any]:
            name, own = self.bytes_of.name(token), self.bytes_of(token)
            return {"token": name, "logprob": logprob, "bytes": list(own)}

        return {**entry(token, one.logprob), "top_logprobs": [entry(*other) for other in one.top]}


def seed_of(seed: int, index: int) -> int:
    """Return the seed of one text of a request, which no text of another seed shares."""
    return int.from_bytes(hashlib.sha256(f"{seed} {index}".encode()).digest()[:7])


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
            [offset for piece in parts for offset in piece.offsets],
        )
        for index, parts in sorted(texts.items())
    ]
