"""SmolLM2, where it is installed: token for token what transformers makes of the same file."""

from pathlib import Path
from typing import Any

import pytest
import torch

from solutions.engine.engine import new_engine
from solutions.engine.limits import Limits
from solutions.families import find_checkpoint, load_chat, load_model, load_tokenizer
from timing import hf

pytestmark = [pytest.mark.needs("smollm2"), pytest.mark.slow]
NEW = 24
CHATS = [
    ["What is the capital of France?"],
    ["My name is Ada. I live in Turin.", "Nice to meet you, Ada!", "What is my name?"],
    ["Compute 12 * 7, then say «ça va?» in Chinese: 你好 🙂\n\n\tdef f(x): return x"],
]


@pytest.fixture(scope="module")
def path() -> Path:
    return find_checkpoint("smollm2")


@pytest.fixture(scope="module")
def theirs(path) -> Any:
    """transformers' own reading of the file: its names, its order of rows, gguf's numbers."""
    return hf.load(path, torch.device("cpu"))


@pytest.fixture(scope="module")
def ours(path) -> Any:
    return load_model(path)


@pytest.fixture(scope="module")
def prompts(path) -> list[list[int]]:
    template = load_chat(path, load_tokenizer(path))
    assert template is not None
    roles = "user", "assistant", "user"
    messages = [
        [{"role": role, "content": text} for role, text in zip(roles, chat, strict=False)]
        for chat in CHATS
    ]
    return [template.ids(chat) for chat in messages]


def test_three_chats_are_equal_token_for_token(ours, theirs, prompts) -> None:
    outputs: dict[int, list[int]] = {number: [] for number in range(len(prompts))}
    limits = Limits(num_blocks=32, block_size=16, token_budget=48, max_running=3)
    engine = new_engine(ours, limits, lambda output: outputs[output.request].extend(output.new_ids))
    for prompt in prompts:
        engine.submit(prompt, NEW)
    engine.run()
    [*expected] = (hf.generate(True)(theirs, [prompt], [NEW])[0] for prompt in prompts)
    assert [[*p, *outputs[n]] for n, p in enumerate(prompts)] == expected


@torch.inference_mode()
def test_the_logits_are_equal(ours, theirs, prompts) -> None:
    largest = 0.0
    for prompt in prompts:
        ids = torch.tensor([prompt])
        logits, expected = ours(ids, torch.arange(ids.shape[1])[None]), theirs(ids).logits
        assert logits.argmax(-1).equal(expected.argmax(-1))
        largest = max(largest, float((logits - expected).abs().max()))
    print(f"the largest difference of two logits: {largest:.1e}")
    assert largest <= 1e-4
