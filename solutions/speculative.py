"""Lab 6: speculative decoding. Several tokens from one pass of the model, and the same output.

A decode step spends its time on reading the weights, whether for one token or for five. So
something cheap drafts the next tokens, and the model, the target, verifies all of them in one
forward pass. Drafts that the target rejects are thrown away, so only the time changes.

Sources: Leviathan et al., "Fast inference from transformers via speculative decoding", ICML 2023;
Chen et al., "Accelerating large language model decoding with speculative sampling", 2023; Saxena,
"Prompt lookup decoding", 2023 (n-grams as a draft); Mamou et al., "Dynamic speculation lookahead
accelerates speculative decoding of large language models", 2024 (drafting until it is unsure).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from gpt import GPTConfig
from solutions.decoding import GREEDY, SamplingParams, draw, end_of, next_token_probs
from solutions.kv_cache import CachedLMHead, KVCache

# ---------------------------------------------------------------------------------- verifying


def verify_greedy(choices: Sequence[int], drafts: Sequence[int]) -> tuple[int, int]:
    """Return how many of the k drafts a greedy target accepts, and the next token.

    choices: the target's likeliest token after the text, after the text and one draft, and so on;
    k + 1 in all. Drafts are accepted up to the first that differs from the choice in its place. The
    next token is the target's own choice for the place after the accepted drafts: the correction of
    a rejected draft, or the bonus if all are accepted. `k` may be 0.
    """
    ### BEGIN SOLUTION
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == choices[accepted]:
        accepted += 1
    return accepted, choices[accepted]
    ### END SOLUTION


def residual(
    target_probs: Float[Tensor, " vocab"], draft_probs: Float[Tensor, " vocab"]
) -> Float[Tensor, " vocab"]:
    """Return the part of each target probability above the draft's, scaled to sum to 1.

    A token to which the draft gives more has probability 0. If target and draft are exactly equal,
    nothing is left to scale: return the target's distribution. Source: Leviathan et al., section
    2.3.
    """
    ### BEGIN SOLUTION
    beyond = (target_probs - draft_probs).clamp(min=0)
    return beyond / beyond.sum() if beyond.any() else target_probs
    ### END SOLUTION


def verify(
    target_probs: Float[Tensor, "k+1 vocab"],
    draft_probs: Float[Tensor, "k vocab"],
    drafts: Sequence[int],
    uniforms: Float[Tensor, " k+1"],
) -> tuple[int, int]:
    """Return how many of the k drafts are accepted, and the next token.

    Accepted drafts and next token are together distributed as the target's own. Row i of
    `draft_probs` is the distribution that draft i was drawn from, and row i of `target_probs` is
    the target's distribution for the same place. From the first draft on, draft i is accepted if
    uniform i is below p / q: the target's probability of this token over the draft's. At the first
    rejection, the next token is drawn from the residual of that place. If all drafts are accepted,
    it is drawn from the last row of `target_probs`, as a bonus. Always draw the next token with the
    last uniform. `k` may be 0. The arguments are not changed. Source: Leviathan et al., algorithm
    1.
    """
    ### BEGIN SOLUTION
    for place, token in enumerate(drafts):
        p, q = target_probs[place], draft_probs[place]
        if uniforms[place] * q[token] >= p[token]:
            return place, int(draw(residual(p, q)[None], uniforms[-1:]))
    return len(drafts), int(draw(target_probs[-1:], uniforms[-1:]))
    ### END SOLUTION


# ---------------------------------------------------------------------------------- drafting


def new_cache(model: CachedLMHead, max_length: int) -> KVCache:
    """Return an empty cache for one text of up to `max_length` tokens."""
    weight = model.transformer.wte.weight
    return KVCache(model.config, 1, max_length, weight.device, weight.dtype)


def new_logits(
    model: CachedLMHead, ids: Sequence[int], kv_cache: KVCache
) -> Float[Tensor, "new vocab"]:
    """Run the model on the tokens that the cache doesn't hold yet; return a row for each."""
    start, device = kv_cache.length, kv_cache.keys.device
    inputs = torch.tensor([ids[start:]], device=device)
    position_ids = torch.arange(start, len(ids), device=device).unsqueeze(0)
    return model(inputs, position_ids, kv_cache)[0]


