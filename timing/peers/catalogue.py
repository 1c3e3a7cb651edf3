"""Which engines there are, what each of them needs, and why one is missing."""

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version

FLOAT32 = "float32"


@dataclass(frozen=True)
class Peer:
    """One engine, with weights of one precision.

    title: what it is called. engine: its class in this folder, "module.Class". modules: what must
    be importable, with the package that each comes from; the first is the engine's own. needs_cuda:
    whether it is for a CUDA device, else it is for a processor. advice: on installing it.
    """

    title: str
    engine: str
    modules: dict[str, str]
    precision: str = FLOAT32
    needs_cuda: bool = False
    advice: str = ""

    @property
    def about(self) -> str:
        return f"{self.title} {version(next(iter(self.modules.values())))}, {self.precision}"


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
    "vllm": Peer(  # written by its documentation: there was no GPU to try it on
        "vLLM",
        "vllm_offline.VLLM",
        {"vllm": "vllm"},
        needs_cuda=True,
        advice=" It brings a torch of its own, so take another environment.",
    ),
}
NEVER = {"gpt-fast": "it runs models of Llama's shape, and GPT-2 is none."}


def missing(device: str) -> Iterator[tuple[str, str]]:
    """The engines that cannot be had on a device ("cpu", "cuda"): name, and a sentence why."""
    for name, peer in PEERS.items():
        absent = [
            package
            for module, package in peer.modules.items()
            if importlib.util.find_spec(module) is None
        ]
        if peer.needs_cuda != (device == "cuda"):
            where = "on a GPU alone: --device cuda" if peer.needs_cuda else "on the processor alone"
            yield name, f"it is timed {where}."
        elif absent:
            packages = " ".join(absent)
            install = f"python -m pip install {packages} --constraint constraints.txt"
            yield name, f"not installed. To install it: {install}{peer.advice}"
    yield from NEVER.items()
