"""Lab 6's exercises: right answers in other styles pass, and what is said of some wrong ones.

What holds for the exercises of all labs is tested in test_exercises.py. Here stand attempts that
nobody told the exercises about.
"""

from itertools import takewhile
from typing import Any

import numpy as np
import pytest
import torch

from autograder.exercises import exercises
from autograder.judge import PASSED, WRONG, Judgement, judge
from autograder.reference import lab_module
from solutions.decoding import GREEDY, draw, end_of, next_token_probs
from solutions.speculative import (
    ModelDrafter,
    Round,
    Speculated,
    expected_tokens,
    generate_speculative,
    new_cache,
    new_logits,
    new_uniforms,
    ngram_draft,
    prefixes,
    residual,
    verify,
    verify_greedy,
)
from tests.common.attempts import attempt_at, with_method
from tests.common.trials import cell, is_rejected

VERIFY_GREEDY, RESIDUAL, VERIFY, NGRAM, GENERATE, EXPECTED, SPEED_UP = (
    f"speculative.{name}"
    for name in (
        "verify_greedy",
        "residual",
        "verify",
        "ngram_draft",
        "generate_speculative",
        "expected_tokens",
        "speed_up",
    )
)
PROPOSE = "speculative.ModelDrafter.propose"
RIGHT: list[Any] = []
WRONGS: list[Any] = []


def judged(name: str, attempt: Any, seed: int = 0) -> Judgement:
    return judge(exercises()[name], attempt, seed)


# ---------------------------------------------------------------------------------- verifying


@attempt_at(RIGHT, VERIFY_GREEDY)
def greedy_with_a_break(choices, drafts):
    accepted = 0
    for draft, choice in zip(drafts, choices):  # noqa: B905, of unequal lengths
        if draft != choice:
            break
        accepted += 1
    return accepted, choices[accepted]


@attempt_at(RIGHT, VERIFY_GREEDY)
def greedy_with_early_returns(choices, drafts):
    for i, draft in enumerate(drafts):
        if draft != choices[i]:
            return [i, choices[i]]
    return [len(drafts), choices[-1]]


@attempt_at(RIGHT, VERIFY_GREEDY)
def greedy_with_cumprod(choices, drafts):
    same = torch.tensor(drafts) == torch.tensor(choices[: len(drafts)])
    accepted = int(same.int().cumprod(dim=0).sum())
    return accepted, choices[accepted]


@attempt_at(RIGHT, VERIFY_GREEDY)
def greedy_with_takewhile(choices, drafts):
    both = zip(drafts, choices[:-1], strict=True)
    accepted = len(list(takewhile(lambda pair: pair[0] == pair[1], both)))
    return np.int64(accepted), choices[accepted]


@attempt_at(WRONGS, VERIFY_GREEDY)
def greedy_by_identity(choices, drafts):
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] is choices[accepted]:
        accepted += 1
    return accepted, choices[accepted]


@attempt_at(WRONGS, VERIFY_GREEDY)
def greedy_as_tensors(choices, drafts):
    accepted, token = verify_greedy(choices, drafts)
    return torch.tensor(accepted), torch.tensor(token)


@attempt_at(WRONGS, VERIFY_GREEDY)
def greedy_that_uses_up_the_drafts(choices, drafts):
    accepted, token = verify_greedy(choices, drafts)
    drafts.clear()
    return accepted, token


@attempt_at(WRONGS, VERIFY_GREEDY)
def greedy_by_the_first_like_it(choices, drafts):
    agree = lambda draft: draft == choices[drafts.index(draft)]  # noqa: E731
    accepted = len(list(takewhile(agree, drafts)))
    return accepted, choices[accepted]


@attempt_at(RIGHT, RESIDUAL)
def residual_by_relu(target_probs, draft_probs):
    beyond = torch.relu(target_probs - draft_probs)
    total = beyond.sum()
    if total == 0:
        return target_probs.clone()
    return beyond.div_(total)


@attempt_at(RIGHT, RESIDUAL)
def residual_by_where(target_probs, draft_probs):
    more = target_probs > draft_probs
    if not more.any():
        return target_probs
    beyond = torch.where(more, target_probs - draft_probs, 0.0)
    return torch.nn.functional.normalize(beyond, p=1, dim=0)


