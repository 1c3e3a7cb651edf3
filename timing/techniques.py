"""The techniques: those of the course, those of transformers, and the learner's own."""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from gpt import GPTLMHead, read_config
from solutions import batching as lab3
from solutions import decoding as lab5
from solutions import disaggregation as lab9
from solutions import flash_attention as lab12
from solutions import generate as lab1
from solutions import kv_cache as lab2
from solutions import kv_reduction as lab11
from solutions import paged_attention as lab4
from solutions import prefix_caching as lab8
from solutions import quantization as lab10
from solutions import speculative as lab6
from solutions.engine import engine as lab7
from solutions.kv_variants.window_engine import windowed_engine
from timing import kv_bytes
from timing.lossy import Anew, Lossy, in_8_bits, loss_of
from timing.runs import Batches, BestBatches, Continuous, Ids, Prepared, Rounds
from timing.served import Served
from timing.verify import COARSE_HAIR, HAIR, ROUNDED
from timing.work import weight_bytes
from timing.workloads import CHAT, EQUAL, EQUAL_REQUESTS, LENGTHS, RAGGED, SAMPLED, Workload

SLOTS = 16
BLOCK_SIZE = 16
DRAFTS = 4  # tokens that are drafted in a round
REFERENCE = lab7.Parts()
ENGINE_SIZE, TOKEN_BUDGET = 64, 256  # requests at a time, and tokens in a step, at most
CHUNKED_BUDGET = 132  # what lab 9 measures with
WINDOW, SINKS = 64, 4  # the last tokens and the first ones, which a token sees
HF_SIZES = 8, 16, 32, 64


@functools.cache  # several rows run the same model
def load(model: type[GPTLMHead], folder: Path, device: torch.device) -> GPTLMHead:
    return model.from_pretrained(folder, device)


def one_prompt_at_a_time(loop: Callable[[Any, Tensor, int], Tensor]) -> Callable:
    """A loop of labs 1 and 2, called as Batches calls it."""

    def generate(model: nn.Module, prompts: list[Ids], new_tokens: list[int]) -> list[Ids]:
        input_ids = torch.tensor(prompts, device=next(model.parameters()).device)
        return loop(model, input_ids, *new_tokens).tolist()

    return generate


# ----------------------------------------------------------------------------- labs 1 and 2
#
# The lab is the reference's module, or one that holds functions of the learner's own.


def prepare_naive(folder: Path, device: torch.device, lab: ModuleType = lab1) -> Batches:
    model = load(lab.GPTLMHead, folder, device)
    about = "the whole sequence at every step (lab 1)"
    return Batches(about, model, one_prompt_at_a_time(lab.generate), kv_bytes.none_held)


def prepare_cached_concat(folder: Path, device: torch.device, lab: ModuleType = lab2) -> Batches:
    model = load(lab.ThreadedLMHead, folder, device)
    about = "KV cache of tuples, copied to grow at every step (lab 2)"
    return Batches(about, model, one_prompt_at_a_time(lab.generate_threaded), kv_bytes.of_tuples)


def prepare_cached(folder: Path, device: torch.device, lab: ModuleType = lab2) -> Batches:
    model = load(lab.CachedLMHead, folder, device)
    about = "KV cache in memory reserved once, one request at a time (lab 2)"
    return Batches(about, model, one_prompt_at_a_time(lab.generate), kv_bytes.of_object)


# ----------------------------------------------------------------------------- labs 3 and 4


def prepare_static(folder: Path, device: torch.device, lab: ModuleType = lab3) -> Batches:
    model = load(lab2.CachedLMHead, folder, device)
    about = f"static batches of {SLOTS}, padded on the left (lab 3)"
    return Batches(about, model, lab.generate_padded, kv_bytes.of_object, SLOTS)


def prepare_continuous(folder: Path, device: torch.device, lab: ModuleType = lab3) -> Continuous:
    model = load(lab2.CachedLMHead, folder, device)
    about = f"continuous batching in {SLOTS} slots (lab 3)"
    return Continuous(about, model, new_slots(lab), kv_bytes.of_slots, SLOTS)


def prepare_paged(folder: Path, device: torch.device, lab: ModuleType = lab4) -> Continuous:
    model = load(lab2.CachedLMHead, folder, device)
    about = f"continuous batching over blocks of {BLOCK_SIZE}, {SLOTS} at a time at most (lab 4)"
    engine = new_blocks(lab)
    return Continuous(about, model, engine, kv_bytes.of_blocks, SLOTS, fixed_slots=False)


