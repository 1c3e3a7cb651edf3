"""The reference solution of lab 6: what the target alone would say, in fewer passes.

Greedy text is that of the naive loop, whatever is drafted. Sampled text has the target's own
distribution, shown by enumeration. And no token is computed twice.
"""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from autograder.lending.services import random_model
from gpt import GPTConfig, GPTLMHead
from solutions import speculative as lab_6
from solutions.decoding import GREEDY, SamplingParams, draw, next_token_probs
from solutions.kv_cache import CachedLMHead, KVCache
from solutions.speculative import (
    AdaptiveDrafter,
    ConfidentDrafter,
    Drafter,
    ModelDrafter,
    NgramDrafter,
    Speculated,
    first_layers,
    generate_speculative,
    ngram_draft,
    verify,
    verify_greedy,
)
from tests.common.engines import (
    CONFIGS,
    Work,
    assert_same,
    model_of,
    naive,
    shapes_of_forwards,
    works,
)
from tests.common.serving import Kind, a_perfect_draft, another_model, the_text_itself

drafted = st.integers(1, 6)  # k, what a round may draft

# ------------------------------------------------------------------------------------- drafters


class Anything:
    """Drafts any tokens, from distributions that know nothing; fewer than it may, or none."""

    def __init__(self, config: GPTConfig, seed: int) -> None:
        self.vocab_size, self.rng = config.vocab_size, random.Random(seed)

    def propose(self, ids: Sequence[int], k: int, *_: Any) -> tuple[list[int], Tensor]:
        generator = torch.Generator().manual_seed(self.rng.randrange(2**32))
        count = self.rng.randint(0, k)
        probs = torch.rand(count, self.vocab_size, generator=generator, dtype=torch.float64)
        probs /= probs.sum(dim=-1, keepdim=True)
        return draw(probs, torch.rand(count, generator=generator)).tolist(), probs

    def truncate(self, n: int) -> None:
        pass


class Recites:
    """Knows how the text goes on, for the first `right` drafts of a round; the others are wrong:
    EOS, where that can be."""

    def __init__(self, text: list[int], vocab_size: int, right: int, eos: int | None) -> None:
        self.text, self.vocab_size, self.right, self.eos = text, vocab_size, right, eos

    def propose(self, ids: Sequence[int], k: int, *_: Any) -> tuple[list[int], Tensor]:
        coming = self.text[len(ids) : len(ids) + k]
        others = [(token + 1) % self.vocab_size for token in coming]
        wrong = [
            o if self.eos in (None, t) else self.eos for t, o in zip(coming, others, strict=True)
        ]
        drafts = coming[: self.right] + wrong[self.right :]
        return drafts, F.one_hot(torch.tensor(drafts, dtype=torch.int64), self.vocab_size).double()

    def truncate(self, n: int) -> None:
        pass


def a_smaller_model(config: GPTConfig, seed: int) -> Drafter:
    small = replace(config, n_embd=8, n_layer=1, n_head=2, n_positions=config.n_positions + 3)
    return ModelDrafter(model_of(CachedLMHead, small, seed), config.n_positions)


def its_first_layer(config: GPTConfig, seed: int) -> Drafter:
    return ModelDrafter(first_layers(model_of(CachedLMHead, config, seed), 1), config.n_positions)


def a_model_that_stops(config: GPTConfig, seed: int) -> Drafter:
    drafter = ConfidentDrafter(model_of(CachedLMHead, config, seed + 1), config.n_positions)
    drafter.least = 2 / config.vocab_size  # random models are never surer than that for long
    return drafter


def a_model_that_adapts(config: GPTConfig, seed: int) -> Drafter:
    return AdaptiveDrafter(a_smaller_model(config, seed))


def a_text_that_adapts(config: GPTConfig, seed: int) -> Drafter:
    return AdaptiveDrafter(the_text_itself(config, seed))


MODELS: list[Kind] = [another_model, a_smaller_model, its_first_layer, a_model_that_stops]
ADAPTIVE: list[Kind] = [a_model_that_adapts, a_text_that_adapts]
KINDS: list[Kind] = [*MODELS, *ADAPTIVE, a_perfect_draft, the_text_itself, Anything]
kinds = st.sampled_from(KINDS)