@attempt_at(RIGHT, RESIDUAL)
def residual_by_the_smaller_one(target_probs, draft_probs):
    beyond = target_probs - torch.minimum(target_probs, draft_probs)
    return target_probs if beyond.sum() <= 0 else beyond / (1 - (target_probs - beyond).sum())


@attempt_at(WRONGS, RESIDUAL)
def residual_with_a_floor(target_probs, draft_probs):
    beyond = (target_probs - draft_probs).clamp(min=1e-3)
    return beyond / beyond.sum()


@attempt_at(WRONGS, RESIDUAL)
def residual_that_takes_close_for_equal(target_probs, draft_probs):
    is_equal = (target_probs - draft_probs).abs().sum() < 1e-3
    return target_probs if is_equal else residual(target_probs, draft_probs)


@attempt_at(RIGHT, VERIFY)
def verify_with_cumprod(target_probs, draft_probs, drafts, uniforms):
    k = len(drafts)
    tokens = torch.tensor(drafts, dtype=torch.int64)[:, None]
    p, q = target_probs[:k].gather(1, tokens)[:, 0], draft_probs.gather(1, tokens)[:, 0]
    accepted = int((uniforms[:k] < p / q).int().cumprod(dim=0).sum())
    rest = target_probs[accepted]
    if accepted < k:
        rest = (rest - draft_probs[accepted]).clamp(min=0)  # `draw` takes any sum
    return accepted, draw(rest.unsqueeze(0), uniforms[-1:]).item()


@attempt_at(RIGHT, VERIFY)
def verify_with_a_draft_that_gives_nothing(target_probs, draft_probs, drafts, uniforms):
    """As gpt-fast does: a row of zeros, so that the bonus is a residual too."""
    draft_probs = torch.cat([draft_probs, torch.zeros_like(target_probs[:1])])
    place = 0
    while place < len(drafts):
        token = drafts[place]
        chance = min(1.0, float(target_probs[place, token]) / float(draft_probs[place, token]))
        if float(uniforms[place]) >= chance:
            break
        place += 1
    rest = residual(target_probs[place], draft_probs[place])
    return [place, draw(rest[None], uniforms[-1:])[0].item()]


@attempt_at(RIGHT, VERIFY)
def verify_with_logarithms(target_probs, draft_probs, drafts, uniforms):
    for i in range(len(drafts)):
        log_ratio = target_probs[i][drafts[i]].log() - draft_probs[i][drafts[i]].log()
        if not uniforms[i].log() < log_ratio:
            break
    else:
        ends = target_probs[-1].cumsum(0)
        return len(drafts), int(torch.searchsorted(ends, uniforms[-1].to(ends), right=True))
    ends = residual(target_probs[i], draft_probs[i]).cumsum(0)
    return i, int(torch.searchsorted(ends, uniforms[-1].to(ends), right=True))


@attempt_at(WRONGS, VERIFY)
def verify_as_tensors(target_probs, draft_probs, drafts, uniforms):
    accepted, token = verify(target_probs, draft_probs, drafts, uniforms)
    return torch.tensor(accepted), torch.tensor(token)


@attempt_at(WRONGS, VERIFY)
def verify_in_place(target_probs, draft_probs, drafts, uniforms):
    accepted, token = verify(target_probs, draft_probs, drafts, uniforms)
    target_probs[:-1] -= draft_probs
    return accepted, token


@attempt_at(WRONGS, VERIFY)
def verify_with_draws_of_its_own(target_probs, draft_probs, drafts, uniforms):
    accepted, _ = verify(target_probs, draft_probs, drafts, uniforms)
    rest = target_probs[accepted]
    if accepted < len(drafts):
        rest = residual(rest, draft_probs[accepted])
    return accepted, int(torch.multinomial(rest, 1))


# ----------------------------------------------------------------------------------- drafting