def new_slots(lab: ModuleType) -> Callable[[Any, Workload], lab3.ContinuousBatcher]:
    def new_engine(model: Any, workload: Workload) -> lab3.ContinuousBatcher:
        return lab.ContinuousBatcher(model, SLOTS, workload.longest)

    return new_engine


def new_blocks(lab: ModuleType) -> Callable[[Any, Workload], lab4.PagedBatcher]:
    """A pool with the memory that the slots of `continuous` reserve, down to a whole block."""

    def new_engine(model: Any, workload: Workload) -> lab4.PagedBatcher:
        num_blocks = SLOTS * workload.longest // BLOCK_SIZE
        return lab.PagedBatcher(model, num_blocks, BLOCK_SIZE, max_running=SLOTS)

    return new_engine


# ----------------------------------------------------------------------------- labs 5 and 6


def prepare_sampled(folder: Path, device: torch.device, lab: ModuleType = lab5) -> Rounds:
    model = load(lab2.CachedLMHead, folder, device)
    about = "tokens drawn one at a time, over the cached loop (lab 5)"

    def generate(models: Sequence[Any], prompt: Ids, limit: int, *how: Any) -> list[lab6.Round]:
        tokens = lab.stream(models[0], prompt, limit, *how)
        return [lab6.Round([], 0, [token]) for token in tokens]

    return Rounds(about, [model], generate, kv_bytes.of_object, one_token_each=True)