class Watched:
    """A drafter that notes what it is asked and what it answers."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter, self.model = drafter, getattr(drafter, "model", None)
        self.kv_cache: KVCache | None = getattr(drafter, "kv_cache", None)
        self.target_cache: KVCache | None = None
        self.texts: list[list[int]] = []

    def propose(
        self, ids: Sequence[int], k: int, params: SamplingParams, generator: torch.Generator
    ) -> tuple[list[int], Tensor]:
        self.look(len(ids), is_first=not self.texts)
        self.texts.append(list(ids))
        self.drafts, self.probs = self.drafter.propose(ids, k, params, generator)
        assert ids == self.texts[-1]
        assert len(self.drafts) == len(self.probs) <= k
        return self.drafts, self.probs

    def truncate(self, n: int) -> None:
        self.drafter.truncate(n)

    def look(self, length: int, is_first: bool = False) -> None:
        """Between rounds the newest token is in neither cache, and nothing that was rejected is."""
        assert self.target_cache is not None
        assert self.target_cache.length == (0 if is_first else length - 1)
        if self.kv_cache is not None:
            assert self.kv_cache.length <= length - 1


def speculate(target: Any, drafter: Drafter, prompt: list[int], *given: Any) -> Speculated:
    """`generate_speculative`, with a look at caches and texts between the rounds."""
    watched = drafter if isinstance(drafter, Watched) else Watched(drafter)
    new_cache, before = lab_6.new_cache, list(prompt)

    def noted_cache(*given: Any) -> KVCache:
        watched.target_cache = new_cache(*given)
        return watched.target_cache

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lab_6, "new_cache", noted_cache)
        made = generate_speculative(target, watched, prompt, *given)
    assert prompt == before
    assert made.ids is not prompt
    text = list(prompt)
    for held, done in zip(watched.texts, made.rounds, strict=True):
        assert held == text
        assert 0 <= done.accepted <= len(done.drafts)
        before_own = min(done.accepted, len(done.new))  # fewer where an accepted EOS ended the text
        assert done.new[:before_own] == done.drafts[:before_own]
        assert len(done.new) <= done.accepted + 1
        text += done.new
    assert made.ids == text
    assert all(len(done.new) == done.accepted + 1 for done in made.rounds[:-1])
    if made.rounds:
        watched.look(len(text))
    return made


# --------------------------------------------------------------------------------- greedy


one_request = works(most=1)


def speculate_greedily(work: Work, drafter: Any, k: int) -> Speculated:
    """What the loop makes of a request. The target computes every token once: one forward a round,
    over the prompt or the newest token, and the drafts."""
    [prompt], [limit] = work.prompts, work.limits
    with shapes_of_forwards(work.model) as shapes:
        made = speculate(work.model, drafter, prompt, limit, k, GREEDY, None, work.eos)
    assert made.ids == work.expected[0]
    known = [len(prompt), *[1] * len(made.rounds)]
    pairs = zip(known, made.rounds, strict=False)
    if getattr(drafter, "model", None) is not work.model:
        assert shapes == [(1, length + len(done.drafts)) for length, done in pairs]
    return made


@given(one_request, kinds, drafted)
def test_any_draft_gives_the_tokens_of_the_naive_loop(work: Work, kind: Kind, k: int) -> None:
    speculate_greedily(work, kind(work.config, work.seed), k)


@given(one_request, drafted, st.integers(0, 6))
def test_a_round_gains_what_is_right_in_it_and_one_token(work: Work, k: int, right: int) -> None:
    """Up to EOS, wherever in the round it comes; where it is a wrong draft it ends nothing."""
    [prompt], [limit] = work.prompts, work.limits
    text, at = naive(work.config, work.seed, prompt, limit), len(prompt)
    drafter = Recites(text, work.config.vocab_size, right, work.eos)
    for done in speculate_greedily(work, drafter, k).rounds:
        assert len(done.drafts) == min(k, len(text) - at - 1)  # beside the target's own
        assert done.accepted == min(right, len(done.drafts))
        gained = text[at : at + done.accepted + 1]
        assert done.new == (gained[: gained.index(work.eos) + 1] if work.eos in gained else gained)
        at += len(done.new)


@given(one_request, drafted)
def test_a_target_accepts_all_of_its_own_drafts(work: Work, k: int) -> None:
    made = speculate_greedily(work, a_perfect_draft(work.config, work.seed), k)
    assert all(done.accepted == len(done.drafts) for done in made.rounds)
    assert len(made.rounds) == math.ceil(work.new[0] / (k + 1))


@given(one_request, drafted, st.sampled_from(MODELS))
def test_the_draft_computes_every_token_once(work: Work, k: int, kind: Kind) -> None:
    """One forward a draft; the first of a round has the tokens that the cache lacks: one, or two
    after a round in which all were accepted."""
    drafter: Any = kind(work.config, work.seed)
    with shapes_of_forwards(drafter.model) as shapes:
        made = speculate_greedily(work, drafter, k)
    expected, lacking = [], len(work.prompts[0])
    for done in made.rounds:
        count = len(done.drafts)
        expected += [(1, lacking), *[(1, 1)] * (count - 1)][:count]
        lacking = 2 if done.accepted == count else 1
    assert shapes == expected


def test_a_drafter_may_serve_one_text_after_the_other() -> None:
    """The second, longer or shorter, gets the drafts that a new drafter would make for it."""
    config, prompts = CONFIGS[1], [[3, 14, 15, 9, 2, 6], [5, 35], [8, 9, 7, 9, 3]]
    target, drafter = model_of(CachedLMHead, config, 0), another_model(config, 0)
    for prompt in prompts:
        served = generate_speculative(target, drafter, prompt, 6, 3)
        assert served == generate_speculative(target, another_model(config, 0), prompt, 6, 3)


# ------------------------------------------------------------------------------ lossless, a round
#
# Probabilities are multiples of 1/PARTS. Then all that a uniform is ever compared with, p / q and
# the ends of the pieces of p and of the residual, is a multiple of 1/GRID, and the middles of GRID
# equal pieces stand for all the uniforms there are.

PARTS = 3
GRID = math.lcm(*range(1, PARTS + 1))

Text = tuple[int, ...]
Table = dict[Text, list[Fraction]]  # the distribution of the token that follows each text


def distribution(drawn: Sequence[int], vocab: int) -> list[Fraction]:
    return [Fraction(drawn.count(token), len(drawn)) for token in range(vocab)]


@st.composite
def tables(draw: st.DrawFn, vocab: int, longest: int) -> Table:
    """Each distribution is that of PARTS drawn tokens: zeros and certain tokens are common."""
    tokens = st.lists(st.integers(0, vocab - 1), min_size=PARTS, max_size=PARTS)
    return {text: distribution(draw(tokens), vocab) for text in texts_up_to(vocab, longest)}


def texts_up_to(vocab: int, longest: int) -> list[Text]:
    return [text for n in range(longest + 1) for text in product(range(vocab), repeat=n)]


def likelihood(table: Table, text: Text, start: int = 0) -> Fraction:
    """The probability that the table gives to a text after its first `start` tokens."""
    places = range(start, len(text))
    return math.prod((table[text[:n]][text[n]] for n in places), start=Fraction(1))


def rows_of(table: Table, text: Text, count: int) -> Tensor:
    """What the table says after each of the first `count` beginnings of a text."""
    rows = [[float(share) for share in table[text[:n]]] for n in range(count)]
    return torch.tensor(rows, dtype=torch.float64).reshape(count, len(table[()]))


def every_round(target: Table, draft: Table, k: int) -> Iterator[tuple[Fraction, int, Text]]:
    """Every round there can be: how likely it is, how many drafts it accepts, and what it says."""
    middles = (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID
    all_uniforms = torch.stack(torch.meshgrid([middles] * (k + 1), indexing="ij"), -1)
    for drafts in product(range(len(target[()])), repeat=k):
        share = likelihood(draft, drafts) / GRID ** (k + 1)
        if share:
            probs = rows_of(target, drafts, k + 1), rows_of(draft, drafts, k)
            for uniforms in all_uniforms.reshape(-1, k + 1):
                accepted, token = verify(*probs, drafts, uniforms)
                yield share, accepted, (*drafts[:accepted], token)


def assert_lossless(target: Table, draft: Table, k: int) -> None:
    """Exactly: k + 1 tokens, those of a round and then the target's own, are distributed as the
    target's; and the drafts are accepted as often as that allows."""
    vocab = len(target[()])
    said: dict[Text, Fraction] = defaultdict(Fraction)
    begun: dict[Text, Fraction] = defaultdict(Fraction)  # drafts that are accepted from the first
    for share, accepted, text in every_round(target, draft, k):
        for rest in product(range(vocab), repeat=k + 1 - len(text)):
            said[text + rest] += share * likelihood(target, text + rest, len(text))
        for n in range(1, accepted + 1):
            begun[text[:n]] += share
    for text in product(range(vocab), repeat=k + 1):
        assert said[text] == likelihood(target, text)
    for text in texts_up_to(vocab, k)[1:]:
        both = [min(target[text[:n]][text[n]], draft[text[:n]][text[n]]) for n in range(len(text))]
        assert begun[text] == math.prod(both)


