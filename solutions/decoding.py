"""Lab 5: decoding strategies. From logits to a token, to a text, and to the end of the text.

A model gives a score to every token of its vocabulary; the engine makes the choice. The functions
from logits to logits come first, in the order in which they are applied. Then a token is drawn, or
beam search follows several texts at once. The last part ends a text at a stop string.

Sources: Holtzman et al., "The curious case of neural text degeneration", ICLR 2020 (top-p); Fan et
al., "Hierarchical neural story generation", ACL 2018 (top-k); Nguyen et al., "Turning up the heat:
min-p sampling", ICLR 2025; Keskar et al., "CTRL", 2019, section 4.1 (repetition penalty).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gpt import GPTConfig
from solutions.batching import require_request
from solutions.kv_cache import CachedLMHead, KVCache

NEVER = float("-inf")  # the logit of a token that can't be drawn: its probability is exp(-inf) = 0
LOWEST_TEMPERATURE = 1e-5  # above 0: a lower one would push logits out of the range of float32

# -------------------------------------------------------------------------------- input checks


def require_temperature(temperature: float) -> None:
    if not (temperature == 0 or LOWEST_TEMPERATURE <= temperature < float("inf")):
        raise ValueError(
            f"A temperature is 0 (greedy) or a number from {LOWEST_TEMPERATURE} up, not "
            f"{temperature}. Below that, the likeliest token always wins: use 0."
        )


def require_top_k(k: int) -> None:
    if k < 1:
        raise ValueError(
            f"top-k keeps at least one token, not {k}. To keep all tokens, leave it out."
        )


def require_top_p(p: float) -> None:
    if not 1e-6 <= p <= 1:  # a lower one can be 0 in the dtype of the probabilities
        raise ValueError(
            f"top-p is a probability from 1e-06 to 1, not {p}. To keep all tokens, leave it out; "
            "to keep the likeliest one, use temperature 0."
        )


def require_min_p(min_p: float) -> None:
    if not 0 <= min_p <= 1:
        raise ValueError(f"min-p is a share from 0 to 1, not {min_p}. To keep all tokens, use 0.")


def require_penalty(penalty: float) -> None:
    if not 1e-5 <= penalty <= 1e5:  # beyond, logits would leave the range of float32
        raise ValueError(
            f"A repetition penalty is a number from 1e-05 to 100,000, not {penalty}. 1 means no "
            "penalty; above 1, repetition becomes less likely."
        )


def require_logits(logits: Float[Tensor, "rows vocab"]) -> None:
    largest = logits.amax(dim=-1)  # NaN if the row contains NaN
    if not largest.isfinite().all():
        row = int((~largest.isfinite()).nonzero()[0, 0])
        raise ValueError(
            f"Row {row} of the logits has {largest[row]} as its largest value, so it gives no "
            "distribution. Was every token masked, or is the model's output broken?"
        )


def require_stops(stops: Sequence[str]) -> None:
    if isinstance(stops, str) or "" in stops:
        raise ValueError(f"Stop strings are a list of texts that aren't empty, not {stops!r}.")


def end_of(config: GPTConfig, prompt: Sequence[int], max_new_tokens: int) -> int:
    """Return the greatest length of a text in tokens, limited by the model's context length."""
    require_request(config, prompt, max_new_tokens)
    return min(len(prompt) + max_new_tokens, config.n_positions)


# --------------------------------------------------------------------------- logits to logits


def apply_repetition_penalty(
    logits: Float[Tensor, "rows vocab"], ids: Int[Tensor, "rows seq"], penalty: float
) -> Float[Tensor, "rows vocab"]:
    """Make the tokens that occur in each row's text so far less likely.

    ids: the text of each row, prompt included. A logit above 0 is divided by `penalty`, a logit
    below 0 is multiplied by it. Each token is penalized once, however often it occurs. `logits`
    and `ids` stay unchanged.
    """
    require_penalty(penalty)
    ### BEGIN SOLUTION
    seen = logits.gather(1, ids)  # [rows, seq]: the logit of each token of the text
    penalized = torch.where(seen > 0, seen / penalty, seen * penalty)
    return logits.scatter(1, ids, penalized)
    ### END SOLUTION


