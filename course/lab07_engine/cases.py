"""The exercises of lab 7: the engine's scheduler, and its step."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from autograder.attempt.drivers import engine as drivers
from autograder.attempt.drivers.engine import PRIME, Prescribed, TextRunner, logits_after
from autograder.judging.draws import draw, number_or_word, steps_in, until
from autograder.judging.exercise import Case, Exercise
from gpt import GPTConfig
from solutions.engine import engine as reference
from solutions.engine.managers import EngineManager
from solutions.engine.scheduler import Plan, Scheduler

Request = dict[str, Any]

# --------------------------------------------------------------------------------- the scheduler


class Queue:
    """Makes cases for a scheduler, from words for its requests.

    "waits 7" waits with seven tokens; "started 2/7" runs, and two of its seven tokens are computed;
    "decodes 7 drafts=1" runs, and lacks its newest token and the draft. Each may have four new
    tokens, or two with "7+2".
    """

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def case(
        self, label: str, budget: int, about: str | list[Request], steps: int = 1, **limits: int
    ) -> Case:
        requests = self.requests(about) if isinstance(about, str) else about
        pool = {"num_blocks": 40, "block_size": 4, "token_budget": budget, "max_running": 8}
        return Case(label, {"requests": requests, "steps": steps, **pool, **limits})

    def requests(self, words: str) -> list[Request]:
        made = []
        for kind, size, *about in steps_in(words):
            given, (length, _, new) = options_in(about), str(size).partition("+")
            computed, _, length = length.rpartition("/")
            if kind == "started":
                given["computed"] = int(computed)
            if kind == "decodes":
                given |= {"computed": int(length) - 1, "drafts": self.ids(given.get("drafts", 0))}
            made.append(self.request(int(length), int(new or 4), **given))
        return made

    def request(self, length: int, new: int, **about: Any) -> Request:
        waits = {"comes": 1, "computed": None, "drafts": [], "gains": [1], "k": 0}
        return {"ids": self.ids(length), "end": length + new, **waits, **about}

    def ids(self, length: int) -> list[int]:
        return torch.randint(100, (length,), generator=self.generator).tolist()

    def some(self, count: int, longest: int, latest: int) -> Iterator[Request]:
        number = partial(draw, self.generator)
        for _ in range(count):
            length, new, comes = (number(1, most) for most in (longest, 6, latest))
            k, gains = number(0, 2), [number(1, 3) for _ in range(3)]
            yield self.request(length, new, comes=comes, k=k, gains=gains)


def options_in(words: Iterable[str]) -> dict[str, Any]:
    """The values of options such as "k=2" and "gains=1+3"."""
    pairs = (word.split("=") for word in words)
    return {
        name: [int(part) for part in value.split("+")] if "+" in value else number_or_word(value)
        for name, value in pairs
    }


FIRST_RUNS = (  # of any scheduler: label, budget, requests, steps
    ("no requests", 8, ""),
    ("one prompt waits", 8, "waits 3"),
    ("one request decodes", 8, "decodes 5"),
    ("the rest of a prompt", 8, "started 4/7"),
    ("a prompt longer than the budget", 4, "waits 7", 3),
    ("a prompt of exactly two chunks", 4, "waits 8", 3),
)
AT_ONCE = "a preempted request for which there would be room at once"
TWO_AND_ONE = "decodes 3, decodes 3 drafts=3, waits 1"
ROOM_FOR_TWO = {"num_blocks": 9, "block_size": 1, "max_running": 2}
SMALL = {"num_blocks": 9, "block_size": 2, "max_running": 4}


def schedule_cases(generator: torch.Generator) -> list[Case]:
    queue = Queue(generator)
    case, some = queue.case, list(queue.some(6, longest=9, latest=5))
    first_runs = [case(*about) for about in FIRST_RUNS]
    too_many = "decodes 6 drafts=2, decodes 5 drafts=2, decodes 4, waits 3"
    drafting = "decodes 5+9 k=1, decodes 7+7 drafts=2 k=2"
    long, three = "decodes 8, waits 9, waits 2", "decodes 5 drafts=3, decodes 2, decodes 3"
    ones = {"num_blocks": 11, "block_size": 1}
    others = "decodes 5, decodes 7+9, waits 2, waits 3 comes=2"
    return [
        *first_runs,
        case("two prompts wait, and the budget is enough for both", 8, "waits 3, waits 4"),
        case("two prompts wait, and share the budget", 8, "waits 6, waits 5", steps=3),
        case("a prompt as long as the budget, and another", 4, "waits 4, waits 3"),
        case("two requests decode, a prompt waits", 8, "decodes 5, decodes 3, waits 4", steps=2),
        case("running requests use up the budget", 2, "decodes 5, decodes 3, waits 4", steps=2),
        case("more requests run than the budget has tokens", 2, "decodes 5|3|4"),
        case("the cache already holds the first block of a prompt", 8, "waits 6 found=4, waits 3"),
        case("a budget of one token", 1, "waits 2+2, waits 3+2", steps=8),
        case("a started prompt before a decode", 4, "started 2/9, decodes 5", steps=3),
        case("a decode before a started prompt", 4, "decodes 5, started 2/9", steps=3),
        case("max_running is reached", 16, "waits 3+1|2+2|4+1|2+3", steps=4, max_running=2),
        case("drafts that just fit the budget", 3, "decodes 5 drafts=2"),
        case("drafts that don't fit the rest of the budget", 5, too_many, steps=2),
        case("drafts after a prompt", 6, "waits 4+9 k=2 gains=1+3", steps=4),
        case("a request is preempted with its drafts", 5, drafting, 6, **ones),
        case("a prompt larger than the pool", 8, "waits 9", num_blocks=2),
        case("a prompt too long for the free blocks, then a short one", 16, long, num_blocks=4),
        case("no block is free, and none is needed", 8, "decodes 4, decodes 7", num_blocks=3),
        case("no block for the oldest request", 8, "decodes 5, decodes 5", num_blocks=2, steps=2),
        case("no block for the newest request", 8, "decodes 4, decodes 5", num_blocks=2, steps=2),
        case("no block for the only request's drafts", 8, "decodes 4 drafts=2", num_blocks=1),
        case("two requests are preempted for one", 8, three, steps=2, num_blocks=5, block_size=2),
        case("a request is preempted while others wait", 8, others, steps=5, num_blocks=4),
        case(AT_ONCE, 8, TWO_AND_ONE, steps=3, **ROOM_FOR_TWO),
        case("recompute in chunks", 4, "decodes 9+6|8+6|6+6", num_blocks=6, steps=9),
        case("blocks of one token", 8, "waits 4+3|3+3|2+3", **ones, steps=9),
        case("six requests, a small pool, drafts", 7, some, 14, **SMALL),
    ]


# ------------------------------------------------------------------------------------ the engine

CONFIG = GPTConfig(vocab_size=PRIME - 1, n_positions=24)


class Watched(Scheduler):
    """The reference's scheduler, with a record of every step."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.turns: list[dict[str, Any]] = []

    def schedule(self) -> Plan:
        before = [sequence.number for sequence in self.running]
        plan = super().schedule()
        after = [sequence.number for sequence in self.running]
        preempted = [number for number in reversed(before) if number not in after]
        admitted = [number for number in after if number not in before]
        self.turns.append({"preempted": preempted, "admitted": admitted, "plan": dict(plan)})
        return plan