@given(st.integers(2, 4), st.integers(0, 2), st.data())
def test_a_round_has_the_targets_own_distribution(vocab: int, k: int, data: st.DataObject) -> None:
    target, draft = data.draw(tables(vocab, k)), data.draw(tables(vocab, k))
    assert_lossless(target, draft, k)


weights = st.lists(st.just(0.0) | st.floats(0.01, 1), min_size=5, max_size=5).filter(any)
probabilities = weights.map(lambda w: torch.tensor(w, dtype=torch.float64) / sum(w))


@given(probabilities, st.none() | probabilities)
def test_the_residual_makes_up_for_what_is_accepted(p: Tensor, drawn: Tensor | None) -> None:
    """min(p, q) + P(reject) * residual = p; where nothing is beyond it is the target's own."""
    q = p.clone() if drawn is None else drawn
    before = p.clone(), q.clone()
    beyond = lab_6.residual(p, q)
    assert (p.equal(before[0]), q.equal(before[1])) == (True, True)
    assert beyond.sum().item() == pytest.approx(1)
    both = torch.minimum(p, q)
    torch.testing.assert_close(both + (1 - both.sum()) * beyond, p, rtol=0, atol=1e-12)
    assert beyond.equal(p) if p.equal(q) else not beyond[p <= q].any()


