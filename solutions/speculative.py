"""Lab 6: speculative decoding. Several tokens for one pass of the model, and the same output.

A decode step spends its time on reading the weights, whether for one token or for five. So let
something cheap draft the next tokens, and have the model, the target, verify all of them in one
forward. What it would not have said is thrown away, so nothing changes but the time.

Sources: Leviathan et al., "Fast inference from transformers via speculative decoding", ICML 2023;
Chen et al., "Accelerating large language model decoding with speculative sampling", 2023; Saxena,
"Prompt lookup decoding", 2023 (n-grams as a draft).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    """How many of the k drafts a greedy target accepts, and the token that it says after those.

    choices: the target's likeliest token after the text, after the text and one draft, and so on;
    k + 1 in all. Drafts are accepted up to the first that differs from the choice in its place. The
    next token is then the target's own choice: it corrects the draft that was rejected, or follows
    the last one as a bonus. `k` may be 0.
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
    """What the target gives to each token beyond what the draft gives to it, as a distribution.

    A token to which the draft gives more has probability 0. Where there is nothing beyond, because
    both are equal, it is the target's own. Source: Leviathan et al., section 2.3.
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
    """How many of the k drafts are accepted, and the token after those: together they are
    distributed as the target's own.

    Row i of `draft_probs` is what draft i was drawn from, row i of `target_probs` what the target
    says in its place. In turn, draft i is accepted if uniform i is below p / q, the probabilities
    that target and draft give to it. At the first that isn't, the next token is drawn from the
    residual of that place; where all are accepted, from the last row of the target, as a bonus. The
    last uniform draws the next token. `k` may be 0. Everything given is left as it was. Source:
    Leviathan et al., algorithm 1.
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
    weight = model.transformer.wte.weight
    return KVCache(model.config, 1, max_length, weight.device, weight.dtype)


def new_logits(
    model: CachedLMHead, ids: Sequence[int], kv_cache: KVCache
) -> Float[Tensor, "new vocab"]:
    """The logits after each token that the cache doesn't hold yet, from one forward."""
    start, device = kv_cache.length, kv_cache.keys.device
    inputs = torch.tensor([ids[start:]], device=device)
    position_ids = torch.arange(start, len(ids), device=device).unsqueeze(0)
    return model(inputs, position_ids, kv_cache)[0]


def prefixes(ids: Sequence[int], logits: Float[Tensor, "rows vocab"]) -> Int[Tensor, "rows seq"]:
    """The text that each of the last rows of logits follows, the whole of it for the last row.

    What isn't there yet is filled with the first token: the repetition penalty counts a token once.
    """
    text = torch.tensor([ids], device=logits.device)
    if len(logits) == 1:
        return text  # each draft asks for this; four operations less, on what should be cheap
    text = text.repeat(len(logits), 1)
    later = torch.ones_like(text, dtype=torch.bool).triu(len(ids) - len(logits) + 1)
    return text.masked_fill(later, ids[0])


def new_uniforms(
    count: int, generator: torch.Generator, device: torch.device
) -> Float[Tensor, " count"]:
    """Numbers from 0 up to 1, drawn where the generator is and moved to where the model is."""
    return torch.rand(count, generator=generator, device=generator.device).to(device)


class Drafter(Protocol):
    """Something cheap that guesses how a text goes on."""

    def propose(
        self, ids: Sequence[int], k: int, params: SamplingParams, generator: torch.Generator, /
    ) -> tuple[list[int], Float[Tensor, "drafts vocab"]]:
        """Up to k tokens that may follow `ids`, and the distribution that each was drawn from."""

    def truncate(self, n: int, /) -> None:
        """Forget all but the first `n` tokens of the text: the others were not accepted."""


class ModelDrafter:
    """A small model that runs ahead, with a cache of its own.

    Its cache may lag behind the text: after a round in which every draft was accepted it lacks two
    tokens, the last draft, after which it was never asked, and the bonus.
    """

    def __init__(self, model: CachedLMHead, max_length: int) -> None:
        self.model, self.kv_cache = model, new_cache(model, max_length)

    def propose(
        self, ids: Sequence[int], k: int, params: SamplingParams, generator: torch.Generator
    ) -> tuple[list[int], Float[Tensor, "drafts vocab"]]:
        """Draw k tokens one after the other, with one uniform for each from the generator.

        Each is drawn from `next_token_probs` of what the model says after the text and the drafts
        so far. Returns the drafts, and a row of those probabilities for each. The model computes no
        token that its cache holds already. `ids` is left as it was.
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
    """The k tokens that are likely to follow if the text repeats itself; none where it doesn't.

    Looks for the last `longest` tokens of the text at an earlier place in it, then for one token
    fewer, down to one; of several places the latest counts. The tokens from behind that place to
    the end of the text are the draft, the first k of them; where they are fewer, they are repeated,
    since a text that has come round once may go round again. `ids` is left as it was.
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
    """Looks the next tokens up in the text itself: a draft that costs no model."""

    def __init__(
        self, vocab_size: int, longest: int = 3, device: str | torch.device = "cpu"
    ) -> None:
        self.vocab_size, self.longest, self.device = vocab_size, longest, device

    def propose(
        self, ids: Sequence[int], k: int, params: SamplingParams, generator: torch.Generator
    ) -> tuple[list[int], Float[Tensor, "drafts vocab"]]:
        """The drafts are certain, whatever the sampling parameters: each has probability 1."""
        drafts = ngram_draft(ids, k, self.longest)
        certain = torch.tensor(drafts, dtype=torch.int64, device=self.device)
        return drafts, F.one_hot(certain, self.vocab_size).float()

    def truncate(self, n: int) -> None:
        """There is nothing to forget: the text is handed over anew each time."""