def apply_temperature(
    logits: Float[Tensor, "rows vocab"], temperature: float
) -> Float[Tensor, "rows vocab"]:
    """Divide the logits by a temperature, which sharpens (below 1) or flattens (above 1) the
    distribution that they give.

    Temperature 0 is greedy: the largest logit of each row stays, and all others become -inf. If
    several logits are the largest, the first one stays. `logits` stays unchanged.
    """
    require_temperature(temperature)
    ### BEGIN SOLUTION
    if temperature == 0:
        best = logits.argmax(dim=-1, keepdim=True)
        return torch.full_like(logits, NEVER).scatter(1, best, logits.gather(1, best))
    return logits / temperature
    ### END SOLUTION


def apply_top_k(logits: Float[Tensor, "rows vocab"], k: int) -> Float[Tensor, "rows vocab"]:
    """Keep the k largest logits of each row; the others become -inf.

    If `k` is larger than the vocabulary, all logits stay. If several logits equal the k-th largest,
    all of them may stay, or any of them that make k tokens. `logits` stays unchanged.
    """
    require_top_k(k)
    ### BEGIN SOLUTION
    largest = logits.topk(min(k, logits.shape[1])).values
    return logits.masked_fill(logits < largest[:, -1:], NEVER)
    ### END SOLUTION


def apply_top_p(logits: Float[Tensor, "rows vocab"], p: float) -> Float[Tensor, "rows vocab"]:
    """Keep each row's smallest set of likeliest tokens whose probabilities add up to `p` or more.

    The token that reaches p belongs to the set, so the likeliest token always stays. The logits of
    all others become -inf. If several logits are equal and not all of them are needed, any of them
    may stay, but only as many as needed. `logits` stays unchanged.
    """
    require_top_p(p)
    ### BEGIN SOLUTION
    probs, order = logits.softmax(dim=-1).sort(dim=-1, descending=True)
    before = probs.cumsum(dim=-1) - probs  # the sum of the likelier tokens
    dropped = torch.zeros_like(before, dtype=torch.bool).scatter(1, order, before >= p)
    return logits.masked_fill(dropped, NEVER)
    ### END SOLUTION


def apply_min_p(logits: Float[Tensor, "rows vocab"], min_p: float) -> Float[Tensor, "rows vocab"]:
    """Keep the tokens that are at least `min_p` times as likely as the row's likeliest token.

    The logits of the others become -inf. `logits` stays unchanged.
    """
    require_min_p(min_p)
    ### BEGIN SOLUTION
    probs = logits.softmax(dim=-1)
    likeliest = probs.max(dim=-1, keepdim=True).values
    return logits.masked_fill(probs < min_p * likeliest, NEVER)
    ### END SOLUTION


# ---------------------------------------------------------------------------- drawing a token


