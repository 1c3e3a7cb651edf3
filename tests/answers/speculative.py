"""Answers to lab 6's exercises: verifying, drafting, the loop, and when it pays."""

import numpy as np
import torch

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
from tests.common.attempts import right, wrong

VERIFY_GREEDY, VERIFY = "speculative.verify_greedy", "speculative.verify"
RESIDUAL, PROPOSE = "speculative.residual", "speculative.ModelDrafter.propose"
NGRAM, GENERATE = "speculative.ngram_draft", "speculative.generate_speculative"
EXPECTED = "speculative.expected_tokens"


# ---------------------------------------------------------------------------------- verifying


@right(VERIFY_GREEDY)
def in_a_list(choices, drafts):
    for i, draft in enumerate(drafts):
        if draft != choices[i]:
            return [i, choices[i]]
    return [len(drafts), choices[-1]]


@right(VERIFY_GREEDY)
def by_numpy(choices, drafts):
    accepted = np.cumprod(np.array(drafts) == choices[: len(drafts)]).sum(dtype=np.int64)
    return accepted, choices[accepted]


@wrong(VERIFY_GREEDY)
def identity_for_equality(choices, drafts):
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] is choices[accepted]:
        accepted += 1
    return accepted, choices[accepted]


wrong(VERIFY_GREEDY, "is a Tensor and a Tensor; expected: it is an int")(
    lambda *given: tuple(map(torch.tensor, verify_greedy(*given)))
)
wrong(VERIFY_GREEDY, "returns two things, the number of accepted")(lambda choices, drafts: 0)


@right(RESIDUAL)
def beyond_the_smaller_one(target_probs, draft_probs):
    beyond = target_probs - torch.minimum(target_probs, draft_probs)
    return target_probs if beyond.sum() <= 0 else beyond / (1 - (target_probs - beyond).sum())


@wrong(RESIDUAL)
def with_a_floor(target_probs, draft_probs):
    beyond = (target_probs - draft_probs).clamp(min=1e-3)
    return beyond / beyond.sum()


@wrong(RESIDUAL)
def close_taken_for_equal(target_probs, draft_probs):
    is_equal = (target_probs - draft_probs).abs().sum() < 1e-3
    return target_probs if is_equal else residual(target_probs, draft_probs)


wrong(RESIDUAL, "Is a `return` missing?")(lambda target_probs, draft_probs: None)


@right(VERIFY)
def with_an_unnormalised_residual(target_probs, draft_probs, drafts, uniforms):
    k = len(drafts)
    tokens = torch.tensor(drafts, dtype=torch.int64)[:, None]
    p, q = target_probs[:k].gather(1, tokens)[:, 0], draft_probs.gather(1, tokens)[:, 0]
    accepted = int((uniforms[:k] < p / q).int().cumprod(dim=0).sum())
    rest = target_probs[accepted]
    if accepted < k:
        rest = (rest - draft_probs[accepted]).clamp(min=0)  # `draw` takes any sum
    return accepted, draw(rest.unsqueeze(0), uniforms[-1:]).item()


@right(VERIFY)
def with_a_draft_that_gives_nothing(target_probs, draft_probs, drafts, uniforms):
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


@wrong(VERIFY)
def with_draws_of_its_own(target_probs, draft_probs, drafts, uniforms):
    accepted, _ = verify(target_probs, draft_probs, drafts, uniforms)
    rest = target_probs[accepted]
    if accepted < len(drafts):
        rest = residual(rest, draft_probs[accepted])
    return accepted, int(torch.multinomial(rest, 1))


wrong(VERIFY, "Is a `return` missing?")(lambda *given: None)


# ----------------------------------------------------------------------------------- drafting


@right(PROPOSE, base=ModelDrafter)
def feeding_its_cache_itself(self, ids, k, params, generator):
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
    return [drafts, torch.stack(rows)]


@right(PROPOSE, base=ModelDrafter)
def greedily_without_uniforms(self, ids, k, params, generator):
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