def first_layers(model: CachedLMHead, n_layer: int) -> CachedLMHead:
    """A draft made of the target: its first layers under its own head, in the same memory."""
    if not 1 <= n_layer <= model.config.n_layer:
        raise ValueError(
            f"The model has 1 to {model.config.n_layer} layers to take, not {n_layer}."
        )
    with torch.device("meta"):
        draft = CachedLMHead(replace(model.config, n_layer=n_layer)).requires_grad_(False)
    weights = model.state_dict()
    draft.load_state_dict({name: weights[name] for name in draft.state_dict()}, assign=True)
    return draft.eval()


# ------------------------------------------------------------------------------------ the loop


@dataclass(frozen=True)
class Round:
    """One pass of the target: what was drafted, how many were accepted, what the text gained.

    The last new token is the target's own, unless an accepted EOS has ended the text before it.
    """

    drafts: list[int]
    accepted: int
    new: list[int]


@dataclass(frozen=True)
class Speculated:
    """ids: prompt and new tokens. rounds: how they came about."""

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

    In each round the drafter proposes k tokens, or as many as there is room for beside the target's
    own. One forward of the target, over what its cache lacks, gives the k + 1 distributions that
    `verify` judges them by, with one uniform from the generator for each draft that came and one
    for the next token. The text gains what was accepted and the next token, up to EOS, which is
    kept. Then both caches forget what isn't part of the text; the newest token is in neither.
    """
    require_draft(target, drafter, k)
    generator = generator or torch.Generator()
    ids, end = list(prompt), end_of(target.config, prompt, max_new_tokens)
    kv_cache, rounds = new_cache(target, end), []
    drafter.truncate(0)  # it may have served another text
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
    """Tokens that one round gives on average, its own included.

    `acceptance` is the probability, from 0 to 1, that a draft is accepted when all before it were;
    it is taken to be the same in every place. Source: Leviathan et al., equation 1.
    """
    require_acceptance(acceptance)
    ### BEGIN SOLUTION
    return sum(acceptance**place for place in range(k + 1))
    ### END SOLUTION


def speed_up(acceptance: float, k: int, draft_cost: float, verify_cost: float) -> float:
    """How many times as fast as plain decode k drafts a round are.

    draft_cost, verify_cost: the time that one draft, and one pass of the target over k + 1 tokens,
    takes, in units of one decode step of the target. In the paper (theorem 3.8) the second is 1.
    """
    ### BEGIN SOLUTION
    return expected_tokens(acceptance, k) / (k * draft_cost + verify_cost)
    ### END SOLUTION


def best_k(acceptance: float, draft_cost: float, verify_costs: Sequence[float]) -> int:
    """The number of drafts a round with the highest `speed_up`; 0 where it is best not to draft.

    verify_costs: what a pass over 1, 2, 3, … tokens costs, so that item k is that for k drafts.
    """
    return max(
        range(len(verify_costs)),
        key=lambda k: speed_up(acceptance, k, draft_cost, verify_costs[k]),
    )


# ------------------------------------------------------------------------------ what is refused


def require_draft(target: CachedLMHead, drafter: Drafter, k: int) -> None:
    if k < 1:
        raise ValueError(
            f"A round drafts at least one token, not {k}. For none, take lab 2's loop."
        )
    own, drafts = target.config, config_of(drafter)
    if drafts is not None and drafts.vocab_size != own.vocab_size:
        raise ValueError(
            f"The draft has a vocabulary of {drafts.vocab_size} tokens, the target one of "
            f"{own.vocab_size}. They must share a tokenizer: an id has to mean the same to both."
        )


def config_of(drafter: Drafter) -> GPTConfig | None:
    model = getattr(drafter, "model", None)
    return None if model is None else model.config


def require_acceptance(acceptance: float) -> None:
    if not 0 <= acceptance <= 1:
        raise ValueError(f"An acceptance rate is a share from 0 to 1, not {acceptance}.")
