"""The exercises of lab 6: what is accepted, drafts, the loop, and when it pays."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, repeat
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from autograder.attempt.drivers import speculative as drivers
from autograder.judging.comparisons import compare_with_work
from autograder.judging.draws import (
    LOOP,
    draw,
    normal,
    prompt_list,
    prompt_where,
    small_model,
    until,
)
from autograder.judging.exercise import Case, Exercise, case_of
from autograder.lending.cached import lend_cached_model
from gpt import GPTLMHead
from solutions import speculative as reference
from solutions.decoding import SamplingParams, next_token_probs
from solutions.kv_cache import CachedLMHead

FULL, VOCAB = LOOP.n_positions, LOOP.vocab_size
MARGIN = 1e-3  # from a threshold, so that float32 falls on the same side

Row = Float[Tensor, " vocab"]

# ----------------------------------------------------------------------------------- verifying


def verify_greedy_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, k: int, wrong: Sequence[int] = ()) -> Case:
        """A wrong draft is the target's choice plus one; the others are the target's choices."""
        choices = (torch.randperm(VOCAB, generator=generator)[: k + 1]).tolist()
        drafts = torch.tensor(choices[:k], dtype=torch.int64).tolist()  # equal, not the same
        for place in wrong:
            drafts[place] = (drafts[place] + 1) % VOCAB
        return Case(label, {"choices": choices, "drafts": drafts})

    some = draw(generator, 2, 5)
    return [
        case("no draft", 0),
        case("one draft, right", 1),
        case("one draft, wrong", 1, [0]),
        case("four drafts, all right", 4),
        case("four drafts, the first wrong", 4, [0]),
        case("four drafts, the third wrong", 4, [2]),
        case("four drafts, the last wrong", 4, [3]),
        case("four drafts, all wrong", 4, range(4)),
        case("seven drafts, two wrong", 7, [some, 6]),
        Case("drafts that the target chooses elsewhere", {"choices": [5, 8, 2], "drafts": [5, 2]}),
        Case("drafts that come one place early", {"choices": [3, 7, 4, 6], "drafts": [7, 4, 6]}),
        Case("the same token everywhere", {"choices": [6, 6, 6, 6, 1], "drafts": [6, 6, 6, 6]}),
        Case("the same token, one too many", {"choices": [6, 6, 2, 6], "drafts": [6, 6, 6]}),
        Case("token 0", {"choices": [0, 4, 0, 0], "drafts": [0, 4, 7]}),
    ]


def residual_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, target: Any, draft: Any, dtype: torch.dtype = torch.float64) -> Case:
        both = torch.as_tensor(target, dtype=dtype), torch.as_tensor(draft, dtype=dtype)
        return Case(label, {"target_probs": both[0].clone(), "draft_probs": both[1].clone()})

    p, q = (distribution(generator, VOCAB) for _ in range(2))
    token = draw(generator, 0, VOCAB - 1)
    few = p * (torch.rand(VOCAB, generator=generator) < 0.1)
    some = q * (torch.rand(VOCAB, generator=generator) < 0.5)
    return [
        case("three tokens, the target gives more to two", [0.5, 0.3, 0.2], [0.3, 0.2, 0.5]),
        case("three tokens, the target gives more to one", [0.5, 0.25, 0.25], [0.2, 0.4, 0.4]),
        case("target and draft are equal", [0.5, 0.125, 0.375], [0.5, 0.125, 0.375]),
        case("equal, with a token of probability 0", [0.25, 0.0, 0.75], [0.25, 0.0, 0.75]),
        case("two tokens differ by 2.4e-7", [0.5, 0.25, 0.25], [0.5, 0.25 + 2**-22, 0.25 - 2**-22]),
        case("the draft gives 1 to a token", [0.5, 0.3, 0.1, 0.1], [0.0, 1.0, 0.0, 0.0]),
        case("the target gives 1 to a token", [0.0, 0.0, 1.0, 0.0], [0.4, 0.1, 0.2, 0.3]),
        case("both give 1, to different tokens", [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]),
        case("both give 1, to the same token", [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]),
        case("300 tokens", p, q),
        case("300 tokens, in float32", p, q, torch.float32),
        case("300 tokens, the draft gives 1 to one of them", p, torch.eye(VOCAB)[token]),
        case("300 tokens, the target gives 0 to most", few / few.sum(), q),
        case("300 tokens, the draft gives 0 to half", p, some / some.sum()),
        case("300 tokens, target and draft are equal", q, q),
    ]


def distribution(generator: torch.Generator, vocab: int) -> Row:
    return (1.5 * normal(generator, vocab)).softmax(dim=-1)


def verify_cases(generator: torch.Generator) -> list[Case]:
    as_case = case_of("target_probs", "draft_probs", "drafts", "uniforms")

    def case(
        label: str,
        k: int,
        accepted: int,
        vocab: int = VOCAB,
        dtype: torch.dtype = torch.float64,
        target: Callable[[torch.Generator, int], Row] = distribution,
        draft: Callable[[torch.Generator, int], Row] = distribution,
    ) -> Case:
        """The drafts after the first rejected one would all be accepted."""
        p = torch.stack([target(generator, vocab) for _ in range(k + 1)])
        places = [drafted(generator, p[i], draft, i != accepted) for i in range(k)]
        q = torch.stack([place[0] for place in places]) if k else p[:0]
        uniforms = torch.tensor([place[2] for place in places] + [0.0])
        uniforms[-1] = last_uniform(generator, p, q, uniforms, accepted)
        return as_case(label, p.to(dtype), q.to(dtype), [place[1] for place in places], uniforms)

    def equal_case(label: str, k: int) -> Case:
        p = torch.stack([distribution(generator, VOCAB) for _ in range(k + 1)])
        drafts = torch.multinomial(p[:k], 1, generator=generator)[:, 0].tolist()
        uniforms = torch.full((k + 1,), 0.99)
        uniforms[-1] = last_uniform(generator, p, p[:k], uniforms, k)
        return as_case(label, p, p[:k].clone(), drafts, uniforms)

    never = torch.tensor([[0.0, 0.25, 0.75], [0.5, 0.25, 0.25]])  # the target gives 0 to token 0
    at_0, float32 = torch.tensor([0.0, 0.5]), torch.float32
    return [
        case("no draft, three tokens", 0, 0, vocab=3),
        case("one draft is accepted, three tokens", 1, 1, vocab=3),
        case("one draft is rejected, three tokens", 1, 0, vocab=3),
        case("no draft", 0, 0),
        case("one draft is accepted", 1, 1),
        case("one draft is rejected", 1, 0),
        case("four drafts, all accepted", 4, 4),
        case("four others, all accepted", 4, 4),
        case("the first of four drafts is rejected", 4, 0),
        case("the second of four drafts is rejected", 4, 1),
        case("the third of four drafts is rejected", 4, 2),
        case("the last of four drafts is rejected", 4, 3),
        case("float32, all are accepted", 3, 3, dtype=float32),
        case("float32, the second is rejected", 3, 1, dtype=float32),
        case("drafts of probability 1 (n-grams), all accepted", 3, 3, draft=certain),
        case("drafts of probability 1 (n-grams), the second rejected", 3, 1, draft=certain),
        case("the target gives 0 to most tokens, one rejected", 4, 2, target=few_tokens),
        case("the draft gives 0 to most tokens, one rejected", 4, 1, draft=few_tokens),
        case("greedy: both give 1 to a token, all accepted", 4, 4, target=certain, draft=certain),
        case("greedy: both give 1 to a token, one rejected", 4, 2, target=certain, draft=certain),
        equal_case("target and draft are equal", 4),
        as_case(
            "a uniform of 0, and a draft to which the target gives 0", never, never[1:], [0], at_0
        ),
    ]


def certain(generator: torch.Generator, vocab: int) -> Row:
    return torch.eye(vocab, dtype=torch.float64)[draw(generator, 0, vocab - 1)]


def few_tokens(generator: torch.Generator, vocab: int) -> Row:
    kept = torch.randperm(vocab, generator=generator)[:20]
    row = torch.zeros(vocab, dtype=torch.float64)
    return row.scatter(0, kept, distribution(generator, 20))


def drafted(
    generator: torch.Generator,
    p: Row,
    draft: Callable[[torch.Generator, int], Row],
    is_accepted: bool,
) -> tuple[Row, int, float]:
    """A draft's distribution, its token, and a uniform with which the target accepts it or not.

    If possible, an accepted one has p < u < p / q < 1, so that p alone would not accept it.
    """
    tries = count()

    def drawn() -> Draft:
        q = draft(generator, len(p))
        token = int(torch.multinomial(q, 1, generator=generator))
        likely = float(p[token])
        ratio = min(likely / float(q[token]), 1.0)
        is_telling = next(tries) > 50 or 0.1 < ratio < 1
        low = (likely if likely + 4 * MARGIN < ratio else 0.0) if is_accepted else ratio
        return Draft(q, token, low, ratio if is_accepted else 1.0, is_telling)

    made = until(has_room, drawn)
    between = float(torch.rand((), generator=generator))
    uniform = made.low + MARGIN + between * (made.high - made.low - 2 * MARGIN)
    return made.row, made.token, uniform


class Draft(NamedTuple):
    """A draft's distribution, its token, and the bounds of a uniform that decides its fate.

    is_telling: whether an attempt that compares otherwise is likely to decide otherwise.
    """

    row: Row
    token: int
    low: float
    high: float
    is_telling: bool


def has_room(draft: Draft) -> bool:
    return draft.is_telling and draft.low + 3 * MARGIN < draft.high


def last_uniform(
    generator: torch.Generator, p: Tensor, q: Tensor, uniforms: Tensor, accepted: int
) -> float:
    """A uniform that draws a different token from the right distribution than from its neighbors.

    If a small vocabulary or a certain target has none, the uniform is just off the thresholds.
    """
    k = len(q)
    beyond = [reference.residual(p[i], q[i]) for i in range(k)]
    others = [*beyond, *p, *q, *(reference.residual(q[i], p[i]) for i in range(k))]
    right = beyond[accepted] if accepted < k else p[k]
    others = [other for other in others if not torch.equal(other, right)]
    tried = torch.rand(500, generator=generator)
    drawn = tokens_at(right, tried)
    again = tokens_at(right, uniforms[:k])
    is_safe = (right.cumsum(0) - tried[:, None]).abs().amin(dim=-1) > MARGIN / 10
    is_telling = is_safe & ~torch.isin(drawn, again)
    for other in others:
        is_telling &= drawn != tokens_at(other, tried)
    return float(tried[is_telling if is_telling.any() else is_safe][0])


def tokens_at(probs: Row, uniforms: Float[Tensor, " draws"]) -> Tensor:
    return reference.draw(probs.expand(len(uniforms), -1), uniforms)


# ------------------------------------------------------------------------------------ drafting


def propose_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, seq: int, *rounds: tuple[int, int], **params: Any) -> Case:
        """A round: how many drafts are asked for, and how many of them are accepted."""
        tokens = prompt_list(generator, len(rounds))
        script = [(*sizes, token) for sizes, token in zip(rounds, tokens, strict=True)]
        own = {"params": params, "seed": draw(generator, 0, 10**6), "rounds": script}
        return Case(label, {"prompt": prompt_list(generator, seq), **own})

    def repetitive(label: str, *rounds: tuple[int, int], **params: Any) -> Case:
        """The text holds the draft model's own tokens, so that the penalty matters."""
        script, said = case(label, 2, *rounds, **params), said_after(generator, 2)
        return Case(label, {**script.data, "prompt": [*said, said[2], said[0]]})

    def drafting(label: str, token: int | None) -> Case:
        """The token is one of the first round's greedy drafts, and not the last one."""
        prompt, _ = prompt_where(generator, 3, lambda _, new: token in new[:3])
        return Case(label, {**case(label, 3, (4, 4), (1, 0), temperature=0).data, "prompt": prompt})

    some = [draw(generator, 0, 3) for _ in range(2)]
    warm: dict[str, Any] = {"temperature": 0.8, "top_k": 20}
    return [
        case("one draft, greedy", 1, (1, 0), temperature=0),
        case("three drafts, greedy", 3, (3, 0), temperature=0),
        case("no draft", 3, (0, 0)),
        case("one draft, drawn", 2, (1, 0), temperature=1.5),
        case("four drafts, drawn", 2, (4, 0), temperature=1.5),
        case("four drafts at temperature 0.8, top-k 20", 3, (4, 0), **warm),
        case("all drafts accepted", 2, (2, 2), (2, 0), temperature=0),
        case("all drafts accepted, twice", 1, (3, 3), (2, 2), (3, 0), temperature=1.5),
        case("the first draft rejected", 3, (3, 0), (3, 0), temperature=2.0),
        case("the second of three rejected", 2, (3, 1), (3, 1), (2, 0), temperature=2.0),
        case("the last of three rejected", 2, (3, 2), (3, 0), temperature=2.0),
        drafting("token 0 is drafted", 0),
        drafting("the model's own EOS is drafted", LOOP.eos_token_id),
        case("no drafts between two rounds", 2, (2, 2), (0, 0), (2, 0), temperature=1.5),
        repetitive("a repetition penalty", (4, 2), (3, 0), temperature=2.0, repetition_penalty=2.0),
        repetitive("a repetition penalty, greedy", (4, 0), temperature=0, repetition_penalty=3.0),
        case("until the context is full", 1, (4, some[0]), (4, 4), (3, some[1]), (1, 0), top_p=0.9),
    ]