@attempt_at(RIGHT, PROPOSE, ModelDrafter)
def propose_that_feeds_its_cache_itself(self, ids, k, params, generator):
    """What is lacking first, then one draft after the other; all uniforms at once."""
    if k == 0:
        return [], torch.zeros(0, self.model.config.vocab_size)
    held = self.kv_cache.length
    text = torch.tensor([list(ids)])
    new, drafts, rows = text[:, held:], [], []
    uniforms = new_uniforms(k, generator, text.device)
    for step in range(k):
        positions = torch.arange(held, held + new.shape[1]).unsqueeze(0)
        logits = self.model(new, positions, self.kv_cache)[:, -1]
        held += new.shape[1]
        row = next_token_probs(logits, text, params)
        token = draw(row, uniforms[step : step + 1])
        new = token[:, None]
        text = torch.cat([text, new], dim=1)
        drafts.append(token.item())
        rows.append(row[0])
    return drafts, torch.stack(rows)


@attempt_at(RIGHT, PROPOSE, ModelDrafter)
def propose_while_there_is_need(self, ids, k, params, generator):
    drafts: list[int] = []
    table = torch.empty(k, self.model.config.vocab_size, dtype=torch.float64)
    while len(drafts) < k:
        so_far = [*ids, *drafts]
        logits = new_logits(self.model, so_far, self.kv_cache)
        table[len(drafts)] = next_token_probs(logits[-1:], torch.tensor([so_far]), params)[0]
        uniform = torch.rand(1, generator=generator)
        drafts.append(int(draw(table[len(drafts)][None], uniform)))
    return [drafts, table]


@attempt_at(RIGHT, PROPOSE, ModelDrafter)
def propose_greedily_without_uniforms(self, ids, k, params, generator):
    """At temperature 0 nothing is left to chance."""
    if params.temperature > 0 or params.repetition_penalty != 1:
        return ModelDrafter.propose(self, ids, k, params, generator)
    text = list(ids)
    rows = []
    for _ in range(k):
        best = int(new_logits(self.model, text, self.kv_cache)[-1].argmax())
        text.append(best)
        rows.append(torch.nn.functional.one_hot(torch.tensor(best), 300).float())
    return text[len(ids) :], torch.stack(rows) if rows else torch.zeros(0, 300)


@attempt_at(WRONGS, PROPOSE, ModelDrafter)
def propose_a_tensor(self, ids, k, params, generator):
    drafts, probs = ModelDrafter.propose(self, ids, k, params, generator)
    return torch.tensor(drafts), probs


@attempt_at(WRONGS, PROPOSE, ModelDrafter)
def propose_drafts_alone(self, ids, k, params, generator):
    return ModelDrafter.propose(self, ids, k, params, generator)[0]


@attempt_at(WRONGS, PROPOSE, ModelDrafter)
def propose_by_multinomial(self, ids, k, params, generator):
    text, probs = list(ids), []
    for _ in range(k):
        logits = new_logits(self.model, text, self.kv_cache)[-1:]
        probs.append(next_token_probs(logits, prefixes(text, logits), params))
        text += torch.multinomial(probs[-1], 1, generator=generator)[0].tolist()
    return text[len(ids) :], torch.cat(probs) if probs else torch.empty(0, 300)


@attempt_at(WRONGS, PROPOSE, ModelDrafter)
def propose_the_same_numbers_at_every_call(self, ids, k, params, generator):
    again = torch.Generator().manual_seed(generator.initial_seed())
    return ModelDrafter.propose(self, ids, k, params, again)


@attempt_at(RIGHT, NGRAM)
def ngram_by_unfold(ids, k, longest=3):
    text = torch.tensor(ids, dtype=torch.int64)
    for size in range(min(longest, len(ids) - 1), 0, -1):
        pieces = text.unfold(0, size, 1)
        places = (pieces[:-1] == pieces[-1]).all(dim=1).nonzero()
        if len(places):
            followed = text[int(places[-1]) + size :]
            return followed.repeat(k)[:k].tolist()
    return []


@attempt_at(RIGHT, NGRAM)
def ngram_in_a_string(ids, k, longest=3):
    for size in range(longest, 0, -1):
        if size >= len(ids):
            continue
        text, piece = "".join(map(chr, ids)), "".join(map(chr, ids[-size:]))
        place = text.rfind(piece, 0, len(text) - 1)
        if place >= 0:
            followed = ids[place + size :]
            return [followed[i % len(followed)] for i in range(k)]
    return []