@dataclass(frozen=True)
class SamplingParams:
    """How a request chooses its tokens. The defaults draw from the model's own distribution.

    temperature: 0 is greedy. top_k: the number of tokens that stay, None for all. top_p: the
    probability that the tokens that stay must reach together. min_p: the lowest probability, as a
    share of the likeliest token's. repetition_penalty: 1 means no penalty. Raises ValueError for
    settings that make no sense.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        require_temperature(self.temperature)
        if self.top_k is not None:
            require_top_k(self.top_k)
        require_top_p(self.top_p)
        require_min_p(self.min_p)
        require_penalty(self.repetition_penalty)


GREEDY = SamplingParams(temperature=0)


def next_token_probs(
    logits: Float[Tensor, "rows vocab"], ids: Int[Tensor, "rows seq"], params: SamplingParams
) -> Float[Tensor, "rows vocab"]:
    """Return the distribution from which the next token of each row is drawn.

    The order is repetition penalty, temperature, top-k, top-p, min-p, softmax. ids: the text of
    each row so far. All arguments stay unchanged. Raises ValueError if a row of logits contains NaN
    or infinity, or nothing but -inf.
    """
    require_logits(logits)
    ### BEGIN SOLUTION
    if params.repetition_penalty != 1:
        logits = apply_repetition_penalty(logits, ids, params.repetition_penalty)
    logits = apply_temperature(logits, params.temperature)
    if params.top_k is not None:
        logits = apply_top_k(logits, params.top_k)
    if params.top_p < 1:
        logits = apply_top_p(logits, params.top_p)
    if params.min_p > 0:
        logits = apply_min_p(logits, params.min_p)
    return logits.softmax(dim=-1)
    ### END SOLUTION


def draw(
    probs: Float[Tensor, "rows vocab"], uniforms: Float[Tensor, " rows"]
) -> Int[Tensor, " rows"]:
    """Draw a token for each row by inverting its cumulative distribution at the row's uniform.

    The tokens, in the order of their ids, divide the line from 0 to 1 into pieces, each as long as
    the token's probability. The uniform draws the token on whose piece it falls. A piece includes
    its start but not its end, so a token of probability 0 is never drawn. Uniforms are at least 0
    and below 1. A row of `probs` may have any sum above 0: the pieces then have the same
    proportions.
    """
    ### BEGIN SOLUTION
    ends = probs.cumsum(dim=-1)  # where each token's piece ends
    total = ends[:, -1:]
    passed = ends <= uniforms[:, None] * total
    return passed.sum(dim=-1)
    ### END SOLUTION


def sample(
    logits: Float[Tensor, "rows vocab"],
    ids: Int[Tensor, "rows seq"],
    params: SamplingParams,
    generators: Sequence[torch.Generator],
) -> Int[Tensor, " rows"]:
    """Draw the next token of each row, with one uniform from that row's own generator.

    So a request's tokens don't depend on the other requests in the batch. ids: the text of each row
    so far. At temperature 0 the uniform changes nothing, so it may be left out.
    """
    ### BEGIN SOLUTION
    probs = next_token_probs(logits, ids, params)
    uniforms = torch.cat([torch.rand(1, generator=generator) for generator in generators])
    return draw(probs, uniforms.to(probs.device))
    ### END SOLUTION


# ---------------------------------------------------------------- several texts of one prompt


class Rows(Protocol):
    """Continuations of one prompt, each a row of a batch. At first there is one row, the prompt.

    logits: [rows, vocab], for the token after each row's last one.
    """

    logits: Float[Tensor, "rows vocab"]

    def become(self, parents: Sequence[int], /) -> None:
        """Replace row i by a copy of the old row `parents[i]`; the number of rows may change."""

    def append(self, tokens: Sequence[int], /) -> None:
        """Add one token to each row and compute the `logits` after it."""


class CachedRows:
    """Rows with lab 2's cache: a row that continues another gets a copy of its keys and values."""

    def __init__(self, model: CachedLMHead, prompt: Sequence[int], max_length: int) -> None:
        weight = model.transformer.wte.weight
        self.model = model
        self.kv_cache = KVCache(model.config, 1, max_length, weight.device, weight.dtype)
        self.forward([list(prompt)])

    def become(self, parents: Sequence[int]) -> None:
        device = self.kv_cache.keys.device
        self.kv_cache.reorder(torch.tensor(parents, dtype=torch.long, device=device))

    def append(self, tokens: Sequence[int]) -> None:
        self.forward([[token] for token in tokens])

    @torch.no_grad()
    def forward(self, new_ids: list[list[int]]) -> None:
        inputs = torch.tensor(new_ids, device=self.kv_cache.keys.device)
        start = self.kv_cache.length
        position_ids = torch.arange(start, start + inputs.shape[1], device=inputs.device)
        self.logits = self.model(inputs, position_ids.expand_as(inputs), self.kv_cache)[:, -1]