def test_every_uniform_has_its_own_part() -> None:
    """p / q is 1/2 for token 0 and above 1 for the others; the residual is 1/4 and 3/4 of those."""
    p, q = torch.tensor([0.4, 0.2, 0.4]), torch.tensor([0.8, 0.1, 0.1])
    probs = torch.stack([p, p, torch.tensor([0.0, 0.5, 0.5])]), torch.stack([q, q])
    for uniforms, expected in (
        ([0.49, 0.49, 0.6], (2, 2)),  # accepted; the bonus comes from the last row
        ([0.49, 0.51, 0.1], (1, 1)),  # rejected: 0.1 is on the piece of token 1, which ends at 1/4
        ([0.51, 0.9, 0.1], (0, 1)),  # wherever that is, the last one draws
        ([0.51, 0.1, 0.3], (0, 2)),
    ):
        assert verify(*probs, [0, 0], torch.tensor(uniforms)) == expected


@given(st.integers(1, 5), st.integers(0, 4), st.data())
def test_greedy_is_the_certain_case(vocab: int, k: int, data: st.DataObject) -> None:
    ids = st.integers(0, vocab - 1)
    choices = data.draw(st.lists(ids, min_size=k + 1, max_size=k + 1))
    drafts = data.draw(st.lists(ids, min_size=k, max_size=k))
    uniform = st.floats(0, 1, exclude_max=True, width=32)
    uniforms = torch.tensor(data.draw(st.lists(uniform, min_size=k + 1, max_size=k + 1)))
    certain = torch.eye(vocab)
    before = uniforms.clone()
    expected = verify_greedy(choices, drafts)
    assert verify(certain[choices], certain[drafts], drafts, uniforms) == expected
    assert uniforms.equal(before)
    accepted, token = expected
    assert [*drafts[:accepted], token] == choices[: accepted + 1]
    assert accepted == k or drafts[accepted] != token