def said_after(generator: torch.Generator, seq: int) -> list[int]:
    """A prompt, and the small model's own next tokens."""
    prompt, new = prompt_where(generator, seq, lambda _, new: len({*new}) == len(new))
    return prompt + new[:2]


def ngram_cases(generator: torch.Generator) -> list[Case]:
    case = case_of("ids", "k")
    some = torch.randint(290, 293, (30,), generator=generator).tolist()
    large = torch.tensor([298, 297, 296, 299, 298, 297], dtype=torch.int64).tolist()
    song = [1, 2, 3, 4, 5, 9, 2, 3, 4, 6, 9, 8, 2, 3]
    anew = [1, 2, 3, 4, 5, 0, 2, 3, 4, 6, 1, 2, 3]  # after 1 2 3 4 5; later 2 3 4 6
    return [
        case("one token", [7], 3),
        case("nothing repeats", [5, 3, 8, 1], 3),
        case("the same token twice", [7, 7], 3),
        case("the last token occurs earlier", [4, 6, 2, 9, 4], 2),
        case("the last two tokens occur earlier", [4, 6, 2, 9, 4, 6], 2),
        case("the last three tokens occur earlier", [4, 6, 2, 9, 8, 4, 6, 2], 1),
        case("tokens above 256", large, 2),
        case("a text in a tuple", (4, 6, 2, 9, 4, 6), 2),
        case("fewer tokens follow than are asked for", [4, 6, 2, 4], 7),
        case("the same token everywhere", [3, 3, 3, 3], 5),
        case("two tokens in turn", [1, 2, 1, 2, 1], 4),
        case("three tokens occur early, two of them later", [1, 2, 3, 5, 2, 3, 6, 1, 2, 3], 2),
        case("several places, the latest counts", [1, 5, 1, 6, 1, 8, 1], 2),
        case("two tokens at several places", song, 2),
        case("two tokens at several places, many drafts", song, 9),
        case("the drafts begin at one place, and not anew", anew, 2),
        case("a longer run of one token than before", [3, 3, 3, 9, 3, 3, 3, 3], 2),
        case("longest is 1", [2, 3, 4, 7, 3, 6, 2, 3], 3, longest=1),
        case("longest is 5", [*range(6), 9, 2, 3, 4, 8, *range(5)], 2, longest=5),
        case("longest is 5, four occur earlier", [9, *range(8), 7, *range(4)], 2, longest=5),
        case("longest is more than the text has", [8, 5, 8], 4, longest=20),
        case("token 0", [0, 4, 0, 0, 5, 0, 4], 2),
        case("no draft is asked for", [1, 2, 1], 0),
        case("tokens with the same digits", [12, 7, 1, 5, 112, 9, 12], 2),
        case("thirty tokens of three kinds", some, 4),
        case("the same thirty, longest is 6", list(some), 6, longest=6),
        case("nothing repeats, but an earlier text has its end", [*range(20, 30), 4, 6, 2], 3),
    ]


