"""Lab 14's masks and those of other libraries: are they equal, and what does each cost?

    python -m timing.peers.masks [--threads 1]

Each library compiles a pattern for fable's vocabulary and walks through texts of the language: some
as the tokenizer writes them, others of random allowed tokens. Each mask is compared with that of
lab 14's index; a text ends where a library doesn't allow its next token. Timed are compiling the
pattern, and writing a mask into a tensor: at the first visit of a state, and later. The libraries
take turns, and each figure is a median. A library that isn't installed is left out.
"""

import argparse
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from itertools import chain
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpt import load_tokenizer
from solutions.constrained import (
    Constraint,
    Guide,
    IndexGuide,
    automaton_of,
    derivative,
    vocabulary_bytes,
)
from solutions.grammars.regex import Regex, parse
from solutions.server.formats import FormatGuide, Masks, Vocabulary
from timing.cores import usable_cores
from timing.machine import processor_name
from timing.stopwatch import undisturbed
from timing.threads import parse_with_threads

MODEL = "fable"
ROUNDS, SEEDS, LONGEST = 9, 16, 48  # timed rounds; random texts, and the most tokens of a text
INSTALL = "python -m pip install outlines-core llguidance xgrammar"
OBJECT = r'\{"name": "([^"\\\x00-\x1f]|\\["\\bfnrt])*", "kind": "(king|queen|witch|wolf)"\}'
PATTERNS = {  # with texts; in syntax that all libraries know
    "date": (r"(19|20)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])", ["1987-06-05"]),
    "object": (OBJECT, ['{"name": "Zoë the Bold", "kind": "wolf"}']),
    "choice": ("king|kingdom|queen|witch|wolf|woodcutter", ["kingdom", "woodcutter"]),
    "number": (r"-?(0|[1-9][0-9]*)(\.[0-9]+)?", ["-17.25", "0"]),
}


class Library(NamedTuple):
    """new: compiles a pattern and returns a request. fill: writes a request's mask into a row."""

    new: Callable[[str], Any]
    fill: Callable[[Any, Tensor], object]
    advance: Callable[[Any, int], object]
    packed: bool = True  # a row has one bit per token, in int32; otherwise bools


class Own(Constraint):
    def reset(self) -> None:
        self.state = self.guide.start()

    def fill(self, row: Tensor) -> None:
        row.copy_(self.guide.allowed(self.state))


def own(new_guide: Callable[[Regex], Guide]) -> Library:
    def new(pattern: str) -> Own:
        return Own(new_guide(parse(pattern)))

    return Library(new, Own.fill, Own.advance, packed=False)


def outlines_core(tokenizer: Any, pattern_of: Callable[[str], str] = str) -> Library:
    from outlines_core import Guide, Index, Vocabulary

    tokens = {text: [token] for token, text in enumerate(vocabulary_bytes(tokenizer)) if text}
    vocabulary = Vocabulary(tokenizer.eos_token_id, tokens)

    def fill(guide: Any, row: Tensor) -> None:
        guide.write_mask_into(row.data_ptr(), row.numel(), row.element_size())

    def new(asked: str) -> Any:
        return Guide(Index(pattern_of(asked), vocabulary))

    return Library(new, fill, partial(Guide.advance, return_tokens=False))


def llguidance(tokenizer: Any, grammar_of: Callable[[str], str] = "start: /{}/".format) -> Library:
    from llguidance import LLMatcher, LLTokenizer

    own_tokenizer = LLTokenizer(tokenizer.backend_tokenizer.to_str())

    def new(asked: str) -> Any:
        return LLMatcher(own_tokenizer, grammar_of(asked))

    def fill(matcher: Any, row: Tensor) -> None:
        matcher.unsafe_compute_mask_ptr(row.data_ptr(), row.nbytes)
        if matcher.is_error():  # then the mask has EOS alone
            raise ValueError(matcher.get_error())

    return Library(new, fill, LLMatcher.consume_token)


def xgrammar(tokenizer: Any) -> Library:
    from xgrammar import GrammarCompiler, GrammarMatcher, TokenizerInfo

    info, threads = TokenizerInfo.from_huggingface(tokenizer), torch.get_num_threads()
    compiler = GrammarCompiler(info, max_threads=threads, cache_enabled=False)

    def new(pattern: str) -> Any:
        return GrammarMatcher(compiler.compile_regex(pattern))

    return Library(new, GrammarMatcher.fill_next_token_bitmask, GrammarMatcher.accept_token)


PEERS: dict[str, Callable[[Any], Library]] = {  # by package, and option
    "outlines-core": outlines_core,
    "llguidance": llguidance,
    "llguidance no_forcing": partial(
        llguidance, grammar_of='%llguidance {{"no_forcing": true}}\nstart: /{}/'.format
    ),
    "xgrammar": xgrammar,
}

# Three lists of seconds: to compile, for first masks, for later ones; and differences, in words.
Walk = tuple[list[list[float]], list[str]]


