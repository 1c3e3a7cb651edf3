"""Answers to lab 6's exercises: verifying, drafting, the loop, and when it pays."""

import torch

from solutions.decoding import GREEDY, end_of
from solutions.speculative import (
    ModelDrafter,
    Round,
    Speculated,
    expected_tokens,
    generate_speculative,
    new_cache,
    new_logits,
    ngram_draft,
    residual,
    verify_greedy,
)
from tests.common.attempts import right, wrong

# ---------------------------------------------------------------------------------- verifying


@wrong(verify_greedy)
def identity_for_equality(choices, drafts):
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] is choices[accepted]:
        accepted += 1
    return accepted, choices[accepted]


wrong(verify_greedy, "is a Tensor and a Tensor; expected: it is an int")(
    lambda *given: tuple(map(torch.tensor, verify_greedy(*given)))
)


@wrong(residual)
def close_taken_for_equal(target_probs, draft_probs):
    is_equal = torch.allclose(target_probs, draft_probs)
    return target_probs if is_equal else residual(target_probs, draft_probs)


# ----------------------------------------------------------------------------------- drafting


@right(ModelDrafter.propose)
def greedily_without_uniforms(self, ids, k, params, generator):
    """At temperature 0 nothing is left to chance."""
    if params.temperature > 0 or params.repetition_penalty != 1:
        return ModelDrafter.propose(self, ids, k, params, generator)
    text = list(ids)
    rows = []
    for _ in range(k):
        best = int(new_logits(self.model, text, self.kv_cache)[-1].argmax())
        text.append(best)
        rows.append(torch.nn.functional.one_hot(torch.tensor(best), 300).double())
    return text[len(ids) :], torch.stack(rows) if rows else torch.zeros(0, 300)


@wrong(ngram_draft)
def in_its_digits(ids, k, longest=3):
    text = " ".join(map(str, ids))
    for size in range(min(longest, len(ids) - 1), 0, -1):
        piece = " ".join(map(str, ids[-size:]))
        place = text.rfind(piece, 0, len(text) - 1)
        if place >= 0:
            return ([int(word) for word in text[place + len(piece) :].split()] * k)[:k]
    return []


wrong(ngram_draft)(lambda ids, k, longest=3: ngram_draft(ids[-10:], k, longest))


@wrong(ngram_draft)
def an_index_that_survives(ids, k, longest=3, index={}):  # noqa: B006
    sizes = range(1, min(longest, len(ids) - 1) + 1)
    for size in sizes:
        for end in range(size, len(ids)):
            index[tuple(ids[end - size : end])] = end
    for size in reversed(sizes):
        if (end := index.get(tuple(ids[-size:]))) is not None:
            return (ids[end:] * k)[:k]
    return []


# ----------------------------------------------------------------------------------- the loop


@right(generate_speculative)
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


@wrong(generate_speculative, "generator over all rounds gave", "numbers; expected: it gave")
def with_one_uniform_too_many(*given, generator=None, **named):
    found = generate_speculative(*given, generator=generator, **named)
    if generator is not None:
        torch.rand(1, generator=generator)
    return found


# ---------------------------------------------------------------------------- when does it pay?


wrong(expected_tokens)(lambda acceptance, k: round(expected_tokens(acceptance, k), 2))
wrong(expected_tokens, "What it returned is a Tensor; expected: it is a number.")(
    lambda acceptance, k: (acceptance ** torch.arange(k + 1).double()).sum()
)
wrong(expected_tokens)(
    lambda acceptance, k: expected_tokens(acceptance if acceptance < 0.99 else 1, k)
)


# ------------------------------------------------------------- mutants that do the same by right

EQUIVALENT = {
    "speculative.ngram_draft": {
        "len(ids) - 1 -> len(ids) - 0": "a piece as long as the text has no earlier place",
        "len(ids) - 1 -> len(ids) + 1": "neither has a longer one",
        "range(min(longest, len(ids) - 1), 0, -1) -> range(min(longest, len(ids) - 1), -1, -1)": (
            "the empty piece is compared with ids[-0:], the whole text, and is never equal"
        ),
    },
}
