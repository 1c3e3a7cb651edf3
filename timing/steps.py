"""How often a model without marks for thoughts is right if it is asked for steps, or shown some.

    python -m timing.steps [--model MODEL] [--threads 1]

The questions are the 140 of lab 25: chains of two to eight digits, 20 of each length. Each is a
turn of a chat with lab 13's server, alone or after two examples, and is answered greedily. Right is
what ends in the right number. The model is SmolLM2 where `make chat` has installed it.
"""

import argparse
import random
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai

from solutions.server.here import serve_here
from solutions.thoughts.chains import LENGTHS, answer_of, draw, values
from timing.threads import parse_with_threads

NEW_TOKENS = 160
TOGETHER = 16  # questions, each a client of its own
EXAMPLES = [2, 7, 1, 8], [9, 4, 6]
QUESTION = (
    "Begin with v = 0. For each digit d of {digits}, replace v by 3*v + d, and keep the last "
    "two digits of it. What is the last v?"
)
STEP_BY_STEP = " Think step by step."
Message = dict[str, str]


def question(digits: list[int], more: str = "") -> Message:
    return {"role": "user", "content": QUESTION.format(digits="".join(map(str, digits))) + more}


def solved(digits: list[int], with_steps: bool) -> list[Message]:
    """Return a question and its answer."""
    lines = []
    for digit, (before, after) in zip(digits, pairwise([0, *values(digits)]), strict=True):
        kept = "" if 3 * before + digit < 100 else f", which leaves {after}"
        lines.append(f"3*{before} + {digit} = {3 * before + digit}{kept}")
    answer = [*lines * with_steps, f"The answer is {values(digits)[-1]}."]
    return [question(digits), {"role": "assistant", "content": "\n".join(answer)}]


def is_right(
    client: openai.OpenAI, name: str, shown: list[Message], more: str, digits: list[int]
) -> bool:
    messages: Any = [*shown, question(digits, more)]
    answer = client.chat.completions.create(
        model=name, messages=messages, temperature=0, max_tokens=NEW_TOKENS
    )
    numbers = re.findall(r"\d+", answer.choices[0].message.content or "")
    return bool(numbers) and int(numbers[-1]) == int(answer_of(digits))


def report(model: str) -> None:
    rng = random.Random(25)  # those of the lesson
    asked = [draw(rng, [length]) for length in LENGTHS for _ in range(20)]
    ways: dict[str, tuple[list[Message], str]] = {
        "none": ([], ""),
        "none, step by step": ([], STEP_BY_STEP),
    }
    for name, with_steps in ("answers", False), ("steps and answers", True):
        ways[name] = ([one for digits in EXAMPLES for one in solved(digits, with_steps)], "")
    with (
        serve_here(model=model, technique="prefix") as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client,
        ThreadPoolExecutor(TOGETHER) as clients,
    ):
        print("examples | right, by the last number")
        for way, (shown, more) in ways.items():
            ask = partial(is_right, client, Path(model).name, shown, more)
            right = sum(clients.map(ask, asked))
            print(f"{way} | {right} of {len(asked)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2", help="default %(default)s")
    report(parse_with_threads(parser).model)