# ----------------------------------------------------------------------------- lossless, to the end

THREE = GPTConfig(vocab_size=3, n_positions=8, n_embd=8, n_layer=2, n_head=2)
TWO = replace(THREE, vocab_size=2)
ROUNDING = 1e-10


class Undecided(Exception):
    """The loop wants one more uniform, which decides at these places between 0 and 1."""

    def __init__(self, places: Tensor) -> None:
        self.ends = sorted({0.0, 1.0, *places[(places > 0) & (places < 1)].tolist()})


def courses(run: Callable[..., Text], *uniforms: float) -> Iterator[tuple[float, Text]]:
    """Every course that a run can take after these uniforms: how likely it is, and its result.

    Between two neighboring places all uniforms decide alike, and the one in the middle goes on for
    them. Places that only rounding keeps apart are one.
    """
    try:
        result = run(*uniforms)
    except Undecided as at:
        pieces = [(start, end) for start, end in pairwise(at.ends) if end - start > ROUNDING]
        for start, end in pieces:
            for share, text in courses(run, *uniforms, (start + end) / 2):
                yield (end - start) * share, text
    else:
        yield 1.0, result


def speculated_distribution(
    target: Any, new_drafter: Callable[[], Drafter], prompt: list[int], limit: int, *how: Any
) -> dict[Text, float]:
    """The distribution of what the loop says, over all the uniforms that it may draw."""

    def run(*uniforms: float) -> Text:
        watched, left, rows = Watched(new_drafter()), list(uniforms), [torch.empty(0)]

        def noted_probs(*given: Any) -> Tensor:
            rows.append(next_token_probs(*given))
            return rows[-1]

        def next_uniforms(count: int, *_: Any) -> Tensor:
            probs, taken = rows[-1], left[:count]
            assert len(probs) == count  # one draws a draft, k + 1 verify k of them
            del left[:count]
            if len(taken) < count - 1:
                place = len(taken)
                ratio = probs[place] / watched.probs[place]
                raise Undecided(ratio[watched.drafts[place], None])
            if len(taken) < count:
                both = zip(probs, watched.probs, strict=False) if count > 1 else []
                drawn_from = [probs[-1], *(lab_6.residual(p, q) for p, q in both)]
                raise Undecided(torch.stack(drawn_from).cumsum(dim=-1))
            return torch.tensor(taken, dtype=torch.float64)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lab_6, "next_token_probs", noted_probs)
            patch.setattr(lab_6, "new_uniforms", next_uniforms)
            made = speculate(target, watched, prompt, limit, *how)
        return tuple(made.ids[len(prompt) :])

    distribution: dict[Text, float] = defaultdict(float)
    for share, text in courses(run):
        distribution[text] += share
    return distribution


def plain_distribution(
    model: Any, prompt: list[int], limit: int, params: SamplingParams, eos: int | None
) -> dict[Text, float]:
    """The same of plain sampling, where every text is computed from its start."""
    ids = torch.tensor([prompt])
    logits = model(ids, torch.arange(len(prompt))[None])[:, -1]
    distribution: dict[Text, float] = {}
    for token, share in enumerate(next_token_probs(logits, ids, params)[0].tolist()):
        if limit == 1 or token == eos:
            distribution[token,] = share
        elif share:
            after = plain_distribution(model, [*prompt, token], limit - 1, params, eos)
            distribution |= {(token, *text): share * rest for text, rest in after.items()}
    return distribution


HOW = {
    "temperature": SamplingParams(temperature=0.8),
    "top-p": SamplingParams(temperature=0.8, top_p=0.8),
    "top-k": SamplingParams(temperature=2, top_k=2),
    "penalty": SamplingParams(temperature=1.5, repetition_penalty=1.7),
    "greedy": GREEDY,
}
EXACT_DRAFTS = [another_model, a_perfect_draft, the_text_itself, a_model_that_stops, *ADAPTIVE]


