"""Train the embedded models: GPT-2's architecture, or Llama's, on any plain text.

    python models/train.py books.txt --out models/fable
    python models/train.py books.txt --out models/fable-llama --family llama
    python models/train.py books.txt --out models/fable-draft --layers 2 --width 128 --heads 4 \\
        --teacher models/fable

The first command trains the target, the second a model of the same size in Llama's architecture.
The third distills a draft from the target: the draft learns the target's whole next-token
distribution as well as the text itself (Hinton et al., 2015). For the second half of its steps, it
learns from text that the target writes.

You can interrupt it at any time: the same command continues from the last checkpoint and ends with
the same weights. The last 3% of the text is held out; neither the tokenizer nor the model sees it.

`--compile` shortens a step by about a third and needs a C++ compiler. On Linux, a step may spend
two fifths of its time on memory that glibc returns to the system and requests again. To keep it:

    export MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=8589934592
"""

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from tqdm import tqdm, trange
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

END_OF_TEXT = "<|endoftext|>"
HELD_OUT = 0.03
TOKENS_PER_STEP = 4096
TEACHER_WEIGHT = 0.8  # of the distillation loss; the rest is cross-entropy on the text
OWN_TEXT_FROM = 0.5  # share of a draft's steps after which it learns from the teacher's own text
OWN_EXAMPLES = 4096  # stretches of the teacher's own text
CHECKPOINT_EVERY = 200  # steps
MONITORED = 16_384  # held-out tokens for the loss at a checkpoint; the final loss uses all of them
SAMPLE_PROMPTS = ("Once upon a time", "The old king", "'Who are you?' said")


def split_text(path: Path) -> tuple[str, str]:
    """Return the training text and the held-out text, which is the last 3% of the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        sys.exit(f"{path} cannot be read ({error.strerror}). Pass a UTF-8 text file.")
    except UnicodeDecodeError as error:
        sys.exit(f"{path} is not UTF-8 text ({error}). Save it as UTF-8 first.")
    cut = int(len(text) * (1 - HELD_OUT))
    return text[:cut], text[cut:]


def train_tokenizer(text: str, vocab_size: int, n_positions: int) -> PreTrainedTokenizerFast:
    """Learn a byte-level BPE from `text`, as GPT-2 does (Radford et al., 2019, section 2.2)."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocab_size <= len(alphabet):
        sys.exit(
            f"--vocab must be above {len(alphabet)}: the vocabulary starts with the "
            f"{len(alphabet)} bytes and {END_OF_TEXT}."
        )
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet
    )
    bpe.train_from_iterator(text.splitlines(keepends=True), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        model_max_length=n_positions,
    )


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> Int[Tensor, " tokens"]:
    """Return the ids of a text of any length, without transformers' warning about long texts."""
    return torch.tensor(tokenizer.encode(text, verbose=False))


def load_teacher(folder: Path, context: int) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    if not (folder / "config.json").exists():
        sys.exit(f"{folder} has no model to use as a teacher. Train one first, without --teacher.")
    teacher = AutoModelForCausalLM.from_pretrained(folder).eval()
    positions = teacher.config.max_position_embeddings
    if positions < context:
        sys.exit(
            f"The teacher has a context length of {positions} tokens and cannot teach {context}. "
            f"Pass --context {positions} or less."
        )
    return teacher, PreTrainedTokenizerFast.from_pretrained(folder)


def new_model(args: argparse.Namespace, vocab_size: int, eos_token_id: int) -> PreTrainedModel:
    if args.width % args.heads:
        sys.exit(f"--width {args.width} must be a multiple of --heads {args.heads}.")
    config = SHAPES[args.family](args, vocab_size)
    config.bos_token_id = config.eos_token_id = eos_token_id
    # Eager attention under bf16 autocast is the fastest way to train these shapes on a CPU.
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager")


