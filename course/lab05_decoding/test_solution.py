"""The reference solution of lab 5: which tokens may be drawn, how one is, and where a text ends.

Sets and probabilities are exact, and those of transformers. Whoever else is in the batch, a request
draws its own tokens. Beam search is the one that computes everything again and never stops early.
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
)

from gpt import SHIPPED, GPTConfig, GPTLMHead, load_tokenizer
from solutions import decoding as lab_5
from solutions.decoding import GREEDY, NEVER, BeamSearch, CachedRows
from solutions.decoding import SamplingParams as Params
from solutions.kv_cache import CachedLMHead
from solutions.paged_attention import Family, OutOfBlocks
from tests.common.engines import (
    CONFIGS,
    assert_same,
    continuations,
    model_of,
    naive_logits,
    shapes_of_forwards,
)

ONCE = "Once upon a time there was a king who had a"

# ------------------------------------------------------------------------------ logits to logits


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Logits [rows, vocab], many of them equal, some -inf, and texts of such tokens [rows, seq]."""
    rows, vocab, seq = draw(st.tuples(st.integers(1, 4), st.integers(1, 8), st.integers(1, 6)))
    spread, seed = draw(st.integers(0, 16)), draw(st.integers(0, 999))
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-spread, spread + 1, (rows, vocab), generator=generator) / 2
    is_never = torch.rand(rows, vocab, generator=generator) < 0.25
    is_never[range(rows), torch.randint(vocab, (rows,), generator=generator)] = False
    ids = torch.randint(vocab, (rows, seq), generator=generator)
    return logits.double().masked_fill(is_never, NEVER), ids


ALL_PARAMS = [
    Params(),
    GREEDY,
    Params(temperature=0.7, top_k=3),
    Params(temperature=1.5, top_p=0.9),
    Params(min_p=0.1, repetition_penalty=1.3),
    Params(temperature=2.0, top_k=5, top_p=0.8, min_p=0.05, repetition_penalty=0.8),
]
every_params = st.sampled_from(ALL_PARAMS)


def applied(name: str, logits: Tensor, ids: Tensor, value: Any) -> Tensor:
    function = getattr(lab_5, f"apply_{name}")
    return function(logits, ids, value) if "penalty" in name else function(logits, value)


THEIRS: dict[str, tuple[Any, list[Any]]] = {  # transformers' own, and values to try
    "temperature": (TemperatureLogitsWarper, [1e-5, 0.25, 1.5]),
    "top_k": (TopKLogitsWarper, [1, 3, 10]),
    "min_p": (MinPLogitsWarper, [0.0, 0.01, 0.1, 0.5, 1.0]),
    "repetition_penalty": (RepetitionPenaltyLogitsProcessor, [0.5, 1.0, 1.3, 2.0]),
}
VALUES = {"top_p": [0.3, 0.85, 1], **{name: values for name, (_, values) in THEIRS.items()}}
FUNCTIONS = [
    *[partial(applied, name, value=value) for name, values in VALUES.items() for value in values],
    *[partial(lab_5.next_token_probs, params=params) for params in ALL_PARAMS],
]


@given(batches())
def test_each_row_is_served_as_if_alone_and_nothing_given_changes(batch: Any) -> None:
    logits, ids = (given.clone() for given in batch)
    for function in FUNCTIONS:
        together = function(logits=logits, ids=ids)
        assert torch.equal(logits, batch[0])
        assert torch.equal(ids, batch[1])
        assert together.dtype == logits.dtype
        for row, alone in enumerate(together):
            assert torch.equal(function(logits=logits[[row]], ids=ids[[row]])[0], alone)


@pytest.mark.parametrize("name", THEIRS)
@given(batch=batches())
def test_each_function_is_transformers_own(name: str, batch: Any) -> None:
    """Of logits equal to the k-th largest, which the contract leaves open, all are kept."""
    logits, ids = 0.7 * batch[0], batch[1]  # some of them between 0 and 0.5
    theirs, values = THEIRS[name]
    for value in values:
        assert torch.equal(applied(name, logits, ids, value), theirs(value)(ids, logits))


@given(batches())
def test_at_temperature_0_the_first_of_the_likeliest_stays(batch: Any) -> None:
    logits, _ = batch
    for row, cold in zip(logits.tolist(), lab_5.apply_temperature(logits, 0).tolist(), strict=True):
        best = row.index(max(row))
        assert cold == [NEVER] * best + [row[best]] + [NEVER] * (len(row) - best - 1)


