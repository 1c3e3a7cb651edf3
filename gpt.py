"""GPT-2 in plain PyTorch, written to be read: no cache, no batching tricks, no custom kernels.

Read it from top to bottom. A model is a stack of blocks; a block is attention and a small MLP; the
head turns the final hidden state of every position into logits, one score for each token of the
vocabulary. Names follow the paper "Language Models are Unsupervised Multitask Learners" (Radford et
al., 2019) and its released weights, so the names in a checkpoint fit as they are.
"""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a model. The defaults give the GPT-2 with 124 million parameters."""

    vocab_size: int = 50257
    n_positions: int = 1024  # the longest sequence the model can see
    n_embd: int = 768  # width of the hidden state
    n_layer: int = 12
    n_head: int = 12
    layer_norm_epsilon: float = 1e-5
    eos_token_id: int | None = None

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_head


class Linear(nn.Module):
    """A linear layer whose weight is [in, out], as GPT-2 stores it.

    nn.Linear stores [out, in]. A decode step multiplies a single row; with [in, out] it reads the
    weight in the order of its memory, which is faster on a CPU.
    """

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_in, n_out) * 0.02)
        self.bias = nn.Parameter(torch.zeros(n_out))

    def forward(self, hidden: Float[Tensor, "batch seq n_in"]) -> Float[Tensor, "batch seq n_out"]:
        return hidden @ self.weight + self.bias


class GPTAttention(nn.Module):
    """Causal self-attention: every position looks at itself and at the positions before it."""

    def __init__(self, config: GPTConfig, idx: int) -> None:
        super().__init__()
        self.idx = idx  # which layer this is
        self.n_head, self.head_dim = config.n_head, config.head_dim
        self.c_attn = Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = Linear(config.n_embd, config.n_embd)

    def forward(
        self, hidden: Float[Tensor, "batch seq n_embd"]
    ) -> Float[Tensor, "batch seq n_embd"]:
        queries, keys, values = self.split_heads(self.c_attn(hidden))
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return self.c_proj(self.merge_heads(attended))

    def split_heads(
        self, projected: Float[Tensor, "batch seq 3*n_embd"]
    ) -> Float[Tensor, "3 batch heads seq head_dim"]:
        """Split the projection into queries, keys and values, and each of them into heads."""
        batch, seq, _ = projected.shape
        return projected.view(batch, seq, 3, self.n_head, self.head_dim).permute(2, 0, 3, 1, 4)

    def merge_heads(
        self, attended: Float[Tensor, "batch heads seq head_dim"]
    ) -> Float[Tensor, "batch seq n_embd"]:
        return attended.transpose(1, 2).flatten(2)


class GPTMLP(nn.Module):
    """Two linear layers, four times as wide in the middle, applied to each position separately."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.c_fc = Linear(config.n_embd, 4 * config.n_embd)
        self.c_proj = Linear(4 * config.n_embd, config.n_embd)

    def forward(
        self, hidden: Float[Tensor, "batch seq n_embd"]
    ) -> Float[Tensor, "batch seq n_embd"]:
        return self.c_proj(F.gelu(self.c_fc(hidden), approximate="tanh"))


