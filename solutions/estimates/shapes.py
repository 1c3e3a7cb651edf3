"""What estimates start from: the shapes of published models, and the data sheets of machines.

A shape holds the few sizes that decide how many weights a model has, what a token costs, and what
the KV cache holds. `read_shape` reads it from a model's config.json; the weights aren't needed.

Sources: the models' config.json on the Hugging Face hub; the data sheets named with each machine.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder-only transformer.

    vocab: tokens. width: numbers in a hidden state. heads: query heads. kv_heads: KV heads.
    head_dim: numbers in a query, key or value. ff: neurons of a dense MLP. gated: each neuron has
    weights in three matrices, not in two. biases: each matrix of a block and each norm has a bias.
    tied: the LM head is the token embedding. positions: learned position embeddings, or 0.
    more_vectors: gains and biases of a layer that the other fields don't explain.

    Mixture of experts: expert_layers: how many layers have experts instead of a dense MLP. Each of
    these has `experts` with `expert_ff` neurons, of which a router chooses experts_per_token, and
    shared_experts of the same size that compute every token.

    Latent attention (DeepSeek) keeps one vector per token instead of keys and values. Three numbers
    of a layer then replace those of the heads; they are 0 in other models. latent_weights: in the
    matrices of its attention. latent_width: numbers per token in the cache. latent_products:
    multiplications for each pair of a query and a cached token.
    """

    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ff: int
    gated: bool = True
    biases: bool = False
    tied: bool = False
    positions: int = 0
    more_vectors: int = 0
    expert_layers: int = 0
    experts: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0
    expert_ff: int = 0
    latent_weights: int = 0
    latent_width: int = 0
    latent_products: int = 0

    @property
    def dense_layers(self) -> int:
        return self.layers - self.expert_layers

    def __post_init__(self) -> None:
        for name, number in vars(self).items():
            least = name in ("vocab", "width", "layers", "heads", "kv_heads", "head_dim")
            if not isinstance(number, int) or number < least:
                raise ValueError(f"A shape can't have {name} = {number!r}. Check the config.")
        if self.heads % self.kv_heads:
            raise ValueError(
                f"{self.heads} query heads can't share {self.kv_heads} KV heads evenly. Check "
                "the config."
            )
        if self.expert_layers > self.layers or self.experts_per_token > self.experts:
            raise ValueError(
                f"{self.experts_per_token} of {self.experts} experts in {self.expert_layers} of "
                f"{self.layers} layers is impossible. Check the config."
            )


@dataclass(frozen=True)
class Machine:
    """A machine's limits: a card, several cards as one, or a laptop.

    flops: floating-point operations per second. bandwidth: bytes per second from memory. memory:
    bytes. watts, price_per_hour (dollars): 0 where unknown. source: where the numbers come from.
    """

    flops: float
    bandwidth: float
    memory: int
    watts: float = 0.0
    price_per_hour: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        if not min(self.flops, self.bandwidth, self.memory) > 0:
            raise ValueError(
                "A machine needs FLOPs per second, bytes per second and bytes of memory above 0, "
                f"not {self.flops}, {self.bandwidth} and {self.memory}."
            )


def together(machine: Machine, count: int) -> Machine:
    """Return `count` machines as one. The time in which they exchange isn't counted (lab 18)."""
    flops, bandwidth, memory = machine.flops, machine.bandwidth, machine.memory
    return Machine(
        *(count * flops, count * bandwidth, count * memory),
        *(count * machine.watts, count * machine.price_per_hour, machine.source),
    )


# ------------------------------------------------------------------------------ published numbers

