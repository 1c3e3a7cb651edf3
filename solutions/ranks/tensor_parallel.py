"""Lab 18, given: lab 7's engine on a model that is cut over the ranks.

Every rank runs the same engine on the same requests, with its own part of the weights and the keys
and values of its own heads. The ranks meet in the model's collective calls and nowhere else: no
rank sends a plan to the others. That works because all of them see the same logits, bit for bit,
and draw the same random numbers, so their schedulers make the same decisions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from gpt import GPTConfig, require_inputs
from solutions.engine.engine import Engine, Output
from solutions.engine.limits import Limits
from solutions.engine.managers import EngineManager
from solutions.engine.runner import FastCache, PackedCache, Runner
from solutions.engine.scheduler import Scheduler
from solutions.kv_cache import CachedLMHead, KVCache
from solutions.paged_attention import PagedCache
from solutions.ranks.group import Group


@dataclass(frozen=True)
class Functions:
    """Functions of lab 18; each can be your own.

    shard: `shard`. embed: `vocab_parallel_embedding`. block: `tensor_parallel_block`.
    """

    shard: Callable[..., dict[str, Tensor]]
    embed: Callable[..., Float[Tensor, "batch seq n_embd"]]
    block: Callable[..., Float[Tensor, "batch seq n_embd"]]


class TensorParallelModel(nn.Module):
    """A rank's part of the model, in the interface of CachedModel.

    config: of the whole model. part: this rank's weights, by the names that GPTModel gives them.
    """

    def __init__(
        self, config: GPTConfig, part: Mapping[str, Tensor], group: Group, functions: Functions
    ) -> None:
        super().__init__()
        self.config, self.part, self.group, self.functions = config, part, group, functions
        self.wte = nn.Embedding.from_pretrained(part["wte.weight"])  # this rank's rows

    def forward(
        self,
        inputs: Int[Tensor, "batch q_len"],
        position_ids: Int[Tensor, "batch q_len"],
        kv_cache: KVCache | PackedCache,
    ) -> Float[Tensor, "batch q_len n_embd"]:
        require_inputs(self.config, inputs, position_ids)
        hidden = self.functions.embed(inputs, self.part["wte.weight"], self.group)
        hidden = hidden + self.part["wpe.weight"][position_ids]
        for layer in range(self.config.n_layer):
            attend = partial(kv_cache.attend, layer)
            hidden = self.functions.block(
                hidden, self.part, layer, self.config, self.group, attend=attend
            )
        norm = self.part["ln_f.weight"], self.part["ln_f.bias"], self.config.layer_norm_epsilon
        return F.layer_norm(hidden, hidden.shape[-1:], *norm)


class TensorParallelLMHead(nn.Module):
    """A rank's part of the model, in the interface of CachedLMHead.

    Its `config` is that of a model with this rank's heads only, so a cache made from it holds their
    keys and values and no others. All ranks return the same logits, of the whole vocabulary.
    """

    def __init__(
        self, config: GPTConfig, part: Mapping[str, Tensor], group: Group, functions: Functions
    ) -> None:
        super().__init__()
        self.group = group
        self.transformer = TensorParallelModel(config, part, group, functions)
        width, heads = config.n_embd // group.size, config.n_head // group.size
        self.config = replace(config, n_embd=width, n_head=heads)

    @classmethod
    def from_pretrained(
        cls, name_or_folder: str | Path, group: Group, functions: Functions
    ) -> Self:
        """Load a checkpoint and keep this rank's part.

        Large models are loaded part by part instead, because no process has room for the whole.
        """
        whole = CachedLMHead.from_pretrained(name_or_folder)
        weights = whole.transformer.state_dict()
        part = functions.shard(weights, group.rank, group.size, whole.config)
        return cls(whole.config, part, group, functions)

    def lm_head(self, hidden: Float[Tensor, "*rows n_embd"]) -> Float[Tensor, "*rows vocab"]:
        """Gather the logits, because sampling from the top p needs all of them, on every rank.

        The engine asks for few: those of each request's last token. For greedy tokens, two numbers
        per rank and row are enough: the largest logit and its id.
        """
        local = hidden @ self.transformer.wte.weight.T
        return torch.cat(self.group.all_gather(local), dim=-1)

    def forward(
        self,
        inputs: Int[Tensor, "batch q_len"],
        position_ids: Int[Tensor, "batch q_len"],
        kv_cache: KVCache | PackedCache,
    ) -> Float[Tensor, "batch q_len vocab"]:
        return self.lm_head(self.transformer(inputs, position_ids, kv_cache))


def new_engine(
    model: TensorParallelLMHead, limits: Limits, on_output: Callable[[Output], None]
) -> Engine:
    """Return lab 7's engine for this rank's part of the model."""
    weight = model.transformer.wte.weight
    manager = EngineManager(limits.num_blocks, limits.block_size)
    cache = FastCache(PagedCache(model.config, manager, weight.device, weight.dtype))
    runner = Runner(model.transformer, model.lm_head, cache)
    scheduler = Scheduler(manager, limits.token_budget, limits.max_running)
    return Engine(model.config, scheduler, runner, on_output)


def engine_tokens(
    group: Group,
    name_or_folder: str | Path,
    functions: Functions,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    limits: Limits | tuple[int, int, int, int],
) -> list[list[int]]:
    """Serve these prompts on all ranks; return each one's new tokens, the same on every rank.

    Older copies of the lab give the limits as a tuple.
    """
    model = TensorParallelLMHead.from_pretrained(name_or_folder, group, functions)
    new_ids: dict[int, list[int]] = {}

    def note(output: Output) -> None:
        new_ids[output.request] += output.new_ids

    if not isinstance(limits, Limits):
        limits = Limits(*limits)
    engine = new_engine(model, limits, note)
    for prompt in prompts:
        new_ids[engine.submit(prompt, max_new_tokens)] = []
    engine.run()
    return list(new_ids.values())
