"""The workloads: one prompt to continue, or many requests to serve."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from solutions.families import load_tokenizer, read_config

LENGTHS, SAMPLED, RAGGED, EQUAL, CHAT = KINDS = "lengths", "sampled", "ragged", "equal", "chat"

PROMPT = "Once upon a time there was a king who had three daughters, and the youngest"

SAMPLED_NEW, SAMPLED_TEMPERATURE = 64, 0.8
OPENINGS = (
    PROMPT,
    "The wolf ran through the forest, and when he came to the old woman's house,",
    "There was once a poor woodcutter who lived with his wife at the edge of a great forest.",
    "'Who are you?' said the giant. 'And what are you doing in my castle?'",
    "The youngest brother took the golden ring, and put it on his finger,",
    "In the middle of the night the princess heard a noise at the door,",
    "The fairy touched him with her wand, and at once he was changed into",
    "Far away by the sea there stood a castle, where nobody had lived for a hundred years.",
)

RAGGED_REQUESTS = 64
RAGGED_PROMPT, RAGGED_NEW = (4, 64), (8, 128)  # tokens, from the fewest to the most
EQUAL_REQUESTS, EQUAL_PROMPT, EQUAL_NEW = 16, 32, 64
CHATS, CHAT_TURNS = 8, 6
CHAT_SYSTEM, CHAT_QUESTION, CHAT_ANSWER = 96, 24, 32  # tokens


@dataclass(frozen=True)
class Workload:
    """Requests: what is new in each prompt, and how many new tokens each request asks for.

    kind: one of KINDS. about: its line under the table. temperature: 0 is greedy. No EOS ends a
    request early, so all techniques do the same work.

    reference: the baseline of speed-ups, whose tokens all others must produce if greedy. For many
    requests it is lab 2's loop, one request at a time, because the naive loop would take minutes.

    turns: 1 if all requests arrive at the start. With more turns the requests are chats: the first
    turns of all chats come first, then all second turns, and so on. A later turn continues the
    whole text of the previous one, answer included, and arrives when that one has finished.
    """

    kind: str
    name: str
    about: str
    prompts: list[list[int]]
    new_tokens: list[int]
    temperature: float = 0
    turns: int = 1
    reference: str = "cached"

    @property
    def at_start(self) -> int:
        """The number of requests that arrive at the start: all, or the chats' first turns."""
        return len(self.prompts) // self.turns

    def prompt(self, number: int, outputs: Sequence[list[int]]) -> list[int]:
        """Return a request's whole prompt. outputs: prompt and answer of the requests before it."""
        before = outputs[number - self.at_start] if number >= self.at_start else []
        return before + self.prompts[number]

    @property
    def longest(self) -> int:
        """The length of the longest request at its end, in tokens."""
        both = zip(self.prompts, self.new_tokens, strict=True)
        added = [len(prompt) + limit for prompt, limit in both]
        return max(sum(added[first :: self.at_start]) for first in range(self.at_start))


def new_workloads(kinds: Sequence[str], folder: Path, lengths: Sequence[int]) -> list[Workload]:
    """Return workloads of these kinds. Raises ValueError if the model's context is too short."""
    config = read_config(folder)
    workloads: list[Workload] = []
    if LENGTHS in kinds:
        workloads += one_prompt(folder, config, lengths)
    if SAMPLED in kinds:
        workloads.append(sampled(folder, config))
    if RAGGED in kinds:
        workloads.append(ragged(config))
    if EQUAL in kinds:
        workloads.append(equal(config))
    if CHAT in kinds:
        workloads.append(chat(config, CHATS))
    return workloads


def one_prompt(folder: Path, config: Any, lengths: Sequence[int]) -> list[Workload]:
    [prompt] = encoded([PROMPT], folder)
    room = config.n_positions - len(prompt)
    if max(lengths) > room:
        raise ValueError(
            f"--tokens {max(lengths)} is too long: this model's context of {config.n_positions} "
            f"tokens has room for {room} after the prompt of {len(prompt)} tokens."
        )
    about = f"one request, a prompt of {len(prompt)} tokens"
    of = partial(Workload, LENGTHS, about=about, prompts=[prompt], reference="naive")
    return [of(name=f"{n} new tokens", new_tokens=[n]) for n in lengths]