GPT = {"gated": False, "biases": True, "tied": True}
MODELS = {
    "fable": Shape(4096, 256, 12, 8, 8, 32, 1024, positions=1024, **GPT),
    "gpt2": Shape(50257, 768, 12, 12, 12, 64, 3072, positions=1024, **GPT),
    "SmolLM2-135M": Shape(49152, 576, 30, 9, 3, 64, 1536, tied=True),
    "OPT-13B": Shape(50272, 5120, 40, 40, 40, 128, 20480, positions=2050, **GPT),
    "Llama-2-7B": Shape(32000, 4096, 32, 32, 32, 128, 11008),
    "Llama-3-8B": Shape(128256, 4096, 32, 32, 8, 128, 14336),
    "Llama-3-70B": Shape(128256, 8192, 80, 64, 8, 128, 28672),
    "Mixtral-8x7B": Shape(
        *(32000, 4096, 32, 32, 8, 128, 0),
        expert_layers=32,
        experts=8,
        experts_per_token=2,
        expert_ff=14336,
    ),
    "DeepSeek-V3": Shape(
        *(129280, 7168, 61, 128, 128, 128, 18432),
        more_vectors=1536 + 512,
        expert_layers=58,
        experts=256,
        experts_per_token=8,
        shared_experts=1,
        expert_ff=2048,
        latent_weights=187_105_280,
        latent_width=576,
        latent_products=139_264,
    ),
}

# Dense bfloat16, without sparsity, and the highest power. Prices are round figures of what clouds
# listed per hour in May 2026: they differ by a factor of two between clouds and change monthly.
GB = 10**9
CARDS = {
    "A100": Machine(312e12, 2.039e12, 80 * GB, 400, 1.5, "NVIDIA A100 80GB SXM data sheet, 2021"),
    "H100": Machine(989e12, 3.35e12, 80 * GB, 700, 3.0, "NVIDIA H100 SXM data sheet, 2023"),
    "H200": Machine(989e12, 4.8e12, 141 * GB, 700, 4.0, "NVIDIA H200 SXM data sheet, 2024"),
    "B200": Machine(2250e12, 8e12, 180 * GB, 1000, 5.5, "NVIDIA DGX B200 data sheet, 2024"),
    "L4": Machine(121e12, 300e9, 24 * GB, 72, 0.7, "NVIDIA L4 data sheet, 2023"),
    "RTX4090": Machine(165.2e12, 1.008e12, 24 * GB, 450, 0.5, "NVIDIA Ada whitepaper, 2022"),
    "MI300X": Machine(1307.4e12, 5.3e12, 192 * GB, 750, 2.5, "AMD MI300X data sheet, 2023"),
}


# ----------------------------------------------------------------------------- reading a config

Config = Mapping[str, Any]


def read_shape(path: Path) -> Shape:
    """Read a config.json of the Hugging Face layout.

    Raises ValueError, with what to do about it, if it describes a model of an unknown kind or an
    impossible one.
    """
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8"))
        return shape_of(config)
    except KeyError as error:
        raise ValueError(f"{path} has no {error}. Take the config.json of a model.") from error
    except (OSError, UnicodeError, json.JSONDecodeError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is not a model's configuration ({type(error).__name__}). Take a config.json."
        ) from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