class GPTBlock(nn.Module):
    """Attention, then the MLP. Each reads a normalized copy of the hidden state and adds to it."""

    def __init__(self, config: GPTConfig, idx: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.attn = GPTAttention(config, idx)
        self.ln_2 = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.mlp = GPTMLP(config)

    def forward(
        self, hidden: Float[Tensor, "batch seq n_embd"]
    ) -> Float[Tensor, "batch seq n_embd"]:
        hidden = hidden + self.attn(self.ln_1(hidden))
        return hidden + self.mlp(self.ln_2(hidden))


class GPTModel(nn.Module):
    """Token and position embeddings, the blocks, and a final normalization."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.h = nn.ModuleList(GPTBlock(config, idx) for idx in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)

    def forward(
        self, inputs: Int[Tensor, "batch seq"], position_ids: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch seq n_embd"]:
        hidden = self.embed(inputs, position_ids)
        for block in self.h:
            hidden = block(hidden)
        return self.ln_f(hidden)

    def embed(
        self, inputs: Int[Tensor, "batch seq"], position_ids: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch seq n_embd"]:
        """Look up the embedding of each token and of its position, and add the two.

        Raises ValueError if the shapes disagree, a token id is outside the vocabulary, or a
        position is outside the context.
        """
        require_inputs(self.config, inputs, position_ids)
        return self.wte(inputs) + self.wpe(position_ids)


class GPTLMHead(nn.Module):
    """The language model: logits for the token that follows each position.

    The head has no weights of its own: GPT-2 scores the vocabulary with the token embeddings.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.transformer = GPTModel(config)

    def forward(
        self, inputs: Int[Tensor, "batch seq"], position_ids: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch seq vocab"]:
        hidden = self.transformer(inputs, position_ids)
        return hidden @ self.transformer.wte.weight.T

    @classmethod
    def from_pretrained(
        cls, name_or_folder: str | Path, device: str | torch.device = "cpu"
    ) -> Self:
        """Load a trained model in float32, ready for inference.

        Takes the name of a shipped model ("fable"), a local folder in the Hugging Face layout, or
        any GPT-2 on the Hugging Face hub ("gpt2", "distilgpt2"). Raises ValueError, with what to do
        about it, if there is no such model or it is not a GPT-2.
        """
        folder = find_checkpoint(name_or_folder)
        model = cls(read_config(folder))
        load_weights(model.transformer, folder)
        return model.eval().requires_grad_(False).to(device)


# --------------------------------------------------------------------------------- input checks


def require_inputs(
    config: GPTConfig, inputs: Int[Tensor, "batch seq"], position_ids: Int[Tensor, "batch seq"]
) -> None:
    if inputs.ndim != 2 or inputs.numel() == 0 or inputs.shape != position_ids.shape:
        raise ValueError(
            "inputs and position_ids must both be [batch, seq], with equal shapes and at least one "
            f"token, not {list(inputs.shape)} and {list(position_ids.shape)}."
        )
    tokenizer = "Is the tokenizer the right one for this model?"
    shorten = (
        f"The model sees at most {config.n_positions} tokens: shorten the prompt or generate fewer."
    )
    require_ids("token id", inputs, config.vocab_size, tokenizer)
    require_ids("position id", position_ids, config.n_positions, shorten)


def require_ids(what: str, ids: Int[Tensor, "batch seq"], limit: int, advice: str) -> None:
    if ids.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"A {what} must be a whole number (torch.int64), not {ids.dtype}.")
    lowest, highest = int(ids.min()), int(ids.max())
    if lowest < 0 or highest >= limit:
        wrong = lowest if lowest < 0 else highest
        raise ValueError(f"{what} {wrong} is outside the model's range, 0 to {limit - 1}. {advice}")


# ------------------------------------------------------------------------------------- loading

SHIPPED = Path(__file__).resolve().parent / "models"
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
TOKENIZER_FILES = ("tokenizer.json", "vocab.json")
NOT_WEIGHTS = (".attn.bias", ".attn.masked_bias")  # old checkpoints store their masks too


def shipped_models() -> list[str]:
    return sorted(config.parent.name for config in SHIPPED.glob("*/config.json"))


def load_tokenizer(name_or_folder: str | Path) -> "PreTrainedTokenizerBase":
    """Load the tokenizer of a model, by the names that GPTLMHead.from_pretrained takes."""
    from transformers import AutoTokenizer

    folder = find_checkpoint(name_or_folder)
    first_existing(folder, TOKENIZER_FILES, "tokenizer")
    return AutoTokenizer.from_pretrained(folder)


def find_checkpoint(name_or_folder: str | Path) -> Path:
    """Find the folder of a model: a local one, a shipped one, or one downloaded from the hub."""
    if Path(name_or_folder).is_dir():
        return Path(name_or_folder)
    if str(name_or_folder) in shipped_models():
        return SHIPPED / str(name_or_folder)
    try:
        return fetch_from_hub(str(name_or_folder))
    except Exception as error:  # no network, no such model, no such name: the advice is the same
        raise ValueError(
            f"There is no model {str(name_or_folder)!r}: it is neither a local folder nor a "
            f"shipped model ({', '.join(shipped_models())}), and fetching it from the Hugging "
            f"Face hub failed ({type(error).__name__}). Take a shipped one, or check the name "
            "and the network."
        ) from error


def fetch_from_hub(name: str) -> Path:
    """Download a model, or find it in the hub's cache; fetch the old .bin only if needed."""
    from huggingface_hub import snapshot_download

    safetensors, pickled = WEIGHT_FILES
    folder = snapshot_download(name, allow_patterns=["*.json", "merges.txt", safetensors])
    if not (Path(folder) / safetensors).exists():
        snapshot_download(name, allow_patterns=[pickled])
    return Path(folder)


def first_existing(folder: Path, names: tuple[str, ...], what: str) -> Path:
    for name in names:
        if (folder / name).exists():
            return folder / name
    raise ValueError(
        f"{folder} has no {what}: expected {' or '.join(names)} in it. "
        "Give the folder of a GPT-2 checkpoint in the Hugging Face layout."
    )


def read_config(folder: Path) -> GPTConfig:
    """Read the shape of a checkpoint. Raises ValueError if its architecture is not GPT-2's."""
    path = first_existing(folder, ("config.json",), "configuration")
    try:
        found = {**json.loads(path.read_text(encoding="utf-8"))}
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not a JSON object ({error}). Download it again.") from error
    gpt2 = {
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "tie_word_embeddings": True,
        "add_cross_attention": False,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    }
    for key, value in gpt2.items():
        if found.get(key, value) != value:
            raise ValueError(
                f"{path} has {key} = {found[key]!r}, where GPT-2 has {value!r}. "
                "gpt.py implements GPT-2 only: take one of its checkpoints."
            )
    names = {field.name for field in fields(GPTConfig)}
    config = GPTConfig(**{key: value for key, value in found.items() if key in names})
    sizes = (config.vocab_size, config.n_positions, config.n_embd, config.n_layer, config.n_head)
    if not all(isinstance(n, int) and n > 0 for n in sizes) or config.n_embd % config.n_head:
        raise ValueError(
            f"{path} has impossible sizes ({config}): they must be whole numbers above 0, "
            "and n_embd must be a multiple of n_head."
        )
    epsilon, eos = config.layer_norm_epsilon, config.eos_token_id
    if not isinstance(epsilon, int | float) or not 0 <= epsilon < 1:
        raise ValueError(
            f"{path} has layer_norm_epsilon = {epsilon!r}: it must be a small number, such as 1e-5."
        )
    if not isinstance(eos, int | None):
        raise ValueError(
            f"{path} has eos_token_id = {eos!r}: in gpt.py one token ends a text. Write its id "
            "there, or null for none."
        )
    if found.get("n_inner") not in (None, 4 * config.n_embd):
        raise ValueError(
            f"{path} has n_inner = {found['n_inner']}; in gpt.py the MLP is four times as wide as "
            f"the model, {4 * config.n_embd}. Take another checkpoint."
        )
    return config


def load_weights(model: GPTModel, folder: Path) -> None:
    """Load the folder's weights into `model`, whatever precision they are stored in."""
    path = first_existing(folder, WEIGHT_FILES, "weights")
    found = read_weights(path)
    weights = {
        name.removeprefix("transformer."): weight
        for name, weight in found.items()
        if not name.endswith(NOT_WEIGHTS)
    }
    head = weights.pop("lm_head.weight", None)
    expected = model.state_dict()
    differing = [
        f"{name} is {shape_of(weights, name)}, not {shape_of(expected, name)}"
        for name in sorted(expected.keys() | weights.keys())
        if shape_of(weights, name) != shape_of(expected, name)
    ]
    twice = [name for name in weights if {name, f"transformer.{name}"} <= found.keys()]
    differing += [f"{name} is there with and without 'transformer.'" for name in twice]
    if head is not None and not (differing or head.equal(weights["wte.weight"])):
        differing = ["lm_head.weight, the head, is not wte.weight, the token embeddings"]
    if differing:
        raise ValueError(
            f"{path} is not the GPT-2 that its config.json describes: {differing[0]}"
            f" ({len(differing)} such differences). Give a folder whose files belong together."
        )
    model.load_state_dict(weights)


def read_weights(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            found = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
        return {str(name): w for name, w in found.items() if isinstance(w, Tensor)}
    except Exception as error:  # a damaged or hostile file can fail in any way
        raise ValueError(
            f"{path} cannot be read as weights: it is damaged, or holds other things than tensors "
            f"({type(error).__name__}). Download it again."
        ) from error


def shape_of(weights: dict[str, Tensor], name: str) -> list[int] | str:
    return list(weights[name].shape) if name in weights else "absent"