@attempt_at(RIGHT, NGRAM)
def ngram_by_an_index(ids, k, longest=3):
    latest: dict[tuple[int, ...], int] = {}
    for end in range(1, len(ids)):
        for size in range(1, min(longest, end) + 1):
            latest[tuple(ids[end - size : end])] = end
    for size in reversed(range(1, longest + 1)):
        end = latest.get(tuple(ids[-size:]), 0) if size < len(ids) else 0
        if end:
            draft = []
            while len(draft) < k:
                draft.extend(ids[end:])
            return draft[:k]
    return []


@attempt_at(RIGHT, NGRAM)
def ngram_that_writes_the_text_on(ids, k, longest=3):
    """A draft that goes on into itself is the same as one that is repeated."""
    size = min(longest, len(ids) - 1)
    while size > 0:
        start = len(ids) - size - 1
        while start >= 0:
            if all(ids[start + i] == ids[len(ids) - size + i] for i in range(size)):
                text = list(ids)
                for i in range(k):
                    text.append(text[start + size + i])
                return text[len(ids) :]
            start -= 1
        size -= 1
    return []


@attempt_at(WRONGS, NGRAM)
def ngram_as_a_tuple(ids, k, longest=3):
    return tuple(ngram_draft(ids, k, longest))


@attempt_at(WRONGS, NGRAM)
def ngram_with_another_default(ids, k, longest=2):
    return ngram_draft(ids, k, longest)


@attempt_at(WRONGS, NGRAM)
def ngram_that_takes_from_the_text(ids, k, longest=3):
    draft = ngram_draft(ids, k, longest)
    ids.pop()
    return draft


@attempt_at(WRONGS, NGRAM)
def ngram_among_the_last_ten(ids, k, longest=3):
    return ngram_draft(ids[-10:], k, longest)


@attempt_at(WRONGS, NGRAM)
def ngram_in_its_digits(ids, k, longest=3):
    text = " ".join(map(str, ids))
    for size in range(min(longest, len(ids) - 1), 0, -1):
        piece = " ".join(map(str, ids[-size:]))
        place = text.rfind(piece, 0, len(text) - 1)
        if place >= 0:
            return ([int(word) for word in text[place + len(piece) :].split()] * k)[:k]
    return []


# ----------------------------------------------------------------------------------- the loop


@attempt_at(RIGHT, GENERATE)
@torch.no_grad()
def generate_with_early_returns(
    target, drafter, prompt, max_new_tokens, k, params=GREEDY, generator=None, eos_token_id=None
):
    """Truncates only where something was rejected, and not after the end."""
    generator = generator or torch.Generator()
    ids, end, rounds = list(prompt), end_of(target.config, prompt, max_new_tokens), []
    kv_cache = new_cache(target, end)
    if len(ids) >= end:
        return Speculated(ids, rounds)
    while True:
        count = min(k, end - len(ids) - 1)
        drafts, q = [], torch.empty(0, target.config.vocab_size)
        if count > 0:
            drafts, q = drafter.propose(list(ids), count, params, generator)
        logits = new_logits(target, [*ids, *drafts], kv_cache)
        logits = logits[len(logits) - len(drafts) - 1 :]
        p = next_token_probs(logits, prefixes([*ids, *drafts], logits), params)
        uniforms = torch.rand(len(drafts) + 1, generator=generator)
        accepted, token = verify(p, q, drafts, uniforms)
        made = Round(drafts, 0, [])
        rounds.append(made)
        for place, new in enumerate([*drafts[:accepted], token]):
            ids.append(new)
            made.new.append(new)
            rounds[-1] = Round(drafts, min(place + 1, accepted), made.new)
            if new == eos_token_id or len(ids) == end:
                return Speculated(ids, rounds)
        if accepted < len(drafts):
            kv_cache.truncate(len(ids) - 1)
            drafter.truncate(len(ids) - 1)