@pytest.mark.parametrize("kind", EXACT_DRAFTS)
@pytest.mark.parametrize(
    ("config", "limit", "k", "how", "eos"),
    [
        *((THREE, 2, 4, how, eos) for how in HOW for eos in (None, 2)),
        # Two drafts a round: a rejection in either place, then another round.
        *((TWO, 3, 2, how, None) for how in ("top-k", "penalty")),
    ],
)
def test_tokens_are_distributed_as_without_a_draft(kind, config, limit, k, how, eos):
    target, params = model_of(CachedLMHead, config, 0), HOW[how]
    prompt = [1, 1]  # where a draft is new to the text, the penalty tells the rows apart
    how_many = limit, k, params, None, eos
    got = speculated_distribution(target, lambda: kind(config, 0), prompt, *how_many)
    expected = plain_distribution(model_of(GPTLMHead, config, 0), prompt, limit, params, eos)
    assert len([share for share in expected.values() if share > 1e-6]) > 1 or params == GREEDY
    for text in got.keys() | expected.keys():
        assert got.get(text, 0) == pytest.approx(expected.get(text, 0), abs=100 * ROUNDING)


@given(one_request, drafted, st.sampled_from([*HOW.values()]))
def test_drafts_are_drawn_from_what_is_handed_over(work, k, params):
    """From the model's distribution after the text and the drafts so far, with one uniform each."""
    [prompt] = work.prompts
    k = min(k, work.config.n_positions - len(prompt) + 1)
    drafter = a_perfect_draft(work.config, work.seed)
    generator, same = (torch.Generator().manual_seed(7) for _ in range(2))
    with torch.no_grad():
        drafts, probs = drafter.propose(prompt, k, params, generator)
    assert len(drafts) == k
    model = model_of(GPTLMHead, work.config, work.seed)
    for place, token in enumerate(drafts):
        ids = torch.tensor([prompt + drafts[:place]])
        logits = model(ids, torch.arange(ids.shape[1])[None])[:, -1]
        assert_same(probs[place : place + 1], next_token_probs(logits, ids, params))
        assert token == draw(probs[place : place + 1], torch.rand(1, generator=same)).item()
    assert generator.get_state().equal(same.get_state())


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_text(kind: Kind) -> None:
    config = CONFIGS[2]

    def made(seed: int) -> Speculated:
        target, generator = model_of(CachedLMHead, config, 0), torch.Generator().manual_seed(seed)
        return speculate(target, kind(config, 0), [3, 1, 3], 12, 4, HOW["top-k"], generator)

    assert made(7) == made(7)
    assert len({tuple(made(seed).ids) for seed in range(4)}) > 1


# ------------------------------------------------------------------------------ stopping in time


@given(one_request, drafted, st.sampled_from([*HOW.values()]), st.floats(0.001, 0.9))
def test_a_model_drafts_until_it_is_unsure_of_all_drafts_together(work, k, params, least):
    """They are the first of those that it would draw without stopping; the unsure one is kept."""
    [prompt] = work.prompts
    k = min(k, work.config.n_positions - len(prompt) + 1)
    confident = ConfidentDrafter(work.model, work.config.n_positions)
    confident.least = least
    both = confident, a_perfect_draft(work.config, work.seed)
    with torch.no_grad():
        (drafts, probs), (every, its_probs) = (
            drafter.propose(prompt, k, params, torch.Generator().manual_seed(7)) for drafter in both
        )
    count = len(drafts)
    assert drafts == every[:count]
    assert_same(probs, its_probs[:count])
    ids = torch.tensor([prompt + every[:-1]])
    model = model_of(GPTLMHead, work.config, work.seed)
    logits = model(ids, torch.arange(ids.shape[1])[None])[0, len(prompt) - 1 :]
    sure = logits.softmax(dim=-1).amax(dim=-1).cumprod(dim=0) >= least
    assert count == k or not sure[count - 1]
    assert sure[: count - 1].all()