# ------------------------------------------------------------------------------------ the loop


@dataclass(frozen=True)
class Loop:
    """A loop of the reference that goes on without EOS, with drafts that follow a plan.

    given: the data of a case. rounds: none if a draft couldn't have its planned fate.
    """

    given: dict[str, Any]
    is_planned: bool = False
    rounds: Sequence[reference.Round] = ()

    def case(self, label: str, eos: int | None = None) -> Case:
        return Case(label, {**self.given, "eos_token_id": eos})


def generate_cases(generator: torch.Generator) -> list[Case]:
    def drawn(
        prompt: list[int] | int | None,
        new: int,
        k: int,
        *plan: tuple[int, int],
        is_certain: bool = False,
        **params: Any,
    ) -> Loop:
        """plan: of a round, how many drafts there are, how many are accepted; the last one is
        repeated if needed. prompt: its ids, or its length; None: see said_after."""
        ids = prompt_list(generator, prompt) if isinstance(prompt, int) else prompt
        ids = said_after(generator, 2) if ids is None else ids
        seed = draw(generator, 0, 10**6) if params else None
        drafter = Planned(generator, plan, is_certain)
        probs = None if is_certain else drafter.probs
        given = {"prompt": ids, "max_new_tokens": new, "k": k, "drafts": drafter.drafts}
        given |= {"draft_probs": probs, "params": params or None, "seed": seed}
        try:
            rounds = rounds_of(drafter, ids, new, k, params or {"temperature": 0}, seed)
        except NoSuchDraft:
            return Loop(given)
        return Loop(given, is_planned=True, rounds=rounds)

    def loop(*how: Any, **more: Any) -> Loop:
        return until(lambda loop: loop.is_planned, partial(drawn, *how, **more))

    def case(label: str, *how: Any, eos: int | None = None, **more: Any) -> Case:
        return loop(*how, **more).case(label, eos)

    def ending(label: str, place: tuple[int, int], *how: Any, above: int = -1, **more: Any) -> Case:
        """EOS is the new token at this place of this round, and above that number."""
        made = until(partial(is_new, place=place, above=above), partial(loop, *how, **more))
        return made.case(label, token_at(made, place))

    def rejecting(label: str, place: int, *how: Any) -> Case:
        """EOS is the draft at this place of the first round."""
        made = until(partial(never_comes, place=place), partial(loop, *how))
        return made.case(label, made.rounds[0].drafts[place])

    full, mixed = (9, 9), ((4, 4), (4, 1), (4, 0), (4, 3), (4, 4))
    zero, _ = prompt_where(generator, 3, lambda _, new: 0 in new[1:4] and new[0] != 0)
    own, _ = prompt_where(generator, 3, lambda _, new: LOOP.eos_token_id in new[:4])
    inside = prompt_where(generator, 4, lambda ids, new: ids[1] not in [ids[-1], *new])[0]
    ended, _ = prompt_where(generator, 4, lambda ids, new: ids[-1] not in new)
    twice, new = prompt_where(generator, 3, lambda _, new: new[3] in new[1:3] and new[3] != new[0])
    penalty: dict[str, Any] = {"temperature": 0, "repetition_penalty": 3.0}
    penalized = partial(loop, None, 9, 4, *mixed, **penalty)
    warm: dict[str, Any] = {"temperature": 1.5, "top_k": 30}
    hot: dict[str, Any] = {"temperature": 2.5}
    return [
        case("one new token: there is no room for a draft", 1, 1, 3, full),
        case("two new tokens, the draft is right", 2, 2, 1, full),
        case("two new tokens, the draft is wrong", 2, 2, 1, (9, 0)),
        case("three right drafts, and a bonus", 3, 4, 3, full),
        case("two rounds of right drafts", 2, 6, 2, full),
        case("wrong drafts only", 2, 4, 3, (9, 0)),
        case("one of three drafts is right", 3, 6, 3, (9, 1)),
        case("two of three drafts are right", 3, 7, 3, (9, 2)),
        case("drafts of probability 1 (n-grams)", 2, 9, 4, *mixed, is_certain=True),
        case("no drafts at all", 3, 3, 4, (0, 0)),
        case("fewer drafts than asked for, then none", 2, 9, 4, (2, 2), (0, 0), (1, 0), (3, 3)),
        case("more right drafts than there is room for", 2, 3, 8, full),
        case("the last round has room for one draft", 2, 7, 4, full),
        ending("EOS is the first of the accepted drafts", (0, 0), 3, 9, 4, full),
        ending("EOS is among the accepted drafts", (0, 2), 2, 9, 4, full, above=256),
        case("EOS is among them twice", twice, 9, 4, full, eos=new[3]),
        ending("EOS is the last of the accepted drafts", (1, 2), 2, 9, 3, full),
        ending("EOS is the bonus", (0, 3), 2, 9, 3, full),
        ending("EOS is a correction", (1, 1), 2, 9, 4, (4, 1)),
        rejecting("EOS is a draft that is rejected", 2, 2, 9, 4, (4, 2)),
        rejecting("EOS is a draft after the rejected one", 3, 2, 9, 4, (4, 1)),
        case("the EOS token's id is 0", zero, 9, 4, full, eos=0),
        case("the prompt contains EOS", inside, 5, 2, full, eos=inside[1]),
        case("the prompt ends with EOS", ended, 5, 2, full, eos=ended[-1]),
        case("the model's own EOS comes, but eos_token_id is None", own, 6, 3, full),
        case("the context is full before max_new_tokens", FULL - 6, 20, 4, (4, 4), (4, 2)),
        case("one place is left in the context", FULL - 1, 5, 4, full),
        case("the prompt fills the context", FULL, 3, 4, full),
        case("drawn: a draft is accepted, then one rejected", 3, 6, 1, (1, 1), (1, 0), **hot),
        case("drawn: all kinds of rounds", 2, 13, 4, *mixed, **warm),
        case("drawn: n-grams", 2, 9, 2, (2, 1), (1, 1), (2, 0), is_certain=True, **warm),
        case("drawn: fewer drafts, then none", 2, 10, 3, (1, 1), (0, 0), (2, 1), (3, 2), **hot),
        ending("drawn: EOS is an accepted draft", (1, 1), 2, 10, 4, full, **warm),
        until(drafts_change_a_round, penalized).case("a repetition penalty"),
        case("drawn, with a repetition penalty", None, 9, 4, *mixed, repetition_penalty=2.0, **hot),
        case("a long text", 1, FULL - 1, 3, (3, 3), (3, 1), (3, 2), (3, 3), (3, 0)),
    ]