def prefixes(ids: Sequence[int], logits: Float[Tensor, "rows vocab"]) -> Int[Tensor, "rows seq"]:
    """Return, for each row of logits, the text before it; the last row follows all of `ids`.

    All rows are equally long: places that a row doesn't know yet hold the text's first token again.
    That changes nothing, because the repetition penalty counts a token once.
    """
    text = torch.tensor([ids], device=logits.device)
    if len(logits) == 1:
        return text  # a short cut for drafting, which calls this once for each draft
    text = text.repeat(len(logits), 1)
    later = torch.ones_like(text, dtype=torch.bool).triu(len(ids) - len(logits) + 1)
    return text.masked_fill(later, ids[0])


def new_uniforms(
    count: int, generator: torch.Generator, device: torch.device
) -> Float[Tensor, " count"]:
    """Draw `count` numbers from 0 to 1 on the generator's device and move them to `device`."""
    return torch.rand(count, generator=generator, device=generator.device).to(device)


class Drafter(Protocol):
    """Something cheap that guesses the next tokens of a text."""

    def propose(
        self, ids: Sequence[int], k: int, params: SamplingParams, generator: torch.Generator, /
    ) -> tuple[list[int], Float[Tensor, "drafts vocab"]]:
        """Return up to k tokens that may follow `ids`, and the distribution of each."""

    def truncate(self, n: int, /) -> None:
        """Forget all but the first `n` tokens of the text: the others were not accepted."""


class ModelDrafter:
    """A small model that runs ahead of the target, with its own cache.

    The cache may lag behind the text. After a round in which every draft was accepted it lacks two
    tokens: the last draft, which the model never computed, and the bonus.
    """

    def __init__(self, model: CachedLMHead, max_length: int) -> None:
        self.model, self.kv_cache = model, new_cache(model, max_length)

    def propose(
        self, ids: Sequence[int], k: int, params: SamplingParams, generator: torch.Generator
    ) -> tuple[list[int], Float[Tensor, "drafts vocab"]]:
        """Draw k tokens one after the other, each with one uniform from the generator.

        Draw each from the `next_token_probs` of the model's logits after the text and the drafts so
        far. Return the drafts, and for each the row of probabilities that it was drawn from. The
        model computes no token that its cache already holds. `ids` is not changed. At temperature 0
        the uniforms change nothing, so they may be left out.
        """
        text, probs = list(ids), []
        ### BEGIN SOLUTION
        for _ in range(k):
            logits = new_logits(self.model, text, self.kv_cache)[-1:]
            probs.append(next_token_probs(logits, prefixes(text, logits), params))
            text += draw(probs[-1], new_uniforms(1, generator, logits.device)).tolist()
        ### END SOLUTION
        vocab = self.model.config.vocab_size
        return text[len(ids) :], torch.cat(probs) if probs else torch.empty(0, vocab)

    def truncate(self, n: int) -> None:
        self.kv_cache.truncate(min(n, self.kv_cache.length))


def ngram_draft(ids: Sequence[int], k: int, longest: int = 3) -> list[int]:
    """Return the k tokens that come next if the text repeats itself; an empty list if it doesn't.

    Look for the last `longest` tokens of the text at an earlier place, then for one token fewer,
    down to one. An earlier place may overlap the end of the text; if there are several, the latest
    counts. Search once: the drafts are the first k of the tokens that follow this place, up to the
    end of the text. If these are fewer than k, they are repeated in their order, because a text
    that repeats itself once may do so again. `ids`, a list or a tuple, is not changed.
    """
    ### BEGIN SOLUTION
    ids = list(ids)
    for size in range(min(longest, len(ids) - 1), 0, -1):
        for start in reversed(range(len(ids) - size)):
            if ids[start : start + size] == ids[-size:]:
                followed = ids[start + size :]
                return (followed * k)[:k]
    return []
    ### END SOLUTION


class NgramDrafter:
    """Drafts by n-grams: the next tokens are looked up in the text itself, without a model."""

    def __init__(
        self, vocab_size: int, longest: int = 3, device: str | torch.device = "cpu"
    ) -> None:
        self.vocab_size, self.longest, self.device = vocab_size, longest, device

    def propose(
        self, ids: Sequence[int], k: int, params: SamplingParams, generator: torch.Generator
    ) -> tuple[list[int], Float[Tensor, "drafts vocab"]]:
        """Return drafts with probability 1 each, whatever the sampling parameters."""
        drafts = ngram_draft(ids, k, self.longest) if k else []
        certain = torch.tensor(drafts, dtype=torch.int64, device=self.device)
        return drafts, F.one_hot(certain, self.vocab_size).float()

    def truncate(self, n: int) -> None:
        """Do nothing: `propose` receives the whole text each time."""


