"""CTranslate2, with its own converter and its own batches."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import ctranslate2

from timing.peers.engine import Given, Ids, Served


class CTranslate2:
    """Static batches: no row joins a running batch, but a row that has all its tokens leaves it.

    CTranslate2 sorts prompts by length before it forms batches, so that the prompts in a batch have
    similar lengths.
    """

    def __init__(self, given: Given) -> None:
        converted = given.scratch / "ctranslate2"
        if not converted.exists():
            convert(given.folder, converted)
        self.vocabulary = json.loads((converted / "vocabulary.json").read_text(encoding="utf-8"))
        self.generator = ctranslate2.Generator(
            str(converted), compute_type=given.precision, intra_threads=given.threads
        )

    def serve(self, prompts: Sequence[Ids], new_tokens: Sequence[int], size: int) -> Served:
        outputs: list[Ids] = [[] for _ in prompts]
        token_times: list[list[float]] = [[] for _ in prompts]

        def serve_some(numbers: list[int]) -> None:
            def note(step: ctranslate2.GenerationStepResult) -> bool:
                """Record a new token. Return whether its request has all of its tokens."""
                number = numbers[step.batch_id]
                outputs[number].append(step.token_id)
                token_times[number].append(perf_counter())
                return len(outputs[number]) == new_tokens[number]

            self.generator.generate_batch(
                [[self.vocabulary[token] for token in prompts[number]] for number in numbers],
                max_batch_size=size,
                max_length=max(new_tokens[number] for number in numbers),
                end_token=[],  # no token ends a text; the default is the model's EOS
                include_prompt_in_result=False,  # so that a prompt is computed in one pass
                callback=note,
            )

        # In a batch with a one-token prompt, tokens of longer prompts would be reported as new.
        short = [number for number, prompt in enumerate(prompts) if len(prompt) == 1]
        long = [number for number, prompt in enumerate(prompts) if len(prompt) > 1]
        start = perf_counter()
        for numbers in (short, long):
            if numbers:
                serve_some(numbers)
        return Served(start, outputs, token_times)


def convert(folder: Path, target: Path) -> None:
    """Convert the model with CTranslate2's converter, in another process, because it uses torch."""
    partial = target.with_name(f"{target.name}.partial")
    converter = "from ctranslate2.converters.transformers import main; main()"
    options = ["--model", str(folder), "--output_dir", str(partial), "--force"]
    subprocess.run([sys.executable, "-c", converter, *options], check=True)
    # GPT-2 has no unknown token, but CTranslate2 refuses a model without one.
    config_file = partial / "config.json"
    config = json.loads(config_file.read_text(encoding="utf-8"))
    first = json.loads((partial / "vocabulary.json").read_text(encoding="utf-8"))[0]
    for token in ("bos_token", "eos_token", "unk_token"):
        config[token] = config[token] or first
    config_file.write_text(json.dumps(config), encoding="utf-8")
    partial.rename(target)