def token_at(loop: Loop, place: tuple[int, int]) -> int:
    """The new token of a round: the round's number, and the token's place in it."""
    return loop.rounds[place[0]].new[place[1]]


def is_new(loop: Loop, place: tuple[int, int], above: int) -> bool:
    """Whether the token there is above that number and doesn't occur before."""
    earlier, last = loop.rounds[: place[0]], loop.rounds[place[0]].new[: place[1]]
    before = [*chain(*(made.new for made in earlier)), *last]
    return token_at(loop, place) not in before and token_at(loop, place) > above


def never_comes(loop: Loop, place: int) -> bool:
    """Whether the first round's draft at this place doesn't occur in the text."""
    return loop.rounds[0].drafts[place] not in chain(*(made.new for made in loop.rounds))


def drafts_change_a_round(loop: Loop) -> bool:
    """Whether a greedy text would differ if a round's own drafts were not penalized in it."""
    ids, params = loop.given["prompt"], SamplingParams(**loop.given["params"])
    for made in loop.rounds:
        for place in range(1, len(made.new)):
            if int(said_next(ids + made.new[:place], params, ids).argmax()) != made.new[place]:
                return True
        ids = ids + made.new
    return False


class NoSuchDraft(Exception):
    """No draft has the planned fate."""


class Planned:
    """Makes drafts with a planned fate, from the target's distribution and the loop's uniforms."""

    def __init__(
        self, generator: torch.Generator, plan: Sequence[tuple[int, int]], is_certain: bool
    ) -> None:
        self.generator, self.is_certain = generator, is_certain
        self.plan: Iterator[tuple[int, int]] = chain(plan, repeat(plan[-1]))
        self.drafts: list[list[int]] = []
        self.probs: list[Tensor] = []

    def propose(
        self, ids: Sequence[int], k: int, params: SamplingParams, generator: torch.Generator
    ) -> tuple[list[int], Tensor]:
        count, accepted = next(self.plan)
        count = min(count, k)
        uniforms = torch.rand(count + 1, generator=generator.clone_state()).tolist()
        drafts: list[int] = []
        rows = torch.empty(0, VOCAB, dtype=torch.float64)
        for place in range(count):
            p = said_next([*ids, *drafts], params)
            row, token = self.draft(p, uniforms[place], place != accepted)
            drafts.append(token)
            rows = torch.cat([rows, row[None]])
        self.drafts.append(drafts)
        self.probs.append(rows)
        return drafts, rows

    def draft(self, p: Row, u: float, is_accepted: bool) -> tuple[Row, int]:
        """A draft's distribution, and a token of it that is accepted with this uniform, or not."""
        for _ in range(20):
            q = (p + 0.002) * normal(self.generator, VOCAB).mul(1.5).exp()
            q = q / q.sum()
            ratios = p if self.is_certain else p / q
            will_do = ((u < ratios) == is_accepted) & ((u - ratios).abs() > MARGIN)
            if will_do.any():
                token = int(torch.multinomial(q * will_do, 1, generator=self.generator))
                certain = torch.eye(VOCAB, dtype=torch.float64)[token]
                return (certain if self.is_certain else q), token
        raise NoSuchDraft

    def truncate(self, n: int) -> None:
        """It keeps nothing."""