def sampled(folder: Path, config: Any) -> Workload:
    """Return the beginnings of some tales, to be continued one after the other at a temperature."""
    about = (
        f"{len(OPENINGS)} requests one at a time, beginnings of tales, {SAMPLED_NEW} new tokens at "
        f"temperature {SAMPLED_TEMPERATURE}"
    )
    prompts, limits = encoded(OPENINGS, folder), [SAMPLED_NEW] * len(OPENINGS)
    given = SAMPLED, SAMPLED, about, prompts, limits, SAMPLED_TEMPERATURE
    return fitting(Workload(*given, reference=SAMPLED), config)


def encoded(texts: Sequence[str], folder: Path) -> list[list[int]]:
    try:
        tokenizer = load_tokenizer(folder)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{folder} has no tokenizer: copy the model's tokenizer files there."
        ) from error
    return [tokenizer.encode(text).ids for text in texts]


def ragged(config: Any) -> Workload:
    """Return requests of unequal, log-uniform lengths: most short and a few long, as in practice.

    They are the same every time. The prompts are random ids, because the time doesn't depend on the
    words.
    """
    generator = torch.Generator().manual_seed(0)
    prompt_lengths = log_uniform(RAGGED_PROMPT, RAGGED_REQUESTS, generator)
    new_tokens = log_uniform(RAGGED_NEW, RAGGED_REQUESTS, generator)
    prompt, new = (f"{fewest}-{most}" for fewest, most in (RAGGED_PROMPT, RAGGED_NEW))
    about = f"{RAGGED_REQUESTS} requests, prompts of {prompt} tokens, {new} new, log-uniform"
    prompts = random_prompts(prompt_lengths, config, generator)
    return fitting(Workload(RAGGED, RAGGED, about, prompts, new_tokens), config)


def equal(config: Any) -> Workload:
    """Return requests that begin and end together, so that static batching wastes nothing."""
    generator = torch.Generator().manual_seed(0)
    about = f"{EQUAL_REQUESTS} requests, prompts of {EQUAL_PROMPT} tokens, {EQUAL_NEW} new"
    prompts = random_prompts([EQUAL_PROMPT] * EQUAL_REQUESTS, config, generator)
    return fitting(Workload(EQUAL, EQUAL, about, prompts, [EQUAL_NEW] * EQUAL_REQUESTS), config)


def chat(config: Any, chats: int) -> Workload:
    """Return chats that begin together with one system prompt and continue the model's answers.

    They are the same every time, made of random ids. Turns are joined as ids, because a text that
    is tokenized again may become other tokens, whose keys and values are in no cache.
    """
    generator = torch.Generator().manual_seed(0)
    [system] = random_prompts([CHAT_SYSTEM], config, generator)
    questions = random_prompts([CHAT_QUESTION] * chats * CHAT_TURNS, config, generator)
    about = (
        f"{chats} chats of {CHAT_TURNS} turns, a shared system prompt of {CHAT_SYSTEM} tokens, "
        f"questions of {CHAT_QUESTION}, answers of {CHAT_ANSWER}"
    )
    prompts = [system + question for question in questions[:chats]] + questions[chats:]
    limits = [CHAT_ANSWER] * len(prompts)
    return fitting(Workload(CHAT, CHAT, about, prompts, limits, turns=CHAT_TURNS), config)


def log_uniform(ends: tuple[int, int], count: int, generator: torch.Generator) -> list[int]:
    fewest, most = ends
    exponents = torch.rand(count, generator=generator)
    return (fewest * (most / fewest) ** exponents).round().long().tolist()


def random_prompts(
    lengths: Sequence[int], config: Any, generator: torch.Generator
) -> list[list[int]]:
    return [torch.randint(config.vocab_size, (n,), generator=generator).tolist() for n in lengths]


def fitting(workload: Workload, config: Any) -> Workload:
    if workload.longest > config.n_positions:
        raise ValueError(
            f"The workload {workload.name} needs a context of {workload.longest} tokens; this "
            f"model has {config.n_positions}. Choose others with --workloads."
        )
    return workload