def first_layers(model: CachedLMHead, n_layer: int) -> CachedLMHead:
    """Return the target's first layers under its own LM head, in the same memory."""
    if not 1 <= n_layer <= model.config.n_layer:
        raise ValueError(
            f"The model has 1 to {model.config.n_layer} layers to take, not {n_layer}."
        )
    with torch.device("meta"):
        draft = CachedLMHead(replace(model.config, n_layer=n_layer)).requires_grad_(False)
    weights = model.state_dict()
    draft.load_state_dict({name: weights[name] for name in draft.state_dict()}, assign=True)
    return draft.eval()


# ---------------------------------------------------------------------------- stopping in time


class ConfidentDrafter(ModelDrafter):
    """A draft model that stops a round where it is unsure, so that less is thrown away.

    It asks `ModelDrafter.propose` for one draft after the other. A draft is of use only if all
    drafts before it are accepted. The draft model's own estimate of that is the product of its
    largest probabilities so far; below `least`, no more is drafted. The unsure draft itself is
    still verified: without it, its tokens would come too seldom.
    """

    least = 0.05

    def propose(
        self, ids: Sequence[int], k: int, params: SamplingParams, generator: torch.Generator
    ) -> tuple[list[int], Float[Tensor, "drafts vocab"]]:
        text, probs, largest = list(ids), list[Tensor](), list[float]()

        def note(model: CachedLMHead, inputs: object, logits: Tensor) -> None:
            largest.append(float(logits[0, -1].softmax(dim=-1).max()))

        watch = self.model.register_forward_hook(note)
        try:
            while len(largest) < k and prod(largest) >= self.least:
                [token], its_probs = super().propose(text, 1, params, generator)
                text, probs = [*text, token], [*probs, its_probs]
        finally:
            watch.remove()
        vocab = self.model.config.vocab_size
        return text[len(ids) :], torch.cat(probs) if probs else torch.empty(0, vocab)