def said_next(ids: list[int], params: SamplingParams, said: list[int] | None = None) -> Row:
    """The target's distribution after a text; `said`: the tokens that a penalty sees, or None."""
    logits = small_model(GPTLMHead)(torch.tensor([ids]), torch.arange(len(ids))[None])[:, -1]
    return next_token_probs(logits, torch.tensor([said or ids]), params)[0]


def rounds_of(
    drafter: Planned, prompt: list[int], new: int, k: int, params: dict[str, Any], seed: int | None
) -> list[reference.Round]:
    target, sampling = small_model(CachedLMHead), SamplingParams(**params)
    generator = torch.Generator().manual_seed(seed or 0)
    made = reference.generate_speculative(target, drafter, prompt, new, k, sampling, generator)
    return made.rounds


# ---------------------------------------------------------------------------- when does it pay?


def expected_cases(generator: torch.Generator) -> list[Case]:
    case = case_of("acceptance", "k")
    some = round(0.3 + 0.5 * float(torch.rand((), generator=generator)), 2)
    return [
        case("no draft", 0.5, 0),
        case("one draft, acceptance 0.5", 0.5, 1),
        case("two drafts, acceptance 0.5", 0.5, 2),
        case("four drafts, acceptance 0.8", 0.8, 4),
        case("all accepted", 1.0, 4),
        case("none accepted", 0.0, 3),
        case("almost all accepted", 0.998, 4),
        case("seven drafts", some, 7),
        case("many drafts", 0.9, 30),
    ]


