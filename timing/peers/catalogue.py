"""The other engines: what each one needs, and why one is missing."""

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version

FLOAT32 = "float32"


@dataclass(frozen=True)
class Peer:
    """One engine, with weights of one precision.

    title: its name. engine: its class in this folder, "module.Class". modules: the modules that it
    needs, each with its package; the first is the engine's own. needs_cuda: whether it is timed on
    a CUDA device instead of a CPU. advice: a hint on installing it.
    """

    title: str
    engine: str
    modules: dict[str, str]
    precision: str = FLOAT32
    needs_cuda: bool = False
    advice: str = ""

    @property
    def name(self) -> str:
        return f"{self.title} {version(next(iter(self.modules.values())))}"

    @property
    def about(self) -> str:
        return f"{self.name}, {self.precision}"


CTRANSLATE2 = {"ctranslate2": "ctranslate2"}
LLAMA_CPP = {"llama_cpp": "llama-cpp-python", "gguf": "gguf"}

PEERS = {
    "ct2": Peer("CTranslate2", "ctranslate.CTranslate2", CTRANSLATE2),
    "ct2-int8": Peer("CTranslate2", "ctranslate.CTranslate2", CTRANSLATE2, "int8"),
    "llama.cpp": Peer("llama-cpp-python", "llama.LlamaCpp", LLAMA_CPP),
    "llama.cpp-q8": Peer("llama-cpp-python", "llama.LlamaCpp", LLAMA_CPP, "q8_0"),
    "hf-continuous": Peer(
        "continuous batching of transformers",
        "hf_continuous.HFContinuous",
        {"transformers": "transformers"},
    ),
    "vllm": Peer(  # written from its documentation and not tried: there was no GPU
        "vLLM",
        "vllm_offline.VLLM",
        {"vllm": "vllm"},
        needs_cuda=True,
        advice=" It needs its own version of torch, so use another environment.",
    ),
}
OTHERS = {"hf", "hf-nocache", *PEERS}  # the rows that aren't the course's own
NEVER = {"gpt-fast": "it only runs models like Llama, from checkpoints that it has converted."}


def missing(device: str) -> Iterator[tuple[str, str]]:
    """Yield each engine that is not available on a device ("cpu", "cuda"), and the reason."""
    for name, peer in PEERS.items():
        absent = [
            package
            for module, package in peer.modules.items()
            if importlib.util.find_spec(module) is None
        ]
        if peer.needs_cuda != (device == "cuda"):
            where = "on a GPU: --device cuda" if peer.needs_cuda else "on the CPU"
            yield name, f"it is only timed {where}."
        elif absent:
            packages = " ".join(absent)
            install = f"python -m pip install {packages} --constraint constraints.txt"
            yield name, f"not installed. To install it: {install}{peer.advice}"
    yield from NEVER.items()
