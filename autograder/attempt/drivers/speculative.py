"""Drivers of lab 6: what is accepted, a draft model that runs ahead, n-grams, and the loop."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from autograder.attempt.lent import handle
from autograder.attempt.plain import kind_of, kind_of_int, kind_of_list
from autograder.attempt.records import Attempt, Seen, as_it_was, one_call, things, uniforms_given
from autograder.attempt.tensors import copied
from solutions.decoding import SamplingParams

Probs = Float[Tensor, "rows vocab"]
Row = Float[Tensor, " numbers"]
Params = dict[str, Any]  # of SamplingParams

# ----------------------------------------------------------------------------------- verifying


def verify_greedy(attempt: Attempt, choices: list[int], drafts: list[int]) -> list[Seen]:
    return verified("verify_greedy", attempt(choices, drafts))


residual = one_call(__name__, "residual", "The residual", "target_probs draft_probs")


def verify(
    attempt: Attempt, target_probs: Probs, draft_probs: Probs, drafts: list[int], uniforms: Row
) -> list[Seen]:
    return verified("verify", attempt(target_probs, draft_probs, drafts, uniforms))


def verified(name: str, found: Any) -> list[Seen]:
    rule = f"{name} returns two things, the number of accepted drafts and the next token"
    accepted, token = things(2, found, rule)
    return [
        Seen("The number of accepted drafts", accepted),
        Seen("The next token", token),
        Seen("What it returned", f"is {kind_of_int(accepted)} and {kind_of_int(token)}"),
    ]


# ------------------------------------------------------------------------------------ drafting


def propose(
    attempt: type, prompt: list[int], params: Params, seed: int, rounds: list[Any], model: Any
) -> list[Seen]:
    """Call `propose` as the loop would. rounds: drafts asked for, accepted, and the next token."""
    drafter = attempt(model, model.config.n_positions)
    generator = torch.Generator().manual_seed(seed)
    sampling = SamplingParams(**params)
    text, seen = list(prompt), []
    for number, (k, accepted, token) in enumerate(rounds, 1):
        this, handed, before = f"round {number}", list(text), generator.get_state()
        found = drafter.propose(handed, k, sampling, generator)
        drafts, probs = things(2, found, "propose returns two things, drafts and probabilities")
        seen += [
            Seen("The list of drafts", kind_of_list(drafts), f"of {this}"),
            Seen("What was drafted", copied(drafts), f"in {this}"),
            Seen("The table of probabilities", probs, f"of {this}"),
            Seen("`self.kv_cache.length`", drafter.kv_cache.length, f"after {this}"),
            as_it_was("`ids`", handed, text, f"after {this}"),
        ]
        if sampling.temperature > 0:
            seen.append(Seen("The generator", numbers_given(before, generator), f"in {this}"))
        if kind_of_list(drafts) != "is a list of ints":
            break
        text += [*drafts[:accepted], token]
        drafter.truncate(len(text) - 1)
    return seen


def numbers_given(before: Tensor, generator: torch.Generator) -> str:
    """In words, how many numbers a generator has given since it was in the state `before`."""
    count = uniforms_given(before, generator, most=49)
    if count is None:
        return "gave other numbers than uniforms"
    return f"gave {count} number{'s' * (count != 1)}"


def ngram_draft(attempt: Attempt, ids: list[int], k: int, **longest: int) -> list[Seen]:
    """`longest` is passed if the case has one."""
    draft = attempt(ids, k, **longest)
    return [Seen("The draft", copied(draft)), Seen("What it returned", kind_of_list(draft))]


# ------------------------------------------------------------------------------------ the loop


def generate_speculative(
    attempt: Attempt,
    model: Any,
    drafts: list[list[int]],
    draft_probs: list[Probs] | None,
    params: Params | None,
    seed: int | None,
    **case: Any,
) -> list[Seen]:
    """Run the loop with a prescribed drafter. Arguments that are None are left out of the call.

    case: `prompt`, `max_new_tokens`, `k` and `eos_token_id`.
    """
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    before = None if generator is None else generator.get_state()
    sampling = None if params is None else SamplingParams(**params)
    given = {"params": sampling, "generator": generator, "eos_token_id": case["eos_token_id"]}
    given = {name: value for name, value in given.items() if value is not None}
    drafter = Prescribed(model.config.vocab_size, drafts, draft_probs, given)
    own = handle(drafter, "propose truncate")
    found = attempt(model, own, case["prompt"], case["max_new_tokens"], case["k"], **given)
    asked = Seen("The number of drafts asked for, call by call,", f"is {drafter.asked}")
    seen = [*speculated(found), asked, *drafter.seen]
    if generator is not None and before is not None and sampling and sampling.temperature > 0:
        seen.append(
            Seen("The request's generator", numbers_given(before, generator), "over all rounds")
        )
    return seen


@dataclass
class Prescribed:
    """A drafter that proposes prescribed drafts in each round, or the first k of them.

    held: the tokens that a draft model's cache would hold, which never computes its last draft.
    asked: the number of drafts in each call that asked for some.
    """

    vocab_size: int
    drafts: list[list[int]]
    draft_probs: list[Probs] | None
    given: dict[str, Any]
    held: list[int] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    calls: int = 0

    def propose(
        self, ids: Any, k: int, params: Any, generator: torch.Generator
    ) -> tuple[list[int], Probs]:
        """A call that asks for no drafts may also be left out, so it is not recorded."""
        text, call = [int(token) for token in ids], self.calls
        drafts = self.drafts[call][: max(k, 0)] if call < len(self.drafts) else []
        self.calls += 1
        if k != 0:
            self.record(text, k, params, generator)
        if drafts:
            self.held = text + drafts[:-1]
        return list(drafts), self.probs_of(drafts, call)

    def record(self, text: list[int], k: int, params: Any, generator: torch.Generator) -> None:
        where = f"in call {self.calls} of `propose`"
        handed = {"params": params, "generator": generator}
        other = [f"`{n}`" for n, thing in handed.items() if thing is not self.given.get(n, thing)]
        what = f"are {' and '.join(other)} of its own" if other else "are those of the request"
        self.asked.append(k)
        self.seen += [
            Seen("`ids`", text, where),
            Seen("`params` and `generator`", what, where),
            Seen("The text in the drafter's cache", list(self.held), where),
        ]

    def probs_of(self, drafts: list[int], call: int) -> Probs:
        """The prescribed distributions; if there are none, each draft has probability 1."""
        if self.draft_probs is None or not drafts:
            certain = torch.tensor(drafts, dtype=torch.int64)
            return F.one_hot(certain, self.vocab_size).double()
        return self.draft_probs[call][: len(drafts)].clone()

    def truncate(self, n: int) -> None:
        if n < 0:
            raise ValueError(f"The drafter cannot keep {n} tokens.")
        self.held = self.held[:n]


def speculated(found: Any) -> Iterator[Seen]:
    """The text and its rounds."""
    ids, rounds = getattr(found, "ids", None), getattr(found, "rounds", None)
    if ids is None or rounds is None:
        yield Seen("What it returned", found)
        return
    yield Seen("What it returned", "has `ids` and `rounds`")
    yield Seen("`ids`", copied(ids), "of the result")
    yield Seen("The result's `ids`", kind_of_list(ids))
    if not isinstance(rounds, list):
        yield Seen("The result's `rounds`", rounds)
        return
    for number, made in enumerate(rounds, 1):
        parts = [getattr(made, name, None) for name in ("drafts", "accepted", "new")]
        drafts, accepted, new = parts
        if isinstance(new, list) and isinstance(accepted, int):
            accepted = min(accepted, len(new))  # drafts after EOS may count as accepted or not
        yield Seen("`drafts`", copied(drafts), f"of round {number}")
        yield Seen("`new`", copied(new), f"of round {number}")
        yield Seen("`accepted`", accepted, f"of round {number}")
    yield Seen("The number of rounds", len(rounds))


# ---------------------------------------------------------------------------- when does it pay?


def expected_tokens(attempt: Attempt, acceptance: float, k: int) -> list[Seen]:
    return a_number("The number of tokens", attempt(acceptance, k))


def speed_up(
    attempt: Attempt, acceptance: float, k: int, draft_cost: float, verify_cost: float
) -> list[Seen]:
    return a_number("The speed-up", attempt(acceptance, k, draft_cost, verify_cost))


def a_number(what: str, found: Any) -> list[Seen]:
    """A tensor has the right value, too, but the notebook compares the number with an estimate."""
    told = kind_of(found) if isinstance(found, Tensor) else "a number"
    return [Seen(what, found), Seen("What it returned", f"is {told}")]