@given(batches(), st.sampled_from([0.25, 0.5, 1]) | st.floats(1e-6, 1))
def test_top_p_keeps_the_smallest_set_that_reaches_p(batch: Any, p: float) -> None:
    for row, got in zip(batch[0], lab_5.apply_top_p(batch[0], p), strict=True):
        kept, probs = got > NEVER, row.softmax(dim=-1)
        assert torch.equal(got, row.where(kept, NEVER))
        assert probs[kept].sum() > p - 1e-9
        assert probs[kept].sum() - probs[kept].min() < p + 1e-9  # without the last it is below
        assert probs[kept].min() >= probs.where(~kept, 0).max()
        if p == 1:
            assert torch.equal(got, row)


def test_the_tokens_that_reach_p_exactly_are_enough() -> None:
    """Probabilities 1/2, 1/4, 1/8, 1/8: no rounding anywhere."""
    logits = torch.tensor([[0.125, 0.5, 0.125, 0.25]]).log2() * math.log(2)
    assert logits.softmax(-1).tolist() == [[0.125, 0.5, 0.125, 0.25]]
    for p, kept in [(0.5, [1]), (0.51, [1, 3]), (0.75, [1, 3]), (0.876, [0, 1, 2, 3])]:
        filtered = lab_5.apply_top_p(logits, p)[0]
        assert filtered.isfinite().nonzero().flatten().tolist() == kept


@given(batches())
def test_close_to_0_the_likeliest_token_wins_without_nan(batch: Any) -> None:
    logits, ids = batch[0].float(), batch[1]
    best = logits == logits.amax(-1, keepdim=True)  # the next one is 0.5 below: 50,000 at T = 1e-5
    cold = lab_5.next_token_probs(logits, ids, Params(temperature=lab_5.LOWEST_TEMPERATURE))
    torch.testing.assert_close(cold, best / best.sum(-1, keepdim=True))
    greedy = lab_5.next_token_probs(logits, ids, GREEDY)
    assert torch.equal(greedy.argmax(-1), logits.argmax(-1))
    assert greedy.max(-1).values.tolist() == greedy.sum(-1).tolist() == [1] * len(logits)


@given(batches(), st.sampled_from([1e-5, 1e5]))
def test_the_most_extreme_settings_still_give_a_distribution(batch: Any, penalty: float) -> None:
    logits, ids = batch[0].float(), batch[1]
    params = Params(temperature=1e-5, top_p=1e-6, min_p=1.0, repetition_penalty=penalty)
    total = lab_5.next_token_probs(logits, ids, params).sum(-1)
    torch.testing.assert_close(total, torch.ones(len(logits)))


def test_no_token_is_lost_where_all_are_kept() -> None:
    """Those at the end have 1e-9 together, which float32 can't tell from nothing beside 1."""
    logits = torch.tensor([[0.0, -21, -22, -23]])
    probs = lab_5.next_token_probs(logits, torch.tensor([[0]]), Params())
    assert torch.equal(probs, logits.softmax(dim=-1))
    assert (probs > 0).all()


# ------------------------------------------------------------------------- equal to transformers


@pytest.fixture(scope="module")
def fable() -> tuple[Any, Any, list[int]]:
    """transformers' model of the shipped weights, the tokenizer, and a prompt."""
    tokenizer = load_tokenizer("fable")
    return GPT2LMHeadModel.from_pretrained(SHIPPED / "fable"), tokenizer, tokenizer.encode(ONCE)


@pytest.mark.parametrize("params", [params for params in ALL_PARAMS if params != GREEDY], ids=str)
def test_the_order_is_that_of_transformers_generate(fable: Any, params: Params) -> None:
    model, _, prompt = fable
    settings = {**vars(params), "top_k": params.top_k or 0, "pad_token_id": 0}
    ids = torch.tensor([prompt])
    kept = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    torch.manual_seed(0)
    drawn = model.generate(ids, do_sample=True, max_new_tokens=3, **settings, **kept)
    for step, (logits, scores) in enumerate(zip(drawn.logits, drawn.scores, strict=True)):
        text = drawn.sequences[:, : len(prompt) + step]
        assert torch.equal(lab_5.next_token_probs(logits, text, params), scores.softmax(dim=-1))