def test_two_more_are_drafted_than_were_accepted_and_none_while_it_rests() -> None:
    asked: list[int] = []

    class Asked(Anything):
        def propose(self, ids: Sequence[int], k: int, *_: Any) -> tuple[list[int], Tensor]:
            asked.append(k)
            return [0] * k, torch.ones(k, 1)

    drafter, ids = AdaptiveDrafter(Asked(CONFIGS[0], 0)), [1, 2]
    drafter.truncate(0)
    for accepted in [1, 3, 5, 0, 0, 1, 0, 0, 0, 0, 2]:  # where there are as many drafts
        while True:
            drafts, _ = drafter.propose(ids, 6, GREEDY, torch.Generator())
            ids = [*ids, *drafts[:accepted], 9]
            drafter.truncate(len(ids) - 1)
            if drafts:
                break
    rests = [[0] * length for length in (1, 3, 1, 3, 7, 15)]
    expected = [[4], [3], [5], [6], rests[0], [2], rests[1], [2], [3], rests[2], [2], rests[3], [2]]
    expected += [rests[4], [2], rests[5], [2]]
    assert asked == [k for some in expected for k in some]
    drafter.truncate(0)
    drafter.propose([1], 6, GREEDY, torch.Generator())
    assert asked[-1] == 4


# --------------------------------------------------------------------------------------- n-grams


@given(st.lists(st.integers(0, 3), max_size=14), st.integers(1, 6), st.integers(1, 4))
def test_an_ngram_is_looked_up(ids: list[int], k: int, longest: int) -> None:
    """Of all earlier places where the text's end stands: the longest end, then the latest place."""
    before = list(ids)
    found = ngram_draft(ids, k, longest)
    assert ids == before
    places = [
        (size, start)
        for size in range(1, longest + 1)
        for start in range(len(ids) - size)  # it doesn't match itself, which starts right after
        if ids[start : start + size] == ids[len(ids) - size :]
    ]
    if not places:
        assert found == []
        return
    size, start = max(places)
    followed = ids[start + size :]
    assert found == [followed[n % len(followed)] for n in range(k)]


def test_three_tokens_are_looked_up_unless_another_number_is_given() -> None:
    assert ngram_draft([9, 1, 2, 7, 5, 1, 2, 8, 9, 1, 2], 1) == [7]
    assert ngram_draft([4, 9, 1, 2, 7, 5, 9, 1, 2, 8, 4, 9, 1, 2], 1) == [8]


def test_ngrams_are_certain() -> None:
    drafts, probs = NgramDrafter(5).propose([1, 2, 1], 3, GREEDY, torch.Generator())
    assert drafts == [2, 1, 2]
    assert probs.equal(torch.eye(5)[drafts])
    drafts, probs = NgramDrafter(5).propose([1, 2, 3], 3, GREEDY, torch.Generator())
    assert (drafts, probs.shape) == ([], (0, 5))


# -------------------------------------------------------------------------------- the first layers


@pytest.mark.parametrize("config", CONFIGS)
def test_the_first_layers_are_a_model_in_the_same_memory(config: GPTConfig) -> None:
    target = model_of(CachedLMHead, config, 0)
    ids = torch.arange(6)[None]
    for count in range(1, config.n_layer + 1):
        draft = first_layers(target, count)
        assert draft.config == replace(config, n_layer=count)
        assert not draft.training
        own, shared = draft.state_dict(), target.state_dict()
        assert all(own[name].data_ptr() == shared[name].data_ptr() for name in own)
        apart = CachedLMHead(draft.config).double().eval()
        apart.load_state_dict({name: shared[name] for name in apart.state_dict()})
        with torch.no_grad():
            got, expected = (
                model(ids, torch.arange(6)[None], lab_6.new_cache(model, 6))
                for model in (draft, apart)
            )
        assert got.equal(expected)
    whole = target(ids, torch.arange(6)[None], lab_6.new_cache(target, 6))
    assert_same(got, whole)
    assert len(target.transformer.h) == config.n_layer  # it is left as it was


def test_a_model_made_in_inference_mode_has_first_layers_too() -> None:
    """Nothing in inference mode may ask for gradients, not even for a moment."""
    with torch.inference_mode():
        target = random_model(CachedLMHead, CONFIGS[1], 0)
    assert not any(weight.requires_grad for weight in first_layers(target, 1).parameters())


# ------------------------------------------------------------------------------ when does it pay?


