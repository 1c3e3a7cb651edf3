"""The model that a server serves, and engines for it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from solutions.engine.engine import Engine, Output, Parts
from solutions.engine.limits import Limits
from solutions.engine.runner import Runner
from solutions.families import find_checkpoint, kv_bytes, load_model, load_tokenizer
from solutions.kv_cache import CachedLMHead
from solutions.server.settings import Labs, Settings, reference
from solutions.speculative import AdaptiveDrafter, ConfidentDrafter, Drafter, NgramDrafter

ADAPTERS = 8  # that run at the same time, at most; any number may be served


@dataclass(frozen=True)
class Loaded:
    """A model ready to be served. labs: where its engine's parts come from."""

    settings: Settings
    folder: Path
    model: Any
    draft: CachedLMHead | None
    labs: Labs = reference

    @property
    def block_bytes(self) -> int:
        """Bytes of the keys and values of a block."""
        size = self.model.transformer.ln_f.weight.element_size()
        return self.settings.block_size * kv_bytes(self.model.config, size)

    @property
    def num_blocks(self) -> int:
        """How many blocks the pool's memory holds."""
        return self.settings.pool_bytes // self.block_bytes

    @property
    def context(self) -> int:
        """The longest text that is served, in tokens: as the settings say, or as long as model and
        pool allow. Raises ValueError, with what to do about it, if they don't.
        """
        asked, size = self.settings.context, self.settings.block_size
        most, held = self.model.config.n_positions, self.num_blocks * size
        if asked is not None and asked > most:
            raise ValueError(f"{self.settings.name} reads at most {most} tokens, not {asked}.")
        if (asked or 2) > held:
            pool = -(-(asked or 2) // size) * self.block_bytes / 10**6
            raise ValueError(
                f"The pool holds {held} tokens. Take --pool-mb {math.ceil(pool)} or more, or a "
                "smaller --context."
            )
        return asked or min(most, held)

    def new_engine(self, on_output: Callable[[Output], None]) -> Engine:
        settings = self.settings
        size, budget = settings.block_size, settings.token_budget
        engine: Engine = self.labs("engine").new_engine(
            self.model,
            Limits(self.num_blocks, size, budget, settings.max_running),
            on_output,
            self.new_drafter,
            settings.draft_tokens,
            self.parts(),
        )
        if settings.adapters is not None:
            from solutions.adapted.engine import add_adapters

            add_adapters(engine, ADAPTERS, self.labs("adapters"))
        if settings.kernel or settings.same_bits:
            engine.runner = self.kernel_runner(engine.runner)
        return engine

    def kernel_runner(self, usual: Runner) -> Runner:
        # Only now: it needs numba, which not every machine has.
        from solutions.compiled.choice import EVERY_STEP, kernel_runner, runner_of
        from solutions.compiled.weights import weights_of

        weights = weights_of(self.model, self.folder)
        if self.settings.same_bits:
            return runner_of(self.model, usual, weights, EVERY_STEP)
        return kernel_runner(self.model, usual, weights)

    def parts(self) -> Parts:
        """Return the engine's parts. The attention stays its own, which is the fastest."""
        names = "paged_attention", "decoding", "speculative"
        paged, decoding, speculative = map(self.labs, names)
        manager = paged.BlockManager
        if self.settings.technique == "prefix":
            manager = self.labs("prefix_caching").PrefixManager
        return Parts(
            block_manager=manager,
            next_token_probs=decoding.next_token_probs,
            verify=speculative.verify,
            verify_greedy=speculative.verify_greedy,
        )

    def new_drafter(self) -> Drafter:
        """Return a drafter: the draft model that comes with the model, or n-grams of the text."""
        if self.draft is None:
            device = self.model.transformer.ln_f.weight.device
            return AdaptiveDrafter(NgramDrafter(self.model.config.vocab_size, device=device))
        return ConfidentDrafter(self.draft, self.model.config.n_positions)


def read_tokenizer(model: str) -> Any:
    """Return a model's tokenizer, without transformers if that is possible: it takes a second."""
    return load_tokenizer(find_checkpoint(model))


def load(settings: Settings, labs: Labs = reference) -> Loaded:
    """Load a model by name or folder. Raises ValueError where there is none."""
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    folder = find_checkpoint(settings.model)
    model = load_model(folder, codes=settings.technique == "codes")
    if settings.technique == "int8":
        model = labs("quantization").quantized(model)
    beside = folder.with_name(f"{folder.name}-draft")
    draft = CachedLMHead.from_pretrained(beside) if beside.is_dir() else None
    return Loaded(settings, folder, model, draft, cache(labs))