# --------------------------------------------------------------------------------- a token is drawn


def token_at(probs: Tensor, uniform: Any) -> int:
    return int(lab_5.draw(probs[None], torch.as_tensor([uniform])))


def below(number: Any) -> Tensor:
    """The next float32 below."""
    return torch.tensor(number).nextafter(torch.tensor(-1.0))


@given(st.lists(st.integers(0, 8), max_size=8), st.sampled_from([1 / 64, 1, 3]))
def test_every_token_has_the_stretch_of_its_probability(weights: list[int], scale: float) -> None:
    """From its beginning to just before its end, whatever the sum; those with 0 have none."""
    weights = [*weights, 64 - sum(weights)]  # 64 in all: every border is exact in float32
    start = 0.0
    for token, weight in enumerate(weights):
        end = start + weight / 64
        if weight:
            for uniform in (start, (start + end) / 2, below(end)):
                assert token_at(torch.tensor(weights) * scale, uniform) == token
        start = end


@pytest.mark.parametrize(
    ("probs", "first", "last"),
    [
        ([0.1] * 10 + [0], 0, 9),  # their sum is above 1 in float32,
        ([0.7, 0.1, 0.1, 0.1, 0], 0, 3),  # below 1,
        ([1, 1e-9, 0], 0, 0),  # and here too small to be told from 1
    ],
)
def test_the_ends_of_the_line_belong_to_tokens_that_can_be_drawn(probs, first, last):
    line = torch.tensor(probs)
    assert token_at(line, 0.0) == first
    assert token_at(line, below(1.0)) == last


@given(batches(), every_params, st.floats(0, 1, exclude_max=True, width=32))
def test_a_token_of_probability_0_is_never_drawn(batch, params, uniform):
    probs = lab_5.next_token_probs(batch[0].float(), batch[1], params)
    rows = torch.arange(len(probs))
    for uniforms in torch.tensor([[0.0], [uniform], [below(1.0)]]).expand(-1, len(probs)):
        before = probs.clone(), uniforms.clone()
        tokens = lab_5.draw(probs, uniforms)
        assert (probs[rows, tokens] > 0).all()
        assert torch.equal(probs, before[0])
        assert torch.equal(uniforms, before[1])
        assert tokens.tolist() == [token_at(*row) for row in zip(probs, uniforms, strict=True)]


# ---------------------------------------------------------------------------------- whole texts


def naive_sample(case: Any, params: Params, draws_with: int) -> list[int]:
    config, seed, prompt, new = case
    ids, generator = list(prompt), torch.Generator().manual_seed(draws_with)
    for _ in range(new):
        logits = naive_logits(config, seed, [ids])
        probs = lab_5.next_token_probs(logits, torch.tensor([ids]), params)
        ids.append(token_at(probs[0], torch.rand(1, generator=generator).item()))
    return ids


@given(continuations(), every_params, st.integers(0, 9), st.data())
def test_a_stream_costs_one_forward_a_token_and_ends_with_eos(case, params, draws_with, data):
    config, seed, prompt, new = case
    expected = naive_sample(case, params, draws_with)[len(prompt) :]
    eos = data.draw(st.none() | st.sampled_from(expected))
    if eos is not None:
        expected = expected[: expected.index(eos) + 1]
    model, generator = model_of(CachedLMHead, config, seed), torch.Generator()
    with shapes_of_forwards(model) as shapes:
        tokens = lab_5.stream(model, prompt, new, params, generator.manual_seed(draws_with), eos)
        assert shapes == []
        for place, token in enumerate(expected):
            assert next(tokens) == token
            assert shapes == [(1, len(prompt))] + [(1, 1)] * place
        assert list(tokens) == []
        assert len(shapes) == len(expected)


def both_rows(config: GPTConfig, seed: int, prompt: list[int], new: int, *pool: int) -> Any:
    """Rows over lab 2's cache, with no place to spare, and over lab 4's blocks."""
    model = model_of(CachedLMHead, config, seed)
    return CachedRows(model, prompt, len(prompt) + new - 1), Family(model, prompt, *pool)


def test_all_rows_may_leave() -> None:
    rows, family = both_rows(CONFIGS[0], 0, [1, 2], 3, 8, 2)
    for each in (rows, family):
        each.become([])
    assert rows.kv_cache.keys.shape[1] == family.manager.used_blocks == 0


