"""Thinking: budgets that hold to the token, deltas that add up, one prompt for many samples."""

import random
from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt import GPTLMHead, load_tokenizer
from solutions.constrained import IndexGuide, vocabulary_bytes
from solutions.decoding import SamplingParams
from solutions.grammars.regex import parse
from solutions.kv_cache import CachedLMHead
from solutions.speculative import NgramDrafter
from solutions.thinking import (
    Budget,
    ThoughtStream,
    agreed,
    best_of,
    closing,
    forked,
    majority,
    thoughtful,
    without_thoughts,
)
from solutions.thoughts.asking import Asking, Sample
from solutions.thoughts.chains import CLOSED, answer_of, draw, prompt_of, thoughts_of, values

END = CLOSED.encode()
HOT = SamplingParams()


@pytest.fixture(scope="module")
def sums():
    return CachedLMHead.from_pretrained("sums"), load_tokenizer("sums")


@pytest.fixture(scope="module")
def budget(sums):
    vocabulary, eos = vocabulary_bytes(sums[1]), sums[1].eos_token_id
    whole = thoughtful(parse("[0-9][0-9]"), END)
    guides = [IndexGuide(one, vocabulary, eos) for one in (whole, closing(whole, END))]
    return lambda most: Budget(*guides, len(END), most)


def answered(sums, budget, most, questions, k=0) -> list[Sample]:
    drafter = (lambda: NgramDrafter(vocab_size=259)) if k else None
    model, tokenizer = sums
    asking = Asking(model, tokenizer, drafter, k)
    return asking.samples([asking.submit(prompt_of(q), budget(most), 32) for q in questions])


def test_a_chain_by_hand():
    assert values([2, 7, 1, 8]) == [2, 13, 40, 28]
    assert thoughts_of([2, 7, 1, 8]) == "02134028"
    assert answer_of([0, 5]) == "05"


# ------------------------------------------------------------------------------------- a budget


@pytest.mark.parametrize("k", [0, 3])
def test_thoughts_have_exactly_as_many_tokens_as_the_budget_allows(sums, budget, k):
    questions = [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8, 1, 8]]
    for most in (0, 1, 5, 12):
        for sample in answered(sums, budget, most, questions, k):
            assert len(sample.text.partition(CLOSED)[0]) == most
            assert len(sample.answer) == 2
            assert sample.answer.isdigit()


def test_with_drafts_the_texts_are_the_same(sums, budget):
    questions = [draw(random.Random(seed)) for seed in range(8)]
    for most in (3, 20):
        plain, drafted = (answered(sums, budget, most, questions, k) for k in (0, 3))
        assert [one.ids for one in plain] == [one.ids for one in drafted]


def test_the_model_is_right_with_its_thoughts_and_not_without(sums, budget):
    questions = [draw(random.Random(seed), [8]) for seed in range(20)]
    right = [
        sum(sample.answer == answer_of(q) for sample, q in zip(samples, questions, strict=True))
        for samples in (answered(sums, budget, most, questions) for most in (0, 20))
    ]
    assert right[0] <= 2
    assert right[1] >= 18


@given(st.lists(st.sampled_from("ab<>"), max_size=12).map("".join), st.sampled_from(["<>", "<<a"]))
def test_closing_goes_on_from_wherever_the_text_is(text, end):
    whole = thoughtful(parse("1"), end.encode())
    shut, state = closing(whole, end.encode()), 0
    for byte in text.encode():
        state = whole.edges[state].get(byte, state)
    read = ""
    while state < len(end):
        [(byte, state)] = shut.edges[state].items()
        read += chr(byte)
    assert end.endswith(read)
    assert shut.edges[state:] == whole.edges[state:]


def test_a_budget_below_zero_is_refused(budget):
    with pytest.raises(ValueError, match="0 or more, not -1"):
        budget(-1)


# ------------------------------------------------------------------------- thoughts and the answer


@given(st.text("</think>ab", max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_the_deltas_add_up_to_the_text_however_it_is_cut(text, cuts):
    stream, places = (
        ThoughtStream(CLOSED),
        sorted({0, len(text), *(c % (len(text) + 1) for c in cuts)}),
    )
    pieces = [text[a:b] for a, b in pairwise(places)]
    deltas = [delta for piece in pieces for delta in stream.push(piece)] + stream.finish()
    thoughts, content = (
        "".join(delta.get(name, "") for delta in deltas)
        for name in ("reasoning_content", "content")
    )
    assert (thoughts, content) == (text.partition(CLOSED)[0], text.partition(CLOSED)[2])
    assert all(len(delta) == 1 and all(delta.values()) for delta in deltas)


# ------------------------------------------------------------------------------ one of many answers


def test_the_prompt_of_many_samples_is_computed_once(sums, budget):
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    for n in (1, 2, 16):
        asking = Asking(*sums)
        submit = partial(asking.submit, prompt_of(prompt), budget(0), 32, HOT)
        numbers = forked(asking.engine, submit, n)
        samples = asking.samples(numbers)
        new = sum(len(sample.ids) - 1 for sample in samples)  # the last token isn't computed
        assert asking.work == len(prompt) + 2 + (n - 1) + new


def test_logprobs_are_those_of_the_model(sums, budget):
    [sample] = answered(sums, budget, 4, [[2, 7, 1]])
    model, tokenizer = GPTLMHead.from_pretrained("sums"), sums[1]
    ids = torch.tensor([tokenizer.encode(prompt_of([2, 7, 1])) + sample.ids])
    rows = model(ids, torch.arange(ids.shape[1])[None])[0].log_softmax(-1)
    before = ids.shape[1] - len(sample.ids) - 1
    expected = [float(rows[before + n, token]) for n, token in enumerate(sample.ids)]
    assert sample.logprobs == pytest.approx(expected, abs=1e-4)


def test_copies_of_one_sample_win_every_vote():
    assert majority(["7"] * 5 + ["8"] * 4, [-9.0] * 5 + [-0.1] * 4) == "7"
    assert majority(["7"] * 5 + ["8"] * 4, [-9.0] * 5 + [-0.1] * 4, weighted=True) == "8"


def test_each_norm_has_its_bias():
    texts = ["no", "it is so", "notwithstanding"]
    logprobs = [[-1.0], [-0.5, -0.5, -0.5], [-1.2]]
    assert [best_of(texts, logprobs, by) for by in ("sum", "mean", "bytes")] == [0, 1, 2]


@given(st.lists(st.sampled_from("abc"), max_size=9), st.integers(0, 9))
def test_a_decided_vote_stays_as_it_is(answers, cut):
    seen, rest = answers[:cut], answers[cut:]
    votes = {answer: seen.count(answer) for answer in seen}
    if agreed(votes, len(rest)):
        assert majority(seen, [0.0] * len(seen)) == majority(answers, [0.0] * len(answers))


# ---------------------------------------------------------------------------------- the next turn


def test_only_old_thoughts_go():
    user, thought = {"role": "user", "content": "1="}, {"role": "assistant", "content": "01"}
    thought["reasoning_content"] = "01"
    history = [user, thought, user, thought]
    assert without_thoughts(history) == [
        user,
        {"role": "assistant", "content": "01"},
        user,
        thought,
    ]
    assert history[1]["reasoning_content"] == "01"