wrong(PROPOSE, "propose returns two things, drafts and", base=ModelDrafter)(
    lambda self, *given: ModelDrafter.propose(self, *given)[0]
)
wrong(PROPOSE, "The list of drafts of round 1 is a Tensor;", base=ModelDrafter)(
    lambda self, *given: tuple(map(torch.as_tensor, ModelDrafter.propose(self, *given)))
)


@wrong(PROPOSE, "What was drafted in round 1", base=ModelDrafter)
def by_multinomial(self, ids, k, params, generator):
    text, probs = list(ids), []
    for _ in range(k):
        logits = new_logits(self.model, text, self.kv_cache)[-1:]
        probs.append(next_token_probs(logits, prefixes(text, logits), params))
        text += torch.multinomial(probs[-1], 1, generator=generator)[0].tolist()
    return text[len(ids) :], torch.cat(probs) if probs else torch.empty(0, 300)


@wrong(PROPOSE, base=ModelDrafter)
def the_same_numbers_at_every_call(self, ids, k, params, generator):
    again = torch.Generator().manual_seed(generator.initial_seed())
    return ModelDrafter.propose(self, ids, k, params, again)


@right(NGRAM)
def writing_the_text_on(ids, k, longest=3):
    """A draft that goes on into itself is the same as one that is repeated."""
    for size in range(min(longest, len(ids) - 1), 0, -1):
        for start in range(len(ids) - size - 1, -1, -1):
            if ids[start : start + size] == ids[len(ids) - size :]:
                text = list(ids)
                for i in range(k):
                    text.append(text[start + size + i])
                return text[len(ids) :]
    return []


@wrong(NGRAM)
def in_its_digits(ids, k, longest=3):
    text = " ".join(map(str, ids))
    for size in range(min(longest, len(ids) - 1), 0, -1):
        piece = " ".join(map(str, ids[-size:]))
        place = text.rfind(piece, 0, len(text) - 1)
        if place >= 0:
            return ([int(word) for word in text[place + len(piece) :].split()] * k)[:k]
    return []


wrong(NGRAM, "The draft should be a list, not a tuple.")(
    lambda ids, k, longest=3: tuple(ngram_draft(ids, k, longest))
)
wrong(NGRAM)(lambda ids, k, longest=3: ngram_draft(ids[-10:], k, longest))


# ----------------------------------------------------------------------------------- the loop


@right(GENERATE)
@torch.no_grad()
def a_text_in_a_tensor(
    target, drafter, prompt, max_new_tokens, k, params=GREEDY, generator=None, eos_token_id=None
):
    """And uniforms one after the other."""
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


@right(GENERATE)
@torch.no_grad()
def with_a_greedy_branch(
    target, drafter, prompt, max_new_tokens, k, params=GREEDY, generator=None, eos_token_id=None
):
    """At temperature 0 nothing is left to chance. Caches are cut only where they must be."""
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
        if accepted < len(drafts) and len(ids) < end:
            kv_cache.truncate(len(ids) - 1)
            drafter.truncate(len(ids) - 1)
    return Speculated(ids, rounds)


class NoDraft:
    def propose(self, *given):
        return [], torch.empty(0, 300)

    def truncate(self, n):
        pass


@wrong(GENERATE, "Does the loop come to its end?")
def without_an_end(target, drafter, prompt, *given, **named):
    kv_cache = new_cache(target, len(prompt))
    while True:
        new_logits(target, prompt, kv_cache)
        kv_cache.truncate(0)


wrong(GENERATE, "What it returned")(lambda *given: generate_speculative(*given).ids)


@wrong(GENERATE)
def plain_decode_told_as_rounds(target, drafter, *given, **named):
    return generate_speculative(target, NoDraft(), *given, **named)


# ---------------------------------------------------------------------------- when does it pay?


@right(EXPECTED)
def expected_by_numpy(acceptance, k):
    return np.cumprod([1.0] + [acceptance] * k).sum()


wrong(EXPECTED)(lambda acceptance, k: round(expected_tokens(acceptance, k), 2))
wrong(EXPECTED)(lambda acceptance, k: expected_tokens(acceptance if acceptance < 0.99 else 1, k))