@given(continuations(), st.integers(1, 4), st.integers(1, 17), every_params, st.integers(0, 9))
def test_a_sample_is_the_same_whoever_else_is_drawn(case, samples, block_size, params, first):
    _, _, prompt, new = case
    before, numbers = list(prompt), range(first, first + samples)
    rows, family = both_rows(*case, 99, block_size)
    expected = [naive_sample(case, params, number) for number in numbers]
    for each in (rows, family):
        generators = [torch.Generator().manual_seed(number) for number in numbers]
        assert lab_5.parallel_samples(each, prompt, new, params, generators) == expected
    assert prompt == before
    is_cut = len(prompt) % block_size > 0
    assert family.copies == (samples - 1 if is_cut and new > 1 else 0)


# ------------------------------------------------------------------------------------- beam search


def naive_search(
    case: Any, width: int, penalty: float, eos: int | None
) -> tuple[list[tuple[float, list[int]]], list[list[list[int]]]]:
    """Scores and texts, the best first, and the beams of each step; all steps, each from the start.

    A text that ends is kept for good, whatever may still come.
    """
    config, seed, prompt, new = case
    beams, ended, history = [(0.0, list(prompt))], [], []
    for _ in range(new):
        logits = naive_logits(config, seed, [ids for _, ids in beams])
        candidates = [
            (score + log_prob, [*ids, token])
            for (score, ids), scored in zip(beams, logits.log_softmax(-1).tolist(), strict=True)
            for token, log_prob in enumerate(scored)
        ]
        candidates.sort(reverse=True)
        ended += [found for found in candidates[:width] if found[1][-1] == eos]
        beams = [found for found in candidates if found[1][-1] != eos][:width]
        history.append([ids for _, ids in beams])

    def rank(found: tuple[float, list[int]]) -> float:
        return found[0] / (len(found[1]) - len(prompt)) ** penalty

    return sorted(ended + beams, key=rank, reverse=True)[:width], history


def blocks_shared(rows: list[list[int]], block_size: int) -> int:
    """Blocks for texts that share all they have in common: one for each way in which one begins."""
    ends = range(block_size, len(rows[0]) + block_size, block_size)
    return len({tuple(row[:end]) for row in rows for end in ends})


penalties = st.sampled_from([-0.5, 0.0, 0.5, 1.0, 2.0])


widths = st.sampled_from([1, 2, 3, 4, 5, 50])  # at first there are no 50 candidates


@given(continuations(), widths, penalties, st.integers(1, 17), st.data())
def test_beam_search_is_that_which_computes_everything_again(
    case: Any, width: int, penalty: float, block_size: int, data: st.DataObject
) -> None:
    config, seed, prompt, new = case
    before, (_, history) = list(prompt), naive_search(case, width, penalty, None)
    likely = sorted({ids[-1] for beams in history for ids in beams})
    eos = data.draw(st.none() | st.sampled_from(likely))
    expected, history = naive_search(case, width, penalty, eos)

    def search_over(rows: Any) -> BeamSearch:
        return BeamSearch(rows, prompt, new, width, penalty, eos)

    rows, family = both_rows(*case, 999, block_size)
    for each in (rows, family):
        search, steps = search_over(each), 0
        while not search.is_done():
            search.step()
            assert [beam.ids for beam in search.beams] == history[steps]
            steps += 1
            if not search.is_done():
                assert_same(each.logits, naive_logits(config, seed, history[steps - 1]))
        found = search.run()
        assert [beam.ids for beam in found] == [ids for _, ids in expected]
        scores = [score for score, _ in expected]
        assert [beam.score for beam in found] == pytest.approx(scores, rel=1e-9)
    assert prompt == before

    stored = history[: steps - 1]  # nothing is computed after the last tokens
    peak_blocks = max(blocks_shared(beams, block_size) for beams in [[prompt], *stored])
    copies = sum(
        len(beams) - len({tuple(ids[:-1]) for ids in beams})
        for beams in stored
        if (len(beams[0]) - 1) % block_size
    )
    assert (family.peak_blocks, family.copies) == (peak_blocks, copies)
    if peak_blocks > 1:
        with pytest.raises(OutOfBlocks):
            search_over(both_rows(*case, peak_blocks - 1, block_size)[1]).run()