LIKE_LLAMA = {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"}


def shape_of(config: Config) -> Shape:
    """Return the shape that a config describes, of a multimodal model that of its text part.

    A type that isn't listed is read as Llama's if it has the same entries and none about experts.
    Its count may then be off by some norms.
    """
    config = config.get("text_config", config)
    kind = config.get("model_type")
    if kind not in READERS and (not config.keys() >= LIKE_LLAMA or "expert" in str(config.keys())):
        raise ValueError(
            f"A model of type {kind!r} can't be read. There are {', '.join(sorted(READERS))}, and "
            "dense models like Llama."
        )
    return READERS.get(kind, llama)(config)


def gpt2(config: Config) -> Shape:
    width, heads = config["n_embd"], config["n_head"]
    return Shape(
        *(config["vocab_size"], width, config["n_layer"], heads, heads, head_dim(width, heads)),
        config.get("n_inner") or 4 * width,
        gated=False,
        biases=True,
        tied=config.get("tie_word_embeddings", True),
        positions=config["n_positions"],
    )


def opt(config: Config) -> Shape:
    width, heads = config["hidden_size"], config["num_attention_heads"]
    if config.get("word_embed_proj_dim", width) != width:
        raise ValueError("An OPT with projected embeddings can't be read. Take a larger one.")
    return Shape(
        *(config["vocab_size"], width, config["num_hidden_layers"], heads, heads),
        *(head_dim(width, heads), config["ffn_dim"]),
        gated=False,
        biases=True,
        tied=config.get("tie_word_embeddings", True),
        positions=config["max_position_embeddings"] + 2,  # OPT's first two rows are never used
    )


def llama(config: Config) -> Shape:
    """Read Llama's kind: rotated positions, RMSNorm, gated MLPs, and fewer KV heads."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    size = config.get("head_dim") or head_dim(width, heads)
    ff = config["intermediate_size"]
    shape = Shape(
        *(config["vocab_size"], width, config["num_hidden_layers"], heads, kv_heads, size, ff),
        tied=config.get("tie_word_embeddings", False),
    )
    biases = (heads + 2 * kv_heads) * size + width if config.get("attention_bias") else 0
    biases += 2 * ff + width if config.get("mlp_bias") else 0
    return replace(shape, more_vectors=biases)


def qwen2(config: Config) -> Shape:
    shape = llama(config)
    return replace(shape, more_vectors=(shape.heads + 2 * shape.kv_heads) * shape.head_dim)


def qwen3(config: Config) -> Shape:
    shape = llama(config)
    norms = 2 * shape.head_dim  # of the queries and of the keys
    return replace(shape, more_vectors=shape.more_vectors + norms)


def mixtral(config: Config) -> Shape:
    shape = llama(config)
    return replace(
        shape,
        ff=0,
        expert_layers=shape.layers,
        experts=config["num_local_experts"],
        experts_per_token=config["num_experts_per_tok"],
        expert_ff=shape.ff,
    )


def qwen3_moe(config: Config) -> Shape:
    shape, every = qwen3(config), config.get("decoder_sparse_step", 1)
    dense = config.get("mlp_only_layers") or []
    sparse = [i for i in range(shape.layers) if i not in dense and (i + 1) % every == 0]
    return replace(
        shape,
        expert_layers=len(sparse),
        experts=config.get("num_experts") or config["num_local_experts"],
        experts_per_token=config["num_experts_per_tok"],
        expert_ff=config["moe_intermediate_size"],
    )


def deepseek_v3(config: Config) -> Shape:
    shape = llama({**config, "head_dim": config["v_head_dim"], "attention_bias": False})
    width, heads, rank = shape.width, shape.heads, config["kv_lora_rank"]
    plain, rotated, value = (config[f"{kind}_head_dim"] for kind in ("qk_nope", "qk_rope", "v"))
    query_rank, queries = config["q_lora_rank"], heads * (plain + rotated)
    weights = (width + queries) * query_rank if query_rank else width * queries
    weights += width * (rank + rotated) + rank * heads * (plain + value) + heads * value * width
    return replace(
        shape,
        more_vectors=(query_rank or 0) + rank,  # the gains of the norms between the matrices
        expert_layers=shape.layers - config["first_k_dense_replace"],
        experts=config["n_routed_experts"],
        experts_per_token=config["num_experts_per_tok"],
        shared_experts=config["n_shared_experts"],
        expert_ff=config["moe_intermediate_size"],
        latent_weights=weights,
        latent_width=rank + rotated,
        latent_products=heads * (2 * rank + rotated),  # absorbed: scores and values in the latent
    )


def head_dim(width: int, heads: int) -> int:
    if not heads or width % heads:
        raise ValueError(f"{heads} heads can't share a width of {width}. Check the config.")
    return width // heads


READERS: dict[Any, Callable[[Config], Shape]] = {
    "gpt2": gpt2,
    "opt": opt,
    "llama": llama,
    "mistral": llama,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "qwen3_moe": qwen3_moe,
    "mixtral": mixtral,
    "deepseek_v3": deepseek_v3,
}