def prepare_speculative(folder: Path, device: torch.device, lab: ModuleType = lab6) -> Rounds:
    """With the draft that belongs to the model, else with the model's own first layers."""
    model = load(lab2.CachedLMHead, folder, device)
    beside = folder.with_name(f"{folder.name}-draft")
    if beside.is_dir():
        draft, name = load(lab2.CachedLMHead, beside, device), beside.name
    else:
        layers = max(1, read_config(folder).n_layer // 6)
        draft, name = lab.first_layers(model, layers), f"the model's first layers ({layers})"

    def generate(models: Sequence[Any], prompt: Ids, limit: int, *how: Any) -> list[lab6.Round]:
        target, small = models
        drafter = lab.ModelDrafter(small, len(prompt) + limit)
        return lab.generate_speculative(target, drafter, prompt, limit, DRAFTS, *how).rounds

    about = f"{DRAFTS} drafts of {name}, verified in one pass (lab 6)"
    return Rounds(about, [model, draft], generate, kv_bytes.of_object)


def prepare_ngram(folder: Path, device: torch.device, lab: ModuleType = lab6) -> Rounds:
    model = load(lab2.CachedLMHead, folder, device)

    def generate(models: Sequence[Any], prompt: Ids, limit: int, *how: Any) -> list[lab6.Round]:
        drafter = lab.NgramDrafter(model.config.vocab_size, device=device)
        return lab.generate_speculative(models[0], drafter, prompt, limit, DRAFTS, *how).rounds

    about = f"{DRAFTS} drafts looked up in the text itself, verified in one pass (lab 6)"
    return Rounds(about, [model], generate, kv_bytes.of_object)


# ----------------------------------------------------------------------------- lab 7


def prepare_engine(
    folder: Path,
    device: torch.device,
    lab: ModuleType = lab7,
    parts: lab7.Parts = REFERENCE,
    token_budget: int = TOKEN_BUDGET,
) -> Served:
    """The engine serves as many requests at a time as its pool holds."""
    model = load(lab2.CachedLMHead, folder, device)

    def new_engine(model: Any, workload: Workload, on_output: Callable) -> lab7.Engine:
        return lab.new_engine(model, *room_for(workload, token_budget), on_output, parts=parts)

    about = (
        f"the engine: up to {ENGINE_SIZE} at a time in blocks of {BLOCK_SIZE}, {token_budget} "
        "tokens a step (lab 7)"
    )
    return Served(about, model, new_engine, ENGINE_SIZE)


def room_for(workload: Workload, token_budget: int = TOKEN_BUDGET) -> tuple[int, int, int, int]:
    """An engine's blocks, their size, its tokens in a step and its requests at a time.

    The pool has the memory that the slots of `continuous` reserve; for fewer, all they need.
    """
    slots = min(SLOTS, workload.at_start)
    num_blocks = -(-slots * workload.longest // BLOCK_SIZE)
    return num_blocks, BLOCK_SIZE, token_budget, ENGINE_SIZE


def prepare_own_engine(folder: Path, device: torch.device, lab: ModuleType) -> Served:
    """With the learner's parts of labs 4 to 6, which `mine` tells."""
    return prepare_engine(folder, device, lab, own_parts())


def own_parts() -> lab7.Parts:
    from autograder.check import mine  # only --mine needs the autograder

    paged, decoding, speculative = map(mine, ("paged_attention", "decoding", "speculative"))
    # Lab 4's cache as it stands in the reference is read by the engine's own, faster attention.
    is_own = is_learners(paged, "PagedCache.attend")
    return lab7.Parts(
        paged.BlockManager,
        paged.PagedCache if is_own else lab4.PagedCache,
        decoding.next_token_probs,
        speculative.verify,
        speculative.verify_greedy,
    )


# ----------------------------------------------------------------------------- lab 8


def prepare_prefix(
    folder: Path,
    device: torch.device,
    lab: ModuleType = lab8,
    engine: ModuleType = lab7,
    parts: lab7.Parts = REFERENCE,
) -> Served:
    parts = replace(parts, block_manager=lab.PrefixManager)
    about = "the engine, which computes no beginning of a prompt that it still has (lab 8)"
    return replace(prepare_engine(folder, device, engine, parts), about=about)


def prepare_own_prefix(folder: Path, device: torch.device, lab: ModuleType) -> Served:
    """In the learner's engine, with its parts of labs 4 to 6."""
    from autograder.check import mine  # only --mine needs the autograder

    return prepare_prefix(folder, device, lab, mine("engine"), own_parts())


# ----------------------------------------------------------------------------- lab 9


def prepare_chunked(folder: Path, device: torch.device, lab: ModuleType = lab9) -> Served:
    """Prompts in chunks that fit beside the decodes."""
    parts = replace(REFERENCE, scheduler=lab.StallFree)
    about = f"the engine with decodes first and {CHUNKED_BUDGET} tokens a step (lab 9)"
    served = prepare_engine(folder, device, lab7, parts, CHUNKED_BUDGET)
    return replace(served, about=about)


# ----------------------------------------------------------------------------- lab 10


@functools.cache  # several workloads run the same models, and to measure a loss takes seconds
def in_codes(lab: ModuleType, folder: Path, device: torch.device) -> tuple[nn.Module, Lossy]:
    """A model of the lab's codes, held against the naive one of what they stand for."""
    exact: Any = load(lab2.CachedLMHead, folder, device)
    model = lab.quantized(exact)
    naive_model = in_8_bits(load(GPTLMHead, folder, device))
    now, before = (weight_bytes(model) / 1e6 for model in (model, exact))
    wins = f"{now:.1f} MB of weights instead of {before:.1f}"
    lost = loss_of(model, exact, folder)
    return model, Lossy(naive_model, COARSE_HAIR, ROUNDED, wins, lost)


def prepare_int8(
    folder: Path,
    device: torch.device,
    lab: ModuleType = lab10,
    engine: ModuleType = lab7,
    parts: lab7.Parts = REFERENCE,
) -> Served:
    """Codes and scales of the matrices are the lab's; PyTorch's kernel multiplies by them."""
    about = "the engine over matrices, embedding and head in 8 bits (lab 10)"
    model, lossy = in_codes(lab, folder, device)
    served = prepare_engine(folder, device, engine, parts)
    return replace(served, about=about, model=model, lossy=lossy)


def prepare_own_int8(folder: Path, device: torch.device, lab: ModuleType) -> Served:
    """In the learner's engine, with its parts of labs 4 to 6."""
    from autograder.check import mine  # only --mine needs the autograder

    return prepare_int8(folder, device, lab, mine("engine"), own_parts())


# ----------------------------------------------------------------------------- lab 11


@functools.cache  # as for codes
def in_a_window(
    lab: ModuleType, folder: Path, device: torch.device, window: int, sinks: int
) -> Lossy:
    """What is lost is measured through the lab's cache."""
    model: Any = load(lab2.CachedLMHead, folder, device)
    shape = model.config.n_layer, window, sinks
    naive_model = Anew(model, partial(lab11.WindowCache, *shape))
    why, wins = f"a token sees at most {window + sinks}", "blocks behind the window are freed"
    lost = loss_of(model, model, folder, partial(lab.WindowCache, *shape))
    return Lossy(naive_model, HAIR, why, wins, lost)


def prepare_window(folder: Path, device: torch.device, lab: ModuleType = lab11) -> Served:
    """The engine has the lab's mask."""
    model = load(lab2.CachedLMHead, folder, device)
    lossy = in_a_window(lab, folder, device, WINDOW, SINKS)

    def new_engine(model: Any, workload: Workload, on_output: Callable) -> lab7.Engine:
        room = room_for(workload)
        return windowed_engine(model, *room, on_output, WINDOW, SINKS, lab.window_mask)

    about = f"the engine, where a token sees the last {WINDOW} and the first {SINKS} (lab 11)"
    return Served(about, model, new_engine, ENGINE_SIZE, lossy)


# ----------------------------------------------------------------------------- lab 12


def prepare_tiled(folder: Path, device: torch.device) -> Served:
    parts = replace(REFERENCE, paged_cache=lab12.TiledCache)
    about = f"the engine, attending by tiles of {lab12.TiledCache.tile} tokens (lab 12)"
    return replace(prepare_engine(folder, device, parts=parts), about=about)


# ----------------------------------------------------------------------------- transformers


def prepare_hf_nocache(folder: Path, device: torch.device) -> Batches:
    about = "transformers, use_cache=False"
    return Batches(about, load_hf(folder, device), hf_generate(False), kv_bytes.none_held)


def prepare_hf(folder: Path, device: torch.device, size: int = 1) -> Batches:
    about = "transformers, use_cache=True"
    model = load_hf(folder, device)
    return Batches(about, model, hf_generate(True), kv_bytes.of_transformers, size)


def prepare_hf_best(folder: Path, device: torch.device) -> BestBatches:
    return BestBatches([prepare_hf(folder, device, size) for size in HF_SIZES])


@functools.cache
def load_hf(folder: Path, device: torch.device) -> nn.Module:
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    # Greedy and without an EOS, as the course's own loops run here, whatever the checkpoint says.
    model.generation_config = transformers.GenerationConfig(do_sample=False, pad_token_id=0)
    return model.eval().requires_grad_(False).to(device)


def hf_generate(use_cache: bool) -> Callable[[Any, list[Ids], list[int]], list[Ids]]:
    def generate(model: Any, prompts: list[Ids], new_tokens: list[int]) -> list[Ids]:
        input_ids, attention_mask = (padded.to(model.device) for padded in lab3.pad_left(prompts))
        generated = model.generate(
            input_ids,
            attention_mask=attention_mask.long(),
            max_new_tokens=max(new_tokens),
            use_cache=use_cache,
        )
        new_ids = generated[:, input_ids.shape[1] :].tolist()
        rows = zip(prompts, new_ids, new_tokens, strict=True)
        return [prompt + row[:limit] for prompt, row, limit in rows]

    return generate


# --------------------------------------------------------------------------- the learner's own


@dataclass(frozen=True)
class Own:
    """A technique of the course that a learner may have written.

    parts: functions of the lab; where one of them is the learner's own, so is the technique.
    """

    about: str
    lab: str
    parts: tuple[str, ...]
    prepare: Callable[[Path, torch.device, ModuleType], Batches | Continuous | Rounds | Served]


OWN_ENGINE = Own(
    "your engine (lab 7)",
    "engine",
    ("Scheduler.schedule", "Engine.step"),
    prepare_own_engine,
)
OWN_INT8 = Own(
    "your codes of 8 bits (lab 10)",
    "quantization",
    ("absmax",),
    prepare_own_int8,
)
OWN_SPECULATIVE = Own(
    "your speculative decoding (lab 6)",
    "speculative",
    ("generate_speculative", "verify", "ModelDrafter.propose"),
    prepare_speculative,
)
OWN_SAMPLED = (
    OWN_SPECULATIVE,
    Own(
        "your sampling (lab 5)",
        "decoding",
        ("sample", "next_token_probs", "draw"),
        prepare_sampled,
    ),
)
OWN = (  # the newest first
    OWN_INT8,
    OWN_ENGINE,
    OWN_SPECULATIVE,
    Own("your KVCache (lab 2)", "kv_cache", ("KVCache.attend",), prepare_cached),
    Own(
        "your KV cache of tuples (lab 2)",
        "kv_cache",
        (
            "generate_threaded",
            "ThreadedAttention.forward",
            "ThreadedBlock.forward",
            "ThreadedModel.forward",
            "ThreadedLMHead.forward",
        ),
        prepare_cached_concat,
    ),
    Own("your generate (lab 1)", "generate", ("generate",), prepare_naive),
)
OWN_CHAT = (
    Own(
        "chats: your prefix cache (lab 8)",
        "prefix_caching",
        (
            "block_hashes",
            "PrefixManager.match",
            "PrefixManager.take_block",
            "PrefixManager.admit",
            "PrefixManager.publish",
        ),
        prepare_own_prefix,
    ),
    replace(OWN_ENGINE, about="chats: your engine (lab 7)"),
)
OWN_BATCHED = (
    replace(OWN_INT8, about=f"many requests: {OWN_INT8.about}"),
    replace(OWN_ENGINE, about="many requests: your engine (lab 7)"),
    Own(
        "many requests: your paged attention (lab 4)",
        "paged_attention",
        (
            "BlockManager.allocate",
            "slot_mapping",
            "PagedCache.attend",
            "PagedBatcher.make_room",
        ),
        prepare_paged,
    ),
    Own(
        "many requests: your continuous batching (lab 3)",
        "batching",
        ("SlotCache.attend", "ContinuousBatcher.step"),
        prepare_continuous,
    ),
    Own(
        "many requests: your static batches (lab 3)",
        "batching",
        ("generate_padded", "pad_left", "padded_position_ids", "padded_mask"),
        prepare_static,
    ),
)


def prepare_mine(folder: Path, device: torch.device) -> Prepared:
    """The newest loop for one prompt of which some part is the learner's own."""
    about = "the reference's cached loop: no loop of yours has passed its check yet"
    return newest(OWN, folder, device) or replace(prepare_cached(folder, device), about=about)


def prepare_mine_sampled(folder: Path, device: torch.device) -> Prepared:
    """The same with drawn tokens: the newest of labs 5 and 6."""
    own = newest(OWN_SAMPLED, folder, device)
    about = "the reference's sampling: no sampler of yours has passed its check yet"
    return own or replace(prepare_sampled(folder, device), about=about)


def prepare_mine_batched(folder: Path, device: torch.device) -> Prepared:
    """The same for many requests: the newest of labs 3, 4, 7 and 10."""
    about = "many requests: the reference's static batches, until batching of yours has passed"
    own = newest(OWN_BATCHED, folder, device)
    return own or replace(prepare_static(folder, device), about=about)


def prepare_mine_chat(folder: Path, device: torch.device) -> Prepared:
    """The same for chats: the newer of labs 7 and 8."""
    about = "chats: the reference's engine, until an engine or a prefix cache of yours has passed"
    own = newest(OWN_CHAT, folder, device)
    return own or replace(prepare_engine(folder, device), about=about)


def newest(techniques: Sequence[Own], folder: Path, device: torch.device) -> Prepared | None:
    """The first of these that is the learner's own; `mine` prints which parts of its lab are."""
    from autograder.check import mine  # only --mine needs the autograder

    labs: dict[str, ModuleType] = {}
    for own in techniques:
        if own.lab not in labs:
            labs[own.lab] = mine(own.lab)
        if any(is_learners(labs[own.lab], part) for part in own.parts):
            return replace(own.prepare(folder, device, labs[own.lab]), about=own.about)
    return None


def is_learners(lab: ModuleType, part: str) -> bool:
    """Whether a function of a lab's module, given by its path, is not the reference's."""
    function = inspect.unwrap(attrgetter(part)(lab))
    assert lab.__file__ is not None
    return Path(function.__code__.co_filename).parent != Path(lab.__file__).parent


# A technique is one entry: for each kind of workload that it serves, what prepares it.
TECHNIQUES: dict[str, dict[str, Callable[[Path, torch.device], Prepared]]] = {
    "naive": {LENGTHS: prepare_naive},
    "cached-concat": {LENGTHS: prepare_cached_concat},
    "cached": dict.fromkeys([LENGTHS, RAGGED, EQUAL, CHAT], prepare_cached),
    "sampled": {SAMPLED: prepare_sampled},
    "speculative": dict.fromkeys([LENGTHS, SAMPLED], prepare_speculative),
    "ngram": dict.fromkeys([LENGTHS, SAMPLED], prepare_ngram),
    "static": dict.fromkeys([RAGGED, EQUAL], prepare_static),
    "continuous": {RAGGED: prepare_continuous},
    "paged": {RAGGED: prepare_paged},
    "engine": dict.fromkeys([LENGTHS, RAGGED, EQUAL, CHAT], prepare_engine),
    "prefix": dict.fromkeys([RAGGED, CHAT], prepare_prefix),
    "chunked": {RAGGED: prepare_chunked},
    "int8": dict.fromkeys([LENGTHS, RAGGED], prepare_int8),
    "window": dict.fromkeys([LENGTHS, RAGGED], prepare_window),
    "tiled": {RAGGED: prepare_tiled},
    "hf-nocache": {LENGTHS: prepare_hf_nocache},
    "hf": {
        LENGTHS: prepare_hf,
        RAGGED: prepare_hf_best,
        EQUAL: partial(prepare_hf, size=EQUAL_REQUESTS),
    },
    "mine": {
        LENGTHS: prepare_mine,
        SAMPLED: prepare_mine_sampled,
        RAGGED: prepare_mine_batched,
        EQUAL: prepare_mine_batched,
        CHAT: prepare_mine_chat,
    },
}