def gpt2(args: argparse.Namespace, vocab_size: int) -> PreTrainedConfig:
    return GPT2Config(
        vocab_size=vocab_size,
        n_positions=args.context,
        n_layer=args.layers,
        n_embd=args.width,
        n_head=args.heads,
        resid_pdrop=args.dropout,
        embd_pdrop=args.dropout,
        attn_pdrop=0.0,
    )


def llama(args: argparse.Namespace, vocab_size: int) -> PreTrainedConfig:
    """Return a shape with as many weights in the MLP as GPT-2's, and four query heads to a KV head.

    An MLP with gates has three matrices in place of two, so its neurons are 8/3 of the width, and
    not 4 times; here rounded up to a multiple of 64, for blocks of 32 codes.
    """
    return LlamaConfig(
        vocab_size=vocab_size,
        max_position_embeddings=args.context,
        num_hidden_layers=args.layers,
        hidden_size=args.width,
        intermediate_size=64 * math.ceil(args.width * 8 / 3 / 64),
        num_attention_heads=args.heads,
        num_key_value_heads=max(1, args.heads // 4),
        tie_word_embeddings=True,
    )


SHAPES = {"gpt2": gpt2, "llama": llama}


def add_dropout(model: PreTrainedModel, probability: float) -> None:
    """Give a Llama the dropout that GPT-2 has after its embeddings, attention and MLP."""

    def dropped(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        return F.dropout(output, probability, module.training)

    for name, module in model.named_modules():
        if name.endswith(("embed_tokens", "o_proj", "down_proj")):
            module.register_forward_hook(dropped)


def new_optimizers(model: PreTrainedModel, lr: float) -> list[torch.optim.Optimizer]:
    """Muon (Jordan, 2024) for the matrices inside the blocks, AdamW for everything else."""
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for name, parameter in model.named_parameters():
        inside = parameter.ndim == 2 and (".h." in name or ".layers." in name)
        (matrices if inside else others).append(parameter)
    return [
        torch.optim.Muon(matrices, lr=lr, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=lr, weight_decay=0.0, betas=(0.9, 0.95), fused=True),
    ]


def lr_factor(step: int, steps: int, warmup: int = 100) -> float:
    """Linear warm-up, then linear decay to zero."""
    return min((step + 1) / warmup, (steps - step) / (steps - min(warmup, steps - 1)))


def take_step(optimizers: Sequence[torch.optim.Optimizer], lr: float) -> None:
    """Update the weights with their gradients at this learning rate, then clear the gradients."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        optimizer.zero_grad()


def draw_windows(
    tokens: Int[Tensor, " corpus"], window: int, seed: int, batch: int
) -> Int[Tensor, "batch window_1"]:
    """Draw random windows of the text, each one token longer than the input.

    A window fills the whole context, because a position that no example reaches is never trained.
    The windows depend only on `seed`, so a resumed run draws the same ones.
    """
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(tokens) - window, (batch,), generator=generator)
    return torch.stack([tokens[start : start + window + 1] for start in starts])


@torch.no_grad()
def own_text(
    teacher: PreTrainedModel, tokens: Int[Tensor, " corpus"], context: int, seed: int
) -> Int[Tensor, "examples length"]:
    """Return short prompts from the text with the teacher's greedy continuations.

    A draft has to predict the teacher, not the books, so it learns best from the teacher's own text
    (Kim and Rush, 2016, section 3.2; Zhou et al., DistillSpec, 2023).
    """
    prompt, new = max(1, context // 32), max(1, context // 16)
    starts = draw_windows(tokens, context, seed, OWN_EXAMPLES)[:, :prompt]
    written = []
    for prompts in tqdm(starts.split(128), "the teacher's own text", leave=False, disable=None):
        ids = teacher.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=new,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        written.append(ids)
    return torch.cat(written)


def draw_rows(examples: Int[Tensor, "examples length"], seed: int) -> Int[Tensor, "batch length"]:
    """Draw random rows, as many as one training step takes."""
    generator = torch.Generator().manual_seed(seed)
    batch = max(1, TOKENS_PER_STEP // examples.shape[1])
    return examples[torch.randint(len(examples), (batch,), generator=generator)]


def distillation_loss(
    logits: Float[Tensor, "tokens vocab"], teacher_logits: Float[Tensor, "tokens vocab"]
) -> Float[Tensor, ""]:
    """Return KL(teacher || student), in nats per token."""
    student, teacher = F.log_softmax(logits, -1), F.log_softmax(teacher_logits, -1)
    return F.kl_div(student, teacher, log_target=True, reduction="batchmean")


@torch.no_grad()
def held_out_loss(model: PreTrainedModel, tokens: Int[Tensor, " held_out"], window: int) -> float:
    """Return the mean cross-entropy in nats per token, over adjacent windows: all tokens count."""
    model.eval()
    total = 0.0
    for start in range(0, len(tokens) - 1, window):
        chunk = tokens[start : start + window + 1].unsqueeze(0)
        logits = model(chunk[:, :-1], use_cache=False).logits[0]
        total += F.cross_entropy(logits, chunk[0, 1:], reduction="sum").item()
    model.train()
    return total / (len(tokens) - 1)


def sample(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompt: str) -> str:
    """Return the prompt and up to 100 new tokens: temperature 0.8, top-p 0.95, seed 0."""
    model.eval()
    torch.manual_seed(0)
    inputs = tokenizer(prompt, return_tensors="pt")
    output = model.generate(
        **inputs,
        max_new_tokens=min(100, model.config.max_position_embeddings - inputs.input_ids.shape[1]),
        do_sample=True,
        temperature=0.8,
        top_p=0.95,
        top_k=0,
        pad_token_id=tokenizer.eos_token_id,
    )
    return tokenizer.decode(output[0])


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the model in the Hugging Face layout: weights in 16 bits, loaded later in 32 bits."""
    half = type(model)(model.config)
    half.load_state_dict(model.state_dict())
    half.half().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["dtype"] = "float32"
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokenizer.save_pretrained(folder)


def settings_of(args: argparse.Namespace, text: str) -> dict[str, object]:
    """Return the settings that a resumed run must share with the interrupted one."""
    names = ("family", "layers", "width", "heads", "context", "vocab", "teacher")
    text_hash = hashlib.sha256(text.encode()).hexdigest()[:12]
    return {"text hash": text_hash, **{name: str(getattr(args, name)) for name in names}}


def save_checkpoint(
    path: Path,
    step: int,
    model: PreTrainedModel,
    optimizers: list[torch.optim.Optimizer],
    settings: dict[str, object],
) -> None:
    state = {
        "step": step,
        "settings": settings,
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
    }
    unfinished = path.with_suffix(".tmp")  # a run may be killed while it writes
    torch.save(state, unfinished)
    unfinished.replace(path)


def load_checkpoint(
    path: Path,
    model: PreTrainedModel,
    optimizers: list[torch.optim.Optimizer],
    settings: dict[str, object],
) -> int:
    """Restore an interrupted run, if there is one. Return the number of steps already done."""
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    for name, value in settings.items():
        other = state["settings"].get(name)
        if other != value:
            sys.exit(
                f"{path} belongs to another run, with {name} = {other} instead of {value}. "
                "Use the same settings, delete it, or pass another --out."
            )
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return state["step"]


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    train_text, held_out_text = split_text(args.text)
    teacher = None
    if args.teacher:
        teacher, tokenizer = load_teacher(args.teacher, args.context)
    else:
        tokenizer = train_tokenizer(train_text, args.vocab, args.context)
    tokens, held_out = encode(tokenizer, train_text), encode(tokenizer, held_out_text)
    if len(tokens) <= args.context or len(held_out) < 2:
        sys.exit(
            f"{args.text} is too short: it has {len(tokens)} tokens to train on and "
            f"{len(held_out)} held-out ones. Pass a text of more than --context {args.context} "
            "tokens."
        )
    bits_per_nat = len(held_out) / len(held_out_text.encode()) / math.log(2)

    vocab_size = teacher.config.vocab_size if teacher else args.vocab
    model = new_model(args, vocab_size, tokenizer.eos_token_id).train()
    if args.family == "llama":
        add_dropout(model, args.dropout)
    optimizers = new_optimizers(model, args.lr)
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint = args.out / "checkpoint.pt"
    settings = settings_of(args, train_text)
    first_step = load_checkpoint(checkpoint, model, optimizers, settings)

    def loss_of(examples: Int[Tensor, "batch window_1"]) -> Float[Tensor, ""]:
        inputs, labels = examples[:, :-1], examples[:, 1:].reshape(-1)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(inputs, use_cache=False).logits
        logits = logits.float().flatten(0, 1)
        loss = F.cross_entropy(logits, labels)
        if teacher is None:
            return loss
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            target = teacher(inputs, use_cache=False).logits
        distilled = distillation_loss(logits, target.float().flatten(0, 1))
        return TEACHER_WEIGHT * distilled + (1 - TEACHER_WEIGHT) * loss

    batch = max(1, TOKENS_PER_STEP // args.context)
    own = own_text(teacher, tokens, args.context, args.seed) if teacher else None
    step_loss = torch.compile(loss_of, dynamic=False) if args.compile else loss_of
    progress = trange(
        first_step, args.steps, initial=first_step, total=args.steps, unit="step", disable=None
    )
    for step in progress:
        seed = args.seed * 1_000_003 + step
        if own is not None and step >= OWN_TEXT_FROM * args.steps:
            examples = draw_rows(own, seed)
        else:
            examples = draw_windows(tokens, args.context, seed, batch)
        torch.manual_seed(seed)  # dropout depends only on the step, so resuming changes nothing
        loss = step_loss(examples)
        loss.backward()
        take_step(optimizers, args.lr * lr_factor(step, args.steps))
        progress.set_postfix(loss=f"{loss.item():.3f}")
        if (step + 1) % CHECKPOINT_EVERY == 0:
            save_checkpoint(checkpoint, step + 1, model, optimizers, settings)
            nats = held_out_loss(model, held_out[:MONITORED], args.context)
            progress.write(f"step {step + 1}: held-out loss {nats:.3f} nats/token")

    save_model(model, tokenizer, args.out)
    nats = held_out_loss(model, held_out, args.context)
    print(f"parameters      {model.num_parameters():,}")
    print(f"held-out loss   {nats:.3f} nats/token = {nats * bits_per_nat:.3f} bits/byte")
    for prompt in SAMPLE_PROMPTS:
        print(f"\n{sample(model, tokenizer, prompt)}")
    checkpoint.unlink(missing_ok=True)


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("text", type=Path, help="a UTF-8 text file")
    add("--out", type=Path, required=True, help="folder for the trained model")
    add("--teacher", type=Path, help="distill from the model in this folder, with its tokenizer")
    add("--family", choices=SHAPES, default="gpt2", help="architecture (default %(default)s)")
    add("--layers", type=int, default=12, help="number of layers (default %(default)s)")
    add("--width", type=int, default=256, help="width of the hidden states (default %(default)s)")
    add("--heads", type=int, default=8, help="attention heads per layer (default %(default)s)")
    add("--context", type=int, default=1024, help="context length in tokens (default %(default)s)")
    add("--vocab", type=int, default=4096, help="size of a new tokenizer (default %(default)s)")
    add("--dropout", type=float, default=0.1, help="dropout probability (default %(default)s)")
    add("--lr", type=float, default=3e-3, help="peak learning rate (default %(default)s)")
    add("--steps", type=int, default=2400, help="steps of 4,096 tokens (default %(default)s)")
    add("--seed", type=int, default=1, help="seed of all random choices (default %(default)s)")
    add("--compile", action="store_true", help="compile the training step with torch.compile")
    return parser.parse_args(words)


if __name__ == "__main__":
    try:
        train(parse_arguments())
    except KeyboardInterrupt:
        sys.exit("Interrupted. The same command continues from the last checkpoint.")