def turns_of(requests: list[Request], k: int, salt: int, budget: int, **pool: int) -> list[Any]:
    """What a right scheduler does for these requests, until all have ended."""
    manager = EngineManager(pool["blocks"], pool["block_size"])
    scheduler = Watched(manager, budget, pool["max_running"])
    new_drafter = partial(Prescribed, requests) if k else None
    runner: Any = TextRunner(salt)
    engine = reference.Engine(CONFIG, scheduler, runner, lambda _: None, new_drafter, k)
    last = max((r["aborted"] or r["comes"] for r in requests), default=1)
    while len(scheduler.turns) < last or engine.has_work:
        drivers.arrive(engine, requests, len(scheduler.turns) + 1)
        drivers.has_failed(engine)
    return scheduler.turns


def backward(turns: list[Any]) -> list[Any]:
    """The same turns, with every plan in the opposite order: a scheduler may have its own order."""
    return [turn | {"plan": dict(reversed(turn["plan"].items()))} for turn in turns]


class Texts:
    """Makes requests of words: "3+6" is a prompt of three tokens, with six new ones, all different.

    wrong: the new tokens that its drafter doesn't guess; eos: the new token that is EOS, counted
    from 0; fails: how many new tokens make its stop condition raise. With a `temperature`,
    `top_k` or `top_p` tokens are drawn. "2..5+6" is a prompt of two to five tokens.
    """

    def __init__(self, generator: torch.Generator, salt: int) -> None:
        self.generator, self.salt = generator, salt

    def requests(self, words: str) -> list[Request]:
        return [self.request(*step) for step in steps_in(words)]

    def request(self, size: str, *about: str) -> Request:
        lengths, new = size.split("+")
        low, _, high = lengths.partition("..")
        length = draw(self.generator, int(low), int(high)) if high else int(low)
        given: Request = {"params": None, "seed": 0, "eos_token_id": None, "comes": 1}
        given |= {"aborted": None, "fails": None, **options_in(about)}
        sampling = [name for name in ("temperature", "top_k", "top_p") if name in given]
        drawn = {name: given.pop(name) for name in sampling}
        if drawn:
            seed = draw(self.generator, 0, 10**4)
            given |= {"params": {"temperature": 1.0, **drawn}, "seed": seed}
        text = until(
            lambda text: len({*text[length:]}) == int(new), lambda: self.text(length, int(new))
        )
        if "eos" in given:
            given["eos_token_id"] = text[length + given.pop("eos")]
        prompt, wrong = text[:length], given.pop("wrong", [])
        for place in wrong if isinstance(wrong, list) else [wrong]:
            text[length + place] = (text[length + place] + 1) % (PRIME - 1)
        return {"prompt": prompt, "max_new_tokens": int(new), "guesses": text, **given}

    def text(self, length: int, new: int) -> list[int]:
        """A prompt, and the greedy text after it."""
        text = torch.randint(PRIME - 1, (length,), generator=self.generator).tolist()
        for _ in range(new):
            text.append(int(logits_after(text, self.salt).argmax()))
        return text


