"""From a request's body to the texts that the engine writes: all that is decided before it."""

import hashlib
import secrets
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

from solutions.checkpoints.templates import THOUGHTS, RefusedChat
from solutions.decoding import SamplingParams
from solutions.families import find_checkpoint, load_chat
from solutions.server.adjusting import Adjustments
from solutions.server.chats import ChatBody, Function, transcript, unanswered, with_objects
from solutions.server.engine_thread import Facts
from solutions.server.languages import Languages
from solutions.server.loaded import read_tokenizer
from solutions.server.messages import (
    AnswerLanguage,
    Calling,
    Language,
    Reads,
    TextRequest,
    Thinking,
)
from solutions.server.metrics import Metrics
from solutions.server.protocol import CompletionBody, Refusal
from solutions.server.served_models import ServedAdapters
from solutions.server.settings import Labs, Settings
from solutions.server.tokens import TokenBytes

MEASURED = 1.0  # seconds at least, of which a rate of prompts is made
MARK = 32  # tokens at a prompt's end, in which a mark is looked for

Body = CompletionBody | ChatBody


class Requests:
    """Reads the bodies of requests, and admits their texts.

    template: how the model has learned to read chats; None if it has learned none.
    waiting: texts that were admitted and have no token yet. waiting_tokens: those of their
    prompts, counted here too, because a learner's first `Admission` counts nothing.
    """

    def __init__(
        self,
        settings: Settings,
        labs: Labs,
        facts: Facts,
        metrics: Metrics,
        adapters: ServedAdapters,
    ) -> None:
        self.settings, self.labs, self.facts, self.metrics = settings, labs, facts, metrics
        self.adapters = adapters
        self.tokenizer = read_tokenizer(settings.model)
        self.template = load_chat(find_checkpoint(settings.model), self.tokenizer)
        self.ends = facts.ends
        self.bytes_of = TokenBytes(self.tokenizer, self.ends)
        self.admission = labs("serving").Admission(settings.target_ttft, facts.prefill_rate)
        self.pace = Pace(facts.prefill_rate, settings.token_budget)
        self.waiting = self.waiting_tokens = 0
        self.languages = Languages(labs, facts)

    # ---------------------------------------------------------------------------------- texts

    def texts_of(
        self, body: Body, form: AnswerLanguage | None, is_embedding: bool
    ) -> list[TextRequest]:
        """Return the texts that a body asks for: n for each of its prompts. Raises Refusal."""
        adapter = self.adapters.find(body.model)
        prompts, limit, param = self.prompts_of(body, is_embedding)
        language = self.language_of(body, form, limit)
        samples = self.samples_of(body)
        if len(prompts) * samples > self.settings.max_texts:
            sentence = f"A request is for at most {self.settings.max_texts} texts, prompts times n."
            raise Refusal(400, sentence, param="n" if body.n > 1 else param)
        for prompt in prompts:
            if len(prompt) + limit > self.facts.context:
                tokens = f"The prompt has {len(prompt)} tokens and max_tokens is {limit}, together"
                raise self.too_long(tokens, param)
        self.require_ends(body, limit, form)
        params, adjustments = self.params_of(body), self.adjustments_of(body)
        reads = reads_of(body, is_embedding)
        has_parts = isinstance(language, Calling | Thinking)
        is_shared = samples > 1 and self.settings.technique == "prefix" and reads == "nothing"
        logprobs = body.alternatives
        if logprobs is None and samples > body.n:
            logprobs = 0  # by which the best ones are found
        answer_id = f"cmpl-{secrets.token_hex(8)}"
        seed = secrets.randbits(62) if body.seed is None else body.seed
        return [
            TextRequest(
                id=f"{answer_id}-{i}",
                prompt=prompts[i // samples],
                max_new_tokens=limit,
                params=params,
                seed=seed_of(seed, i),
                eos_token_id=None if body.ignore_eos else self.facts.eos_token_id,
                other_ends=() if body.ignore_eos else self.facts.other_ends,
                speculation=body.speculation,
                logprobs=logprobs,
                # they end only words, and where these are only the answer knows
                stops=() if has_parts else tuple(body.stop),
                language=language,
                adjustments=adjustments,
                reads=reads,
                adapter=adapter,
                # what is found in the cache isn't computed, so there would be nothing to read
                salt=b"" if reads == "nothing" else f"{answer_id}-{i}".encode(),
                shares=f"{answer_id}-{i // samples * samples}" if is_shared else None,
            )
            for i in range(len(prompts) * samples)
        ]

    def samples_of(self, body: Body) -> int:
        """Return how many texts are written for each prompt. Raises Refusal."""
        if body.samples < body.n:
            sentence = f"Of {body.samples} texts, {body.n} can't be the best: n is at most best_of."
            raise Refusal(400, sentence, param="best_of")
        if body.samples > body.n:
            self.languages.lab("thinking", "best_of")
            if body.stream or body.max_tokens == 0:
                param = "stream" if body.stream else "max_tokens"
                sentence = f"The best text is known when all have ended. Leave `{param}` out."
                raise Refusal(400, sentence, param=param)
        return body.samples

    @cached_property
    def thinks(self) -> bool:
        """Whether the model thinks before it answers, and this copy of the course knows of it."""
        if self.template is None or not self.template.thinks or self.facts.eos_token_id is None:
            return False
        mark = b"".join(map(self.bytes_of, self.tokenizer.encode(THOUGHTS[1]).ids))
        return mark == THOUGHTS[1].encode() and self.languages.has("thinking")

    def language_of(self, body: Body, form: AnswerLanguage | None, limit: int) -> Language | None:
        """Return what a text must be written in: the answer's form, in a chat after thoughts if the
        model thinks. Without a budget these may be as long as the text. Raises Refusal.
        """
        budget = body.thinking_budget if isinstance(body, ChatBody) else None
        if isinstance(body, ChatBody) and self.thinks:
            return Thinking(limit if budget is None else budget, form)
        if budget:
            sentence = "This model doesn't think before it answers. Leave `thinking_budget` out."
            raise Refusal(400, sentence, param="thinking_budget")
        return form

    def prompts_of(self, body: Body, is_embedding: bool) -> tuple[list[list[int]], int, str]:
        """Return a body's prompts, the most tokens of each answer, and the prompts' field."""
        if isinstance(body, ChatBody):
            prompt = self.chat_ids(body)
            most = 256 if self.template is None else 1024  # with one, a model knows how to end
            usual = min(most, max(1, self.facts.context - len(prompt)))
            return [prompt], body.max_completion_tokens or body.max_tokens or usual, "messages"
        param = "input" if is_embedding else "prompt"
        prompts = [self.ids_of(prompt, param) for prompt in body.prompts]
        return prompts, 16 if body.max_tokens is None else max(1, body.max_tokens), param

    def chat_ids(self, body: ChatBody) -> list[int]:
        """Return a chat's tokens up to the answer, as the model's template writes it, or else as a
        plain transcript, which knows nothing of tools. Raises Refusal.
        """
        if found := unanswered(body.messages):
            raise Refusal(400, found[1], param=f"messages[{found[0]}]")
        if self.template is None:
            return self.encode(transcript(body.messages, self.written), "messages")
        plain = [message.plain for message in body.messages]
        if self.thinks:
            plain = self.labs("thinking").without_thoughts(plain)
        functions = [tool.function for tool in body.tools]
        self.require_short(
            "".join(message.text for message in body.messages)
            + "".join(function.model_dump_json() for function in functions),
            "messages",
        )
        try:
            ids = self.template_ids(plain, functions)
        except RefusedChat as error:
            raise Refusal(400, str(error), param="messages") from None
        if self.thinks and not self.tokenizer.decode(ids[-MARK:]).rstrip().endswith(THOUGHTS[0]):
            ids += self.tokenizer.encode(THOUGHTS[0]).ids  # this model begins them by itself
        return ids or [self.facts.eos_token_id or 0]

    def template_ids(
        self, messages: list[dict[str, Any]], functions: Sequence[Function]
    ) -> list[int]:
        """Return a chat's tokens. A template that can't write calls is told of them in words."""
        assert self.template is not None
        plain = {"role", "content", "reasoning_content"}
        if not functions and all(message.keys() <= plain for message in messages):
            return self.template.ids(messages)
        from solutions.calls.prompt import described, told_in_words  # an earlier lab has none

        lab = self.languages.lab("tools", "tools")
        tools = [
            lab.Tool(function.name, function.parameters, None, function.description)
            for function in functions
        ]
        if self.template.writes_calls:
            return self.template.ids(map(with_objects, messages), list(map(described, tools)))
        return self.template.ids(told_in_words(messages, tools, self.written))

    def written(self, message: dict[str, Any]) -> str:
        """Return an answer as the model wrote it."""
        if "tool_calls" not in message:
            return str(message["content"])
        return str(self.languages.lab("tools", "messages").written(message))

    def encode(self, text: str, param: str) -> list[int]:
        """Return a text's tokens; those of an empty text are the one that begins every text."""
        self.require_short(text, param)
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids or [self.facts.eos_token_id or 0]

    def require_short(self, text: str, param: str) -> None:
        """Raise Refusal for a text that is too long, whatever its tokens are."""
        if len(text.encode()) > self.facts.context * self.bytes_of.longest:
            raise self.too_long(f"The prompt has {len(text):,} characters,", param)

    def ids_of(self, prompt: str | list[int], param: str) -> list[int]:
        if isinstance(prompt, str):
            return self.encode(prompt, param)
        self.require_tokens(prompt, param)
        return prompt

    def require_tokens(self, ids: Collection[int], param: str) -> None:
        """Raise Refusal for a token that the model doesn't have."""
        vocab = self.facts.vocab_size
        if max(ids, default=0) >= vocab:
            sentence = f"Token {max(ids)} isn't in the vocabulary, which has {vocab} tokens."
            raise Refusal(400, sentence, param=param)

    def too_long(self, tokens: str, param: str) -> Refusal:
        context, positions = self.facts.context, self.facts.n_positions
        sentence = f"{tokens} more than the model's context of {context}."
        if context < positions:
            sentence = (
                f"{tokens} more than this server's context of {context}. The model's is "
                f"{positions}: see --context and --pool-mb."
            )
        return Refusal(400, sentence, "context_length_exceeded", param)

    def require_ends(self, body: Body, limit: int, form: AnswerLanguage | None) -> None:
        """Raise Refusal if the request says in two ways where the text ends."""
        if body.min_tokens > limit:
            sentence = f"min_tokens is {body.min_tokens}, but max_tokens is {limit}."
            raise Refusal(400, sentence, param="min_tokens")
        if body.min_tokens and body.stop:
            sentence = "A stop string may end a text before min_tokens. Leave one of them out."
            raise Refusal(400, sentence, param="min_tokens")
        if form is not None and (body.ignore_eos or body.min_tokens):
            param = "ignore_eos" if body.ignore_eos else "min_tokens"
            kind = "A response_format" if isinstance(form, str) else "A call"
            sentence = f"{kind} says itself where the text ends. Leave `{param}` out."
            raise Refusal(400, sentence, param=param)

    def params_of(self, body: Body) -> SamplingParams:
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

    def adjustments_of(self, body: Body) -> Adjustments | None:
        bias = {int(token): added for token, added in body.logit_bias.items()}
        self.require_tokens(bias, "logit_bias")
        ends = () if body.ignore_eos else self.ends
        adjustments = Adjustments(
            body.presence_penalty, body.frequency_penalty, bias, body.min_tokens, ends
        )
        return None if adjustments == Adjustments(ends=ends) else adjustments

    # ------------------------------------------------------------------------------- admission

    def admit(self, texts: list[TextRequest]) -> None:
        """Count texts as waiting for their first token. Raises Refusal if that would take long."""
        if self.waiting + len(texts) > self.settings.max_waiting:
            raise self.full("Too many requests are waiting. Try again later.", 1)
        tokens = sum(len(text.prompt) for text in texts)
        wait = self.admission.admit(tokens)
        if wait is not None:
            sentence = "The first token would take too long, because many requests are waiting."
            raise self.full(sentence, wait)
        self.waiting += len(texts)
        self.waiting_tokens += tokens

    def full(self, sentence: str, retry_after: float) -> Refusal:
        self.metrics.count("refused")
        return Refusal(429, sentence, "rate_limit_exceeded", retry_after=retry_after)

    def release(self, text: TextRequest) -> None:
        """Take a text off those that wait: it has its first token, or has left before that."""
        self.waiting -= 1
        self.waiting_tokens -= len(text.prompt)
        self.admission.release(len(text.prompt))

    def begin(self, text: TextRequest, now: float) -> None:
        """Release a text whose first token has come now, and measure how fast prompts are read."""
        self.release(text)
        self.admission.prefill_rate = self.pace.computed(len(text.prompt), self.waiting_tokens, now)


class Pace:
    """The prompt tokens that an engine computes per second, beside all its other work.

    rate: measured before it served. budget: tokens of a step. With fewer of them waiting, steps
    aren't full, and their time says nothing about the rate.
    """

    def __init__(self, rate: float, budget: int) -> None:
        self.rate, self.budget = rate, budget
        self.since: float | None = None
        self.tokens = 0

    def computed(self, tokens: int, waiting: int, now: float) -> float:
        """Note that a prompt of so many tokens was computed; return the rate.

        waiting: tokens of the prompts that are still to be computed. now: in seconds.
        """
        self.tokens += tokens
        if self.since is not None and now >= self.since + MEASURED:
            self.rate = (self.rate + self.tokens / (now - self.since)) / 2
            self.since = None
        if waiting < self.budget:
            self.since = None
        elif self.since is None:
            self.since, self.tokens = now, 0
        return self.rate


def reads_of(body: Body, is_embedding: bool) -> Reads:
    if is_embedding:
        return "embedding"
    is_read = isinstance(body, CompletionBody) and body.echo and body.logprobs is not None
    return "logprobs" if is_read else "nothing"


def seed_of(seed: int, index: int) -> int:
    """Return the seed of one text of a request, which no text of another seed shares."""
    return int.from_bytes(hashlib.sha256(f"{seed} {index}".encode()).digest()[:7])