def stream(
    model: CachedLMHead,
    prompt: Sequence[int],
    max_new_tokens: int,
    params: SamplingParams,
    generator: torch.Generator,
    eos_token_id: int | None = None,
) -> Iterator[int]:
    """Yield the new tokens of one request, each as soon as it is drawn. EOS ends the stream."""
    end = end_of(model.config, prompt, max_new_tokens)
    ids, rows = list(prompt), CachedRows(model, prompt, end)
    while len(ids) < end:
        text = torch.tensor([ids], device=rows.logits.device)
        [token] = sample(rows.logits, text, params, [generator]).tolist()
        ids.append(token)
        yield token
        if token == eos_token_id:
            return
        if len(ids) < end:  # no token comes after the last one
            rows.append([token])


def parallel_samples(
    rows: Rows,
    prompt: Sequence[int],
    max_new_tokens: int,
    params: SamplingParams,
    generators: Sequence[torch.Generator],
) -> list[list[int]]:
    """Continue one prompt once for each generator; return prompt and new tokens of each text."""
    rows.become([0] * len(generators))
    texts = [list(prompt) for _ in generators]
    for left in reversed(range(max_new_tokens)):
        ids = torch.tensor(texts, device=rows.logits.device)
        logits = rows.logits.expand(len(texts), -1)  # at first all share the prompt's row
        tokens = sample(logits, ids, params, generators).tolist()
        for text, token in zip(texts, tokens, strict=True):
            text.append(token)
        if left:  # no token comes after the last one
            rows.append(tokens)
    return texts


# ------------------------------------------------------------------------------- beam search


class Candidate(NamedTuple):
    """One beam continued by one token.

    score: the log-probability of the resulting text. parent: the index of the beam.
    """

    score: float
    parent: int
    token: int


@dataclass(frozen=True)
class Beam:
    """A text and the log-probability of its new tokens under the model."""

    ids: list[int]
    score: float