class AdaptiveDrafter:
    """Any drafter, asked for as many drafts as paid lately: two more than were just accepted.

    If none was accepted, it rests: for 1 round, and if that happens again, for 3, 7, 15, then 31.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.restart()

    def restart(self) -> None:
        self.k, self.failures, self.resting, self.drafted = 4, 0, 0, 0

    def propose(
        self, ids: Sequence[int], k: int, params: SamplingParams, generator: torch.Generator
    ) -> tuple[list[int], Float[Tensor, "drafts vocab"]]:
        count = 0 if self.resting else min(k, self.k)
        self.resting = max(self.resting - 1, 0)
        proposed = self.drafter.propose(ids, count, params, generator)
        self.length, self.drafted = len(ids), len(proposed[0])
        return proposed

    def truncate(self, n: int) -> None:
        """Learn how many drafts were accepted: `n` counts the text without its newest token."""
        if n == 0:
            self.restart()
        elif self.drafted:
            accepted = n - self.length
            self.k = accepted + 2
            self.failures = 0 if accepted else min(self.failures + 1, 5)
            self.resting, self.drafted = 2**self.failures - 1, 0
        self.drafter.truncate(n)


# ------------------------------------------------------------------------------------ the loop


@dataclass(frozen=True)
class Round:
    """One pass of the target. new: the tokens that the text gained.

    The last new token is the target's own, unless an accepted EOS has ended the text before it.
    """

    drafts: list[int]
    accepted: int
    new: list[int]


@dataclass(frozen=True)
class Speculated:
    """ids: prompt and new tokens. rounds: the passes that made them."""

    ids: list[int]
    rounds: list[Round]


@torch.no_grad()
def generate_speculative(
    target: CachedLMHead,
    drafter: Drafter,
    prompt: Sequence[int],
    max_new_tokens: int,
    k: int,
    params: SamplingParams = GREEDY,
    generator: torch.Generator | None = None,
    eos_token_id: int | None = None,
) -> Speculated:
    """Continue a prompt as the target alone would, in fewer passes.

    In each round the drafter proposes k tokens, or fewer if there is less room: the last place of a
    round is for the target's own token. One forward pass of the target, over the tokens that its
    cache doesn't hold, gives the distributions for `verify`: one for each draft and one more.
    `verify` takes as many uniforms, drawn from the generator in every round. The text gains the
    accepted drafts and the next token, up to the first EOS, which is kept. Then both caches are
    truncated to the text without its newest token, which isn't computed yet; after the last round
    that may be left out, and at temperature 0 the uniforms.
    """
    require_draft(target, drafter, k)
    generator = generator or torch.Generator()
    ids, end = list(prompt), end_of(target.config, prompt, max_new_tokens)  # end: a length
    kv_cache, rounds = new_cache(target, end), []
    drafter.truncate(0)  # it may hold another text
    ### BEGIN SOLUTION
    has_ended = len(ids) == end
    while not has_ended:
        room = end - len(ids) - 1  # the last token of a round is the target's own
        drafts, draft_probs = drafter.propose(ids, min(k, room), params, generator)
        text = ids + drafts
        logits = new_logits(target, text, kv_cache)[-len(drafts) - 1 :]
        target_probs = next_token_probs(logits, prefixes(text, logits), params)
        uniforms = new_uniforms(len(logits), generator, logits.device)
        accepted, token = verify(target_probs, draft_probs, drafts, uniforms)
        new = [*drafts[:accepted], token]
        if eos_token_id in new:
            new = new[: new.index(eos_token_id) + 1]
        ids += new
        has_ended = len(ids) == end or new[-1] == eos_token_id
        kv_cache.truncate(len(ids) - 1)
        drafter.truncate(len(ids) - 1)
        rounds.append(Round(drafts, accepted, new))
    ### END SOLUTION
    return Speculated(ids, rounds)


# -------------------------------------------------------------------------- when does it pay?


def expected_tokens(acceptance: float, k: int) -> float:
    """Return how many tokens a round with k drafts gives on average.

    The target's own token is included. `acceptance` is the probability, from 0 to 1, that a draft
    is accepted if all before it were; it is assumed to be equal for every place. Source: Leviathan
    et al., equation 1.
    """
    require_acceptance(acceptance)
    ### BEGIN SOLUTION
    return sum(acceptance**place for place in range(k + 1))
    ### END SOLUTION


def speed_up(acceptance: float, k: int, draft_cost: float, verify_cost: float) -> float:
    """Return how many times as fast as plain decode a loop with k drafts per round is.

    draft_cost: the time of one draft. verify_cost: the time of one pass of the target over k + 1
    tokens. Both are in units of one decode step of the target. The paper (theorem 3.8) assumes a
    verify_cost of 1.
    """
    ### BEGIN SOLUTION
    return expected_tokens(acceptance, k) / (k * draft_cost + verify_cost)
    ### END SOLUTION


def best_k(acceptance: float, draft_cost: float, verify_costs: Sequence[float]) -> int:
    """Return the number of drafts per round with the highest `speed_up`; 0 means: don't draft.

    verify_costs: the cost of a pass over 1, 2, 3, … tokens, so that item k is for k drafts.
    """
    return max(
        range(len(verify_costs)),
        key=lambda k: speed_up(acceptance, k, draft_cost, verify_costs[k]),
    )


# -------------------------------------------------------------------------------- input checks


def require_draft(target: CachedLMHead, drafter: Drafter, k: int) -> None:
    """Raise ValueError if k is below 1, or if drafter and target differ in their vocabulary."""
    if k < 1:
        raise ValueError(
            f"A round drafts at least one token, not {k}. To draft none, use lab 2's loop."
        )
    own, drafts = target.config, config_of(drafter)
    if drafts is not None and drafts.vocab_size != own.vocab_size:
        raise ValueError(
            f"The drafter has a vocabulary of {drafts.vocab_size} tokens, the target one of "
            f"{own.vocab_size}. They must share a tokenizer: an id must mean the same to both."
        )


def config_of(drafter: Drafter) -> GPTConfig | None:
    """Return the config of the drafter's model, or None if it has no model."""
    model = getattr(drafter, "model", None)
    return None if model is None else model.config


def require_acceptance(acceptance: float) -> None:
    """Raise ValueError if `acceptance` is not a share."""
    if not 0 <= acceptance <= 1:
        raise ValueError(f"An acceptance rate is a share from 0 to 1, not {acceptance}.")