def walk(library: Library, pattern: str, ours: IndexGuide, texts: Sequence[Sequence[int]]) -> Walk:
    """Walk through these texts and SEEDS random ones, as far as both masks allow."""
    size, shifts = len(ours.vocabulary), torch.arange(32, dtype=torch.int32)
    packed = torch.zeros(1, (size + 31) // 32, dtype=torch.int32)
    row = packed if library.packed else torch.zeros(size, dtype=torch.bool)
    start = perf_counter()
    request = library.new(pattern)
    times: list[list[float]] = [[perf_counter() - start], [], []]
    differences, seen = list[str](), set[int]()
    for number in range(len(texts) + SEEDS):
        request.reset()
        state, done, rng = ours.start(), list[int](), random.Random(number)
        while True:
            start = perf_counter()
            library.fill(request, row)
            times[2 if state in seen else 1].append(perf_counter() - start)
            seen.add(state)
            mask = (row.view(-1, 1) >> shifts & 1).flatten()[:size] > 0 if library.packed else row
            if not torch.equal(mask, ours.allowed(state)):
                differences.append(difference(ours, state, done, mask))
            coming = (mask & ours.allowed(state)).nonzero()[:, 0].tolist()
            if number < len(texts):
                coming = [token for token in texts[number][len(done) :][:1] if token in coming]
            coming = [token for token in coming if token != ours.eos]
            if not coming or len(done) == LONGEST:
                break
            done.append(rng.choice(coming))
            library.advance(request, done[-1])
            state = ours.advance(state, done[-1])
    return times, differences


def difference(ours: IndexGuide, state: int, done: Sequence[int], mask: Tensor) -> str:
    """Name a token that only one mask allows, and what is special about its place."""
    token = int((mask != ours.allowed(state)).nonzero()[0, 0])
    before = b"".join(ours.vocabulary[one] for one in done)
    text = "EOS" if token == ours.eos else repr(ours.vocabulary[token])
    whose, place = "it" if mask[token] else "lab 14", ""
    if state in ours.automaton.accepting:
        place = ", where the text could end"
    elif len(ours.automaton.edges[state]) == 1:
        place = ", where one byte is forced"
    return f"only {whose} allows {text} after {before!r}{place}"


def table(name: str, libraries: Mapping[str, Library], tokenizer: Any) -> None:
    pattern, written = PATTERNS[name]
    vocabulary, eos = vocabulary_bytes(tokenizer), tokenizer.eos_token_id
    ours = IndexGuide(automaton_of(parse(pattern)), vocabulary, eos)
    texts = [tokenizer(text).input_ids for text in written]

    def in_turns(_: int) -> dict[str, Walk]:
        return {key: walk(library, pattern, ours, texts) for key, library in libraries.items()}

    in_turns(0)  # as a warm-up
    rounds = undisturbed(lambda: [*map(in_turns, range(ROUNDS))])
    print(f"\n{pattern}\n\n| {name} | compiled, ms | first mask, µs | later, µs | differ |")
    print("|---|---:|---:|---:|---:|")
    for key, (times, differences) in rounds[-1].items():
        parts = zip(*(found[key][0] for found in rounds), strict=True)
        compiling, first, later = (1e6 * median(chain(*part)) for part in parts)
        differ = f"{len(differences)} of {len(times[1] + times[2])}"
        print(f"| {key} | {compiling / 1e3:.2f} | {first:.1f} | {later:.1f} | {differ} |")
    for key, (_, differences) in rounds[-1].items():
        print("".join(f"{key}: {one}\n" for one in differences[:1]), end="")


def installed(peers: Mapping[str, Callable[[Any], Library]], tokenizer: Any) -> dict[str, Library]:
    """Return those of the libraries that are installed, with their versions. Print the others."""
    found = dict[str, Library]()
    for name, new in peers.items():
        package, _, option = name.partition(" ")
        try:
            found[f"{package} {version(package)} {option}".strip()] = new(tokenizer)
        except ImportError as error:
            print(f"{name} is left out ({error}). To install it: {INSTALL}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="timing.peers.masks", description=__doc__)
    parse_with_threads(parser)
    tokenizer = load_tokenizer(MODEL)
    vocabulary = vocabulary_bytes(tokenizer)
    given = {"vocabulary": vocabulary, "eos": tokenizer.eos_token_id}
    libraries = {
        "lab 14, index": own(lambda regex: IndexGuide(automaton_of(regex), **given)),
        "the server's": own(
            lambda regex: FormatGuide(
                regex, Masks(Vocabulary(tokenizer.backend_tokenizer, [given["eos"]]), derivative)
            )
        ),
    }
    cpu, cores = processor_name(torch.device("cpu")), usable_cores()
    print(f"{cpu}, cores: {cores}, threads: {torch.get_num_threads()}, torch {torch.__version__}")
    libraries |= installed(PEERS, tokenizer)
    for name in PATTERNS:
        table(name, libraries, tokenizer)


if __name__ == "__main__":
    main()