@attempt_at(RIGHT, GENERATE)
@torch.no_grad()
def generate_with_tensors(
    target, drafter, prompt, max_new_tokens, k, params=GREEDY, generator=None, eos_token_id=None
):
    """The text is a tensor; the uniforms come before the drafts, one after the other."""
    generator = torch.Generator() if generator is None else generator
    text = torch.tensor([list(prompt)])
    end = end_of(target.config, prompt, max_new_tokens)
    kv_cache, rounds, done = new_cache(target, end), [], False
    while text.shape[1] < end and not done:
        length = text.shape[1]
        drafts, q = drafter.propose(text[0].tolist(), min(k, end - length - 1), params, generator)
        more = torch.cat([text, torch.tensor([drafts], dtype=torch.int64)], dim=1)
        positions = torch.arange(kv_cache.length, more.shape[1])[None]
        logits = target(more[:, kv_cache.length :], positions, kv_cache)[0]
        rows = [
            next_token_probs(logits[row - len(drafts) - 1][None], more[:, : length + row], params)
            for row in range(len(drafts) + 1)
        ]
        uniforms = torch.cat([torch.rand(1, generator=generator) for _ in rows])
        accepted, token = verify(torch.cat(rows), q, drafts, uniforms)
        new = torch.tensor([*drafts[:accepted], token])
        if eos_token_id is not None and (new == eos_token_id).any():
            new = new[: int((new == eos_token_id).nonzero()[0]) + 1]
            done = True
        text = torch.cat([text, new[None]], dim=1)
        kv_cache.truncate(min(kv_cache.length, length + accepted))
        drafter.truncate(length + accepted)
        rounds.append(Round(drafts, accepted, new.tolist()))
    return Speculated(text[0].tolist(), rounds)


@attempt_at(RIGHT, GENERATE)
@torch.no_grad()
def generate_with_a_greedy_branch(
    target, drafter, prompt, max_new_tokens, k, params=GREEDY, generator=None, eos_token_id=None
):
    """At temperature 0 nothing is left to chance."""
    if params.temperature > 0 or params.repetition_penalty != 1:
        given = target, drafter, prompt, max_new_tokens, k, params, generator, eos_token_id
        return generate_speculative(*given)
    ids, end = list(prompt), end_of(target.config, prompt, max_new_tokens)
    kv_cache, rounds = new_cache(target, end), []
    while len(ids) < end and (not rounds or ids[-1] != eos_token_id):
        drafts, _ = drafter.propose(ids, min(k, end - len(ids) - 1), params, generator)
        logits = new_logits(target, ids + drafts, kv_cache)[-len(drafts) - 1 :]
        accepted, token = verify_greedy(logits.argmax(-1).tolist(), drafts)
        new = [*drafts[:accepted], token]
        if eos_token_id in new:
            new = new[: new.index(eos_token_id) + 1]
        ids.extend(new)
        rounds.append(Round(drafts, accepted, new))
        for cache in (kv_cache, drafter):
            cache.truncate(len(ids) - 1)
    return Speculated(ids, rounds)


@attempt_at(WRONGS, GENERATE)
def generate_the_text_alone(*given, **named):
    return generate_speculative(*given, **named).ids


@attempt_at(WRONGS, GENERATE)
def generate_a_tensor(*given, **named):
    made = generate_speculative(*given, **named)
    return Speculated(torch.tensor(made.ids), made.rounds)


@attempt_at(WRONGS, GENERATE)
def generate_new_tokens_alone(target, drafter, prompt, *given, **named):
    made = generate_speculative(target, drafter, prompt, *given, **named)
    return Speculated(made.ids[len(prompt) :], made.rounds)


@attempt_at(WRONGS, GENERATE)
def generate_without_a_draft(
    target, drafter, prompt, max_new_tokens, k, params=GREEDY, generator=None, eos_token_id=None
):
    """Plain decode, told as rounds."""

    class NoDraft:
        def propose(self, *given):
            return [], torch.empty(0, 300)

        def truncate(self, n):
            pass

    given = target, NoDraft(), prompt, max_new_tokens, k, params, generator, eos_token_id
    return generate_speculative(*given)