def speed_up_cases(generator: torch.Generator) -> list[Case]:
    case = case_of("acceptance", "k", "draft_cost", "verify_cost")
    some = [round(float(u), 2) for u in torch.rand(3, generator=generator)]
    return [
        case("no draft", 0.5, 0, 0.25, 1.0),
        case("one draft, acceptance 0.5", 0.5, 1, 0.25, 1.0),
        case("two drafts, acceptance 0.5", 0.5, 2, 0.125, 1.25),
        case("four drafts, acceptance 0.8", 0.8, 4, 0.1, 1.6),
        case("drafts that cost nothing", 0.6, 3, 0.0, 1.5),
        case("a draft as expensive as a decode step", 0.9, 4, 1.0, 1.2),
        case("all accepted", 1.0, 5, 0.05, 1.4),
        case("none accepted", 0.0, 2, 0.2, 1.3),
        case("another acceptance, other costs", some[0], 6, 0.3 * some[1], 1 + some[2]),
    ]


with_model = partial(Exercise, compare=compare_with_work, services=lend_cached_model)

EXERCISES = (
    Exercise("speculative.verify_greedy", drivers.verify_greedy, verify_greedy_cases),
    Exercise("speculative.residual", drivers.residual, residual_cases),
    Exercise("speculative.verify", drivers.verify, verify_cases),
    with_model("speculative.ModelDrafter.propose", drivers.propose, propose_cases),
    Exercise("speculative.ngram_draft", drivers.ngram_draft, ngram_cases),
    with_model("speculative.generate_speculative", drivers.generate_speculative, generate_cases),
    Exercise("speculative.expected_tokens", drivers.expected_tokens, expected_cases),
    Exercise("speculative.speed_up", drivers.speed_up, speed_up_cases),
)