class ByLastToken:
    """Rows in which the last token alone decides about the next one."""

    def __init__(self, probs: Any, first: int) -> None:
        self.table, self.last, self.appended = torch.tensor(probs).log(), [first], 0
        self.logits = self.table[self.last]

    def become(self, parents: Any) -> None:
        self.last = [self.last[parent] for parent in parents]

    def append(self, tokens: Any) -> None:
        self.appended, self.last = self.appended + 1, list(tokens)
        self.logits = self.table[self.last]


END, A, B = range(3)
CHANCES = [[1, 0, 0], [0.9, 0.05, 0.05], [0.5, 0.4, 0.1]]  # after END, A, B


def test_a_search_ends_when_nothing_can_become_better() -> None:
    rows = ByLastToken(CHANCES, first=B)
    assert BeamSearch(rows, [B], 50, 1, 0, END).run()[0].ids == [B, END]
    assert rows.appended == 0


def test_a_search_goes_on_while_something_can_become_better() -> None:
    """Where longer is worse: after two steps -4.24 is the second best, and -1.47 goes on."""
    c, chances = 3, [[1.0, 0, 0, 0], [0.2, 0, 0, 0.8], [0.3, 0.6, 0, 0.1], [1.0, 0, 0, 0]]
    found = BeamSearch(ByLastToken(chances, first=B), [B], 50, 2, -1, END).run()
    assert [beam.ids for beam in found] == [[B, END], [B, A, c, END]]


def transformers_beams(
    model: Any, prompt: list[int], new: int, width: int, penalty: float, eos: int
) -> list[list[int]]:
    ids = torch.tensor([prompt])
    ends = {"max_new_tokens": new, "eos_token_id": eos, "pad_token_id": eos}
    beams = {"num_beams": width, "num_return_sequences": width, "length_penalty": penalty}
    mask, exact = torch.ones_like(ids), {"do_sample": False, "early_stopping": "never"}
    found = model.generate(ids, attention_mask=mask, **ends, **beams, **exact)
    texts = [text[len(prompt) :] for text in found.tolist()]
    return [[*prompt, *(t[: t.index(eos) + 1] if eos in t else t)] for t in texts]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_beam_search_is_that_of_transformers(config: GPTConfig, penalty: float) -> None:
    sizes = {name: getattr(config, name) for name in ("vocab_size", "n_positions", "n_embd")}
    theirs = GPT2LMHeadModel(GPT2Config(**sizes, n_layer=config.n_layer, n_head=config.n_head))
    prompt, new, ended_early = [3, 14, 15], config.n_positions - 3, 0
    for seed in range(2):
        weights = model_of(GPTLMHead, config, seed).transformer.state_dict()
        theirs.double().eval().transformer.load_state_dict(weights)
        _, history = naive_search((config, seed, prompt, 3), 3, 0, None)
        for width, eos in [(2, history[0][1][-1]), (3, history[1][0][-1]), (4, history[2][0][-1])]:
            rows, _ = both_rows(config, seed, prompt, new, 9, 9)
            search = BeamSearch(rows, prompt, new, width, penalty, eos)
            texts = [beam.ids for beam in search.run()]
            assert texts == transformers_beams(theirs, prompt, new, width, penalty, eos)
            ended_early += any(len(text) < len(prompt) + new for text in texts)
    assert ended_early > 0


# ------------------------------------------------------------------------------ where a text ends


def shown_by_a_rereader(pieces: list[str], stops: list[str]) -> list[str]:
    """All that is shown after each piece, from the whole text so far; ends with the stop."""
    shown: list[str] = []
    text = ""
    for piece in pieces:
        text += piece
        if found := [text.find(stop) for stop in stops if stop in text]:
            return [*shown, text[: min(found)]]
        beginnings = {stop[:n] for stop in stops for n in range(len(stop))}
        held = max((len(b) for b in beginnings if text.endswith(b)), default=0)
        shown.append(text[: len(text) - held])
    return shown


def watched(pieces: list[str], stops: list[str]) -> tuple[list[str], str]:
    """What has been shown whenever another piece, or the end, was asked for, and in all."""
    seen: list[str] = []
    parts: list[str] = []

    def asked() -> Iterator[str]:
        for piece in pieces:
            seen.append("".join(parts))
            yield piece
        seen.append("".join(parts))

    for part in lab_5.stop_at(asked(), stops):
        parts.append(part)
    return seen, "".join(parts)