def step_cases(generator: torch.Generator) -> list[Case]:
    salt = draw(generator, 1, 10**4)
    texts = Texts(generator, salt)

    def case(
        label: str, budget: int, words: str, k: int = 0, changed: Any = list, **limits: int
    ) -> Case:
        requests = texts.requests(words)
        pool = {"blocks": 40, "block_size": 4, "max_running": 8} | limits
        turns = changed(turns_of(requests, k, salt, budget, **pool))
        own = {"config": asdict(CONFIG), "requests": requests, "k": k, "turns": turns}
        return Case(label, {**own, "token_budget": budget, "salt": salt})

    full = CONFIG.n_positions
    small = {"blocks": 6, "block_size": 2}
    crowded = {"blocks": 10, "block_size": 2, "max_running": 3}
    for_two = "3+7 wrong=3, 2+8 wrong=2+3, 5+3 comes=3"
    filled = f"{full}+0 max_new_tokens=3, 2+2"
    reaching = f"{full - 2}+2 max_new_tokens=9, 3+4"
    five = (
        "2..6+6 wrong=2+3, 1..5+5 top_p=0.7, 1..5+6 eos=3, 2..7+3 comes=3, 1..5+5 comes=4 aborted=8"
    )
    return [
        case("no requests at first", 8, "2+1 comes=2"),
        case("one new token", 8, "3+1"),
        case("three new tokens", 8, "3+3"),
        case("a prompt in two chunks", 4, "6+3"),
        case("a prompt of exactly two chunks", 3, "6+2"),
        case("two requests of equal length", 8, "3+2, 3+3"),
        case("a plan in another order than the requests", 8, "3+2, 3+3", changed=backward),
        case("a long prompt before a short one", 16, "7+3, 2+3"),
        case("a prompt, and two requests that decode", 16, "2+6, 3+4, 9+3 comes=3"),
        case("a budget of one token", 1, "2+2, 2+2"),
        case("three prompts under a small budget", 5, "6+2, 4+3, 3+2"),
        case("EOS ends one of two requests", 8, "3+5 eos=1, 2+4"),
        case("the first new token is EOS", 8, "3+5 eos=0, 2+3"),
        case("drafts, all right", 8, "3+6", k=2),
        case("drafts, some wrong", 8, "3+8 wrong=1+4", k=3),
        case("drafts, all wrong", 8, "2+4 wrong=0+1+2+3", k=2),
        case("drafts for two requests, and a prompt", 16, for_two, k=2),
        case("EOS among the drafts", 8, "3+7 eos=2, 2+5 wrong=1", k=3),
        case("drafts and a budget too small for all", 4, "3+6, 2+6 wrong=2", k=2),
        case("a request is preempted", 8, "3+6, 4+6", **small),
        case("recompute in chunks", 3, "4+7, 3+6, 2+3", **small),
        case("a request is preempted with its drafts", 6, "4+7, 4+7 wrong=3", k=2, **small),
        case("blocks of one token", 5, "3+4, 2+5", blocks=9, block_size=1),
        case("a running request is aborted", 8, "3+5 aborted=3, 2+5"),
        case("a waiting request is aborted", 8, "3+4, 2+4 aborted=2", max_running=1),
        case("a request is aborted in the middle of its prompt", 4, "10+3 aborted=2, 2+3"),
        case("the only request is aborted", 8, "3+5 aborted=2, 2+3 comes=4"),
        case("a request's stop condition raises, another decodes", 8, "3+5 fails=2, 2+4"),
        case("a prompt fills the context", 32, filled),
        case("a text reaches the end of the context", 32, reaching),
        case("tokens are drawn", 8, "3+5 temperature=1.0, 2+4 temperature=0.6"),
        case("one request draws, one is greedy, with drafts", 8, "3+8 top_k=3, 2+6", k=2),
        case("five requests, a small pool, drafts", 7, five, k=2, **crowded),
    ]


EXERCISES = (
    Exercise("engine.Scheduler.schedule", drivers.schedule, schedule_cases),
    Exercise("engine.Engine.step", drivers.step, step_cases),
)