def best_continuations(
    scores: Float[Tensor, " beams"], logits: Float[Tensor, "beams vocab"], count: int
) -> list[Candidate]:
    """Return the `count` likeliest continuations by one token, chosen from all beams together.

    scores: the log-probability of each beam so far. logits: the logits of each beam's next token.
    The best candidate comes first. If there are fewer than `count`, all are returned.
    """
    ### BEGIN SOLUTION
    totals = scores[:, None] + logits.log_softmax(dim=-1)  # [beams, vocab]
    best, places = totals.flatten().topk(min(count, totals.numel()))
    vocab = logits.shape[1]
    return [
        Candidate(score, place // vocab, place % vocab)
        for score, place in zip(best.tolist(), places.tolist(), strict=True)
    ]
    ### END SOLUTION


class BeamSearch:
    """Search for the likeliest text by following the `width` likeliest beginnings at once.

    beams: the texts that go on, the best first; row i of `rows` is beam i. finished: the best
    finished texts, at most `width`, the best first. trace: the candidates of each step.
    """

    def __init__(
        self,
        rows: Rows,
        prompt: Sequence[int],
        max_new_tokens: int,
        width: int,
        length_penalty: float = 1.0,
        eos_token_id: int | None = None,
    ) -> None:
        if width < 1 or max_new_tokens < 1:
            raise ValueError(
                "A search needs at least one beam and one new token; width is "
                f"{width} and max_new_tokens {max_new_tokens}."
            )
        self.rows, self.width = rows, width
        self.prompt_length, self.max_new_tokens = len(prompt), max_new_tokens
        self.length_penalty, self.eos_token_id = length_penalty, eos_token_id
        self.beams = [Beam(list(prompt), 0.0)]
        self.finished: list[Beam] = []
        self.trace: list[list[Candidate]] = []

    def step(self) -> None:
        """Continue all beams by one token.

        Of the 2·width best candidates, those whose token is EOS go to `finish`, if they are among
        the first `width`. The first `width` of the others are the new beams. Then, unless the
        search is done, the rows follow: `become` the parents, then `append` the tokens.
        """
        candidates = self.candidates()
        ### BEGIN SOLUTION
        survivors = []
        for rank, candidate in enumerate(candidates):
            if candidate.token != self.eos_token_id:
                survivors.append(candidate)
            elif rank < self.width:
                self.finish(self.extended(candidate))
        survivors = survivors[: self.width]
        self.beams = [self.extended(candidate) for candidate in survivors]
        if not self.is_done():
            self.rows.become([candidate.parent for candidate in survivors])
            self.rows.append([candidate.token for candidate in survivors])
        ### END SOLUTION

    def candidates(self) -> list[Candidate]:
        """Return the 2·width best candidates of this step.

        At most `width` of them are EOS, one for each beam, so at least `width` others remain.
        """
        logits = self.rows.logits
        scores = logits.new_tensor([beam.score for beam in self.beams])
        self.trace.append(best_continuations(scores, logits, 2 * self.width))
        return self.trace[-1]

    def extended(self, candidate: Candidate) -> Beam:
        """Return the candidate's text: its parent's text and its token."""
        return Beam([*self.beams[candidate.parent].ids, candidate.token], candidate.score)

    def finish(self, beam: Beam) -> None:
        """Keep a finished text if it is among the best `width` finished texts."""
        ranked = sorted([*self.finished, beam], key=self.ranking, reverse=True)
        self.finished = ranked[: self.width]

    def ranking(self, beam: Beam) -> float:
        """Return the score divided by (number of new tokens) ** `length_penalty`.

        Every token makes a text less likely, so without a penalty the shortest text would win.
        """
        return beam.score / (len(beam.ids) - self.prompt_length) ** self.length_penalty

    def is_done(self) -> bool:
        """Whether the beams have reached the limit, or none can overtake the finished texts."""
        new_tokens = len(self.beams[0].ids) - self.prompt_length
        if new_tokens == self.max_new_tokens:
            return True
        if len(self.finished) < self.width:
            return False
        # Scores only fall, so the best possible ranking keeps the present score until the end.
        longest = self.max_new_tokens if self.length_penalty > 0 else new_tokens
        best_possible = self.beams[0].score / longest**self.length_penalty
        return best_possible <= self.ranking(self.finished[-1])

    def run(self) -> list[Beam]:
        """Search to the end and return the best `width` texts, the best first.

        Beams that go on when the search ends count as finished texts too.
        """
        while not self.trace or not self.is_done():
            self.step()
        for beam in self.beams:
            self.finish(beam)
        return self.finished


# ---------------------------------------------------------------------------- where a text ends


def stop_at(pieces: Iterable[str], stops: Sequence[str]) -> Iterator[str]:
    """Pass a text on, piece by piece, up to the first stop string, which is left out.

    A stop string may begin in one piece and end in a later one. So text that may be the beginning
    of a stop string is held back until that is decided, and no other text is held back. Once a stop
    string is complete, the text ends and no further piece is asked for, even if a longer stop
    string might still follow. If one piece completes several, the one that begins first counts. If
    the pieces end without a stop string, all of their text is passed on.
    """
    require_stops(stops)
    ### BEGIN SOLUTION
    held = ""
    for piece in pieces:
        held += piece
        found = [held.index(stop) for stop in stops if stop in held]
        if found:
            yield held[: min(found)]
            return
        begun = [n for stop in stops for n in range(len(stop)) if held.endswith(stop[:n])]
        safe = len(held) - max(begun, default=0)
        yield held[:safe]
        held = held[safe:]
    yield held
    ### END SOLUTION


def decoded(tokens: Iterable[int], tokenizer: Any) -> Iterator[str]:
    """Turn a stream of tokens into pieces of text.

    A token may end in the middle of a character of several bytes; its text then waits for the next
    token.
    """
    ids: list[int] = []
    text, shown = "", 0
    for token in tokens:
        ids.append(token)
        text = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield text[shown:]
            shown = len(text)
    if shown < len(text):  # the stream ended in the middle of a character
        yield text[shown:]