short = partial(st.text, alphabet="ab")


@given(st.lists(short(max_size=5), max_size=6), st.lists(short(min_size=1, max_size=4), max_size=3))
def test_a_text_stops_as_if_it_were_read_again_at_each_piece(pieces, stops):
    """All that can't begin a stop is shown before more is asked for; nothing is after a stop."""
    before = list(pieces), list(stops)
    expected = shown_by_a_rereader(pieces, stops)
    text, (seen, shown) = "".join(pieces), watched(pieces, stops)
    if any(stop in text for stop in stops):
        assert ["", *expected] == [*seen, shown]
    else:
        assert ["", *expected] == seen
        assert shown == text
    assert (pieces, stops) == before


@given(text=st.text(max_size=20), cut=st.integers(0, 20))
def test_decoded_pieces_join_to_the_text(fable: Any, text: str, cut: int) -> None:
    """Even if the stream ends in the middle of a character."""
    tokenizer = fable[1]
    ids = tokenizer.encode(text)
    assert "".join(lab_5.decoded(iter(ids), tokenizer)) == text
    assert "".join(lab_5.decoded(ids[:cut], tokenizer)) == tokenizer.decode(ids[:cut])


def test_a_character_of_several_tokens_waits_for_its_last(fable: Any) -> None:
    """And for no more: the pieces shown when each of the tokens has been read."""
    tokenizer = fable[1]
    ids, shown, text = tokenizer.encode("a 😀é!"), [""], ""

    def read_one_by_one() -> Iterator[int]:
        for token in ids:
            yield token
            shown.append(text)

    for piece in lab_5.decoded(read_one_by_one(), tokenizer):
        text += piece
    partly = [tokenizer.decode(ids[:n]) for n in range(len(ids) + 1)]
    assert shown == [part.rstrip("\N{REPLACEMENT CHARACTER}") for part in partly]
    assert shown != partly


# --------------------------------------------------------------------- what is refused, and how

NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "values", "sentence"),
    [
        ("temperature", [-1, -1e-9, 1e-9, NAN, INFINITY], r"0 \(greedy\) or a number from 1e-05"),
        ("top_k", [0, -3], "keeps at least one token"),
        ("top_p", [0, 1e-46, -0.1, 1.1, NAN], "a probability from 1e-06 to 1"),
        ("min_p", [-0.1, 2, NAN], "a share from 0 to 1"),
        ("repetition_penalty", [0, 1e-39, -1, 2e5, NAN, INFINITY], "from 1e-05 to 100,000"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(name, values, sentence):
    for value in values:
        with pytest.raises(ValueError, match=f"{sentence}.*not {value}"):
            applied(name, torch.zeros(1, 3), torch.tensor([[0]]), value)
        with pytest.raises(ValueError, match=f"{sentence}.*not {value}"):
            Params(**{name: value})


@pytest.mark.parametrize("row", [[0, NAN, 1], [NEVER] * 3, [0, INFINITY, 1]], ids=str)
def test_logits_without_a_distribution_are_refused(row: list[float]) -> None:
    logits, ids = torch.tensor([[0, 1, NEVER], row]), torch.tensor([[0], [1]])
    for params in ALL_PARAMS:
        with pytest.raises(ValueError, match=r"Row 1 of the logits has (nan|-inf|inf) as"):
            lab_5.next_token_probs(logits, ids, params)
        with pytest.raises(ValueError, match=r"no distribution\. Was every token"):
            lab_5.sample(logits, ids, params, [torch.Generator(), torch.Generator()])


@pytest.mark.parametrize("stops", [[""], ["a", ""], "stop", ""])
def test_a_stop_string_that_is_everywhere_is_refused(stops: Any) -> None:
    with pytest.raises(ValueError, match="list of texts that aren't empty, not"):
        list(lab_5.stop_at(["text"], stops))


@pytest.mark.parametrize(("width", "new"), [(0, 3), (-1, 3), (2, 0), (2, -1)])
def test_a_search_that_cannot_be_is_refused(width: int, new: int) -> None:
    sentence = f"at least one beam and one new token; width is {width} and max_new_tokens {new}"
    with pytest.raises(ValueError, match=sentence):
        BeamSearch(ByLastToken(CHANCES, first=B), [B], new, width)