@given(st.floats(0, 1), st.integers(0, 6))
def test_expected_tokens_are_the_mean_over_all_rounds(acceptance: float, k: int) -> None:
    """Each draft would be accepted or not; those up to the first that isn't count, and one more."""
    mean = 0.0
    for fates in product([True, False], repeat=k):
        chance = math.prod(acceptance if fate else 1 - acceptance for fate in fates)
        mean += chance * ([*fates, False].index(False) + 1)
    assert lab_6.expected_tokens(acceptance, k) == pytest.approx(mean)
    if acceptance < 0.99:  # equation 1 of the paper, which divides by what would be 0
        closed_form = (1 - acceptance ** (k + 1)) / (1 - acceptance)
        assert lab_6.expected_tokens(acceptance, k) == pytest.approx(closed_form)


@given(
    st.floats(0, 1),
    st.floats(0, 1),
    st.lists(st.floats(0.5, 4), min_size=1, max_size=8).map(sorted),
)
def test_no_number_of_drafts_is_better_than_the_best(acceptance, draft_cost, costs):
    best = lab_6.best_k(acceptance, draft_cost, costs)
    speeds = [lab_6.speed_up(acceptance, k, draft_cost, cost) for k, cost in enumerate(costs)]
    assert speeds[best] == max(speeds)
    for k, cost in enumerate(costs):
        tokens = lab_6.expected_tokens(acceptance, k)
        assert speeds[k] == pytest.approx(tokens / (k * draft_cost + cost))


# --------------------------------------------------------------------- what is refused, and how


def drafter_of(model: Any, max_length: int = 12) -> ModelDrafter:
    return ModelDrafter(model, max_length)


@pytest.mark.parametrize(
    ("k", "vocabulary", "sentence"),
    [
        (0, 32, "at least one token, not 0. To draft none, use lab 2's"),
        (-1, 32, "at least one token, not -1"),
        (4, 48, "a vocabulary of 48 tokens, the target one of 32. They must share a tokenizer"),
    ],
)
def test_a_draft_that_cannot_serve_is_refused(k: int, vocabulary: int, sentence: str) -> None:
    target, draft = (
        model_of(CachedLMHead, replace(CONFIGS[0], vocab_size=size), 0) for size in (32, vocabulary)
    )
    with shapes_of_forwards(target) as shapes, pytest.raises(ValueError, match=sentence):
        generate_speculative(target, drafter_of(draft), [1], 3, k)
    assert shapes == []


def test_a_draft_may_not_be_too_short_for_the_text() -> None:
    """Of a text that may grow to 10 tokens it computes 8: neither the last draft nor the bonus."""
    config = CONFIGS[0]
    target = model_of(CachedLMHead, config, 0)
    for length, sentence in ((8, None), (7, "7 tokens")):
        short = model_of(CachedLMHead, replace(config, n_positions=length), 1)
        long = model_of(CachedLMHead, config, 1)
        for drafter in (drafter_of(short, 12), drafter_of(long, length)):
            if sentence is None:
                made = speculate(target, drafter, [1, 2], 8, 8)
                assert made.ids == naive(config, 0, [1, 2], 8)
            else:
                with pytest.raises(ValueError, match=sentence):
                    generate_speculative(target, drafter, [1, 2], 8, 8)


@pytest.mark.parametrize("acceptance", [-0.1, 1.1, 60, math.nan])
def test_an_acceptance_that_is_no_share_is_refused(acceptance: float) -> None:
    with pytest.raises(ValueError, match=f"a share from 0 to 1, not {acceptance}"):
        lab_6.best_k(acceptance, 0.1, [1, 1.2])  # by way of speed_up and expected_tokens


@pytest.mark.parametrize("n_layer", [0, -1, 3])
def test_layers_that_are_not_there_are_refused(n_layer: int) -> None:
    with pytest.raises(ValueError, match=f"has 1 to 2 layers to take, not {n_layer}"):
        first_layers(model_of(CachedLMHead, CONFIGS[1], 0), n_layer)


@pytest.mark.parametrize("who", ["target", "draft"])
def test_a_broken_model_is_refused(who: str) -> None:
    models = {name: model_of(CachedLMHead, CONFIGS[0], 0) for name in ("target", "draft")}
    models[who] = random_model(CachedLMHead, CONFIGS[0], 0)
    models[who].transformer.ln_f.bias.fill_(math.nan)
    with pytest.raises(ValueError, match=r"has nan as its largest value.*output broken"):
        generate_speculative(models["target"], drafter_of(models["draft"]), [1, 2], 3, 4)