@attempt_at(WRONGS, GENERATE)
def generate_without_end(
    target, drafter, prompt, max_new_tokens, k, params=GREEDY, generator=None, eos_token_id=None
):
    kv_cache = new_cache(target, len(prompt))
    while True:
        new_logits(target, prompt, kv_cache)
        kv_cache.truncate(0)


# ---------------------------------------------------------------------------- when does it pay?


@attempt_at(RIGHT, EXPECTED)
def expected_in_closed_form(acceptance, k):
    return k + 1 if acceptance == 1 else (1 - acceptance ** (k + 1)) / (1 - acceptance)


@attempt_at(RIGHT, EXPECTED)
def expected_by_numpy(acceptance, k):
    return np.cumprod([1.0] + [acceptance] * k).sum()


@attempt_at(RIGHT, EXPECTED)
def expected_in_float32(acceptance, k):
    return (torch.tensor(acceptance) ** torch.arange(k + 1)).sum()


@attempt_at(RIGHT, EXPECTED)
def expected_from_the_inside(acceptance, k):
    tokens = 1.0
    for _ in range(k):
        tokens = 1 + acceptance * tokens
    return tokens


@attempt_at(WRONGS, EXPECTED)
def expected_rounded(acceptance, k):
    return round(expected_tokens(acceptance, k), 2)


@attempt_at(WRONGS, EXPECTED)
def expected_where_nearly_all_are_accepted(acceptance, k):
    return k + 1 if acceptance > 0.99 else expected_tokens(acceptance, k)


@attempt_at(RIGHT, SPEED_UP)
def speed_up_from_the_time_of_a_token(acceptance, k, draft_cost, verify_cost):
    time = sum([draft_cost] * k, start=verify_cost)
    return 1 / (time / expected_tokens(acceptance, k))


# ----------------------------------------------------------------------------------- the tests


@pytest.mark.parametrize(("name", "attempt"), RIGHT)
def test_a_right_answer_in_another_style_passes(name: str, attempt: Any) -> None:
    for seed in (0, 1):
        judgement = judged(name, attempt, seed)
        assert judgement.status == PASSED, judgement.message


@pytest.mark.parametrize(("name", "attempt"), WRONGS)
def test_a_wrong_answer_is_rejected_whatever_the_seed(name: str, attempt: Any) -> None:
    assert all(is_rejected(exercises()[name], attempt, seed) for seed in range(3))


def test_a_wrong_verify_costs_no_other_exercise() -> None:
    """The loop finds a right one under its name."""
    names = cell("\n".join(lab_module("speculative").lines))
    names["verify"] = names["residual"] = lambda *given: (0, 0)
    assert judged(GENERATE, names["generate_speculative"]).status == PASSED
    assert judged(VERIFY, names["verify"]).status == WRONG


TOLD = [
    (VERIFY_GREEDY, None, greedy_as_tensors, "is a Tensor and a Tensor; expected: it is an int"),
    (VERIFY_GREEDY, None, lambda choices, drafts: 0, "returns two things, the number of accepted"),
    (VERIFY, None, lambda *given: None, "Is a `return` missing?"),
    (VERIFY, None, verify_in_place, "`target_probs` is no longer what it was before"),
    (RESIDUAL, None, lambda p, q: None, "Is a `return` missing?"),
    (PROPOSE, ModelDrafter, propose_a_tensor, "The list of drafts of round 1 is a Tensor;"),
    (PROPOSE, ModelDrafter, propose_drafts_alone, "propose returns two things, drafts and"),
    (PROPOSE, ModelDrafter, propose_by_multinomial, "What was drafted in round 1"),
    (NGRAM, None, ngram_as_a_tuple, "The draft should be a list, not a tuple."),
    (GENERATE, None, generate_the_text_alone, "What it returned"),
    (GENERATE, None, generate_without_end, "Does the loop come to its end?"),
]


@pytest.mark.parametrize(("name", "base", "function", "words"), TOLD)
def test_what_is_wrong_is_told(name: str, base: Any, function: Any, words: str) -> None:
    judgement = judged(name, with_method(base, name, function) if base else function)
    assert judgement.status == WRONG
    assert words in f"{judgement.cause} {judgement.message}"
