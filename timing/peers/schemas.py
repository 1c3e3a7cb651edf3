"""JSON schemas in the server and in other libraries: which are kept, how strictly, at what cost.

    python -m timing.peers.schemas FOLDER [--every 25]

FOLDER has MaskBench's files (github.com/guidance-ai/jsonschemabench, in maskbench/data). Each has a
schema, and texts that fit it or don't; of the files in order, the first of every 25 is read. A
schema is supported if a library makes its first mask. A text is accepted if each of its tokens, EOS
too, is allowed; texts are what `json.dumps` writes. Times are those of the processor, for one
thread. The first mask includes reading the schema; of a text's other masks, each includes reading
the token before it. A library reads the first schema once before it is timed.
"""

import argparse
import gc
import json
import multiprocessing
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean
from time import process_time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpt import load_tokenizer
from solutions import constrained as lab_14
from solutions.server.formats import Guides, Vocabulary, read_format
from solutions.serving import percentile
from timing.machine import processor_name
from timing.peers.masks import MODEL, Library, Own, installed, llguidance, outlines_core

SECONDS, BYTES = 5, 8 * 2**30  # that a process of its own may take for one schema
HEADER = (
    "| | supported | valid accepted | invalid accepted | first mask, ms: p50 | p90 | worst | "
    "a mask, µs: mean | worst |"
)


class Case(NamedTuple):
    """A schema, and texts as tokens with EOS, each with whether it fits."""

    schema: str
    texts: list[tuple[list[int], bool]]


class Found(NamedTuple):
    """Seconds to the first mask and for each later one, and which of the texts are accepted."""

    first: float
    masks: list[float]
    accepted: list[bool]


def cases_in(folder: Path, every: int, tokenizer: Any) -> list[Case]:
    return [case_of(path, tokenizer) for path in sorted(folder.glob("*.json"))[::every]]


def case_of(path: Path, tokenizer: Any) -> Case:
    content = json.loads(path.read_text())
    backend, eos = tokenizer.backend_tokenizer, tokenizer.eos_token_id
    ended = [
        ([*backend.encode(json.dumps(test["data"], ensure_ascii=False)).ids, eos], test["valid"])
        for test in content["tests"]
    ]
    return Case(json.dumps(content["schema"]), ended)


# ------------------------------------------------------------------------------- the libraries


def served(tokenizer: Any) -> Library:
    vocabulary = Vocabulary(tokenizer.backend_tokenizer, [tokenizer.eos_token_id])
    guides = Guides(lab_14, vocabulary)

    def new(schema: str) -> Own:
        if isinstance(refusal := read_format(lab_14.derivative, schema), str):
            raise ValueError(refusal)
        return Own(guides.guide(schema))

    return Library(new, Own.fill, Own.advance, packed=False)


def llguidance_grammar(schema: str) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_json_schema(schema)


def outlines_pattern(schema: str) -> str:
    from outlines_core.json_schema import build_regex_from_schema

    return build_regex_from_schema(schema)


PEERS: dict[str, Callable[[Any], Library]] = {
    "llguidance": partial(llguidance, grammar_of=llguidance_grammar),
    "outlines-core": partial(outlines_core, pattern_of=outlines_pattern),
}
SLOW = {"outlines-core"}  # may take minutes and all memory, so each schema has its own process


# ------------------------------------------------------------------------------------ one schema


def measured(library: Library, case: Case, size: int) -> Found | None:
    """Return what a library makes of a schema and its texts; None if it doesn't support it.

    size: the number of tokens in the vocabulary.
    """
    packed = torch.zeros(1, (size + 31) // 32, dtype=torch.int32)
    row = packed if library.packed else torch.zeros(size, dtype=torch.bool)
    try:
        start = process_time()
        request = library.new(case.schema)
        library.fill(request, row)
        found = Found(process_time() - start, [], [])
    except Exception:  # each library has errors of its own
        return None
    for tokens, _ in case.texts:
        found.accepted.append(is_accepted(library, request, row, tokens, found.masks))
    return found


def is_accepted(
    library: Library, request: Any, row: Tensor, tokens: Sequence[int], seconds: list[float]
) -> bool:
    """Walk through a text as far as it is allowed. The seconds of each mask are added."""
    request.reset()
    for before, token in zip([None, *tokens], tokens, strict=False):
        start = process_time()
        try:
            if before is not None:
                library.advance(request, before)
            library.fill(request, row)
        except ValueError:  # too much work
            return False
        seconds.append(process_time() - start)
        bits = row[0, token // 32] >> token % 32 & 1 if library.packed else row[token]
        if not bits:
            return False
    return True


def measured_in_child(library: Library, case: Case, size: int) -> Found | None:
    """Do the same in a process of its own. A schema that takes too much isn't supported."""

    def work(end: Connection) -> None:
        import resource  # Windows has none

        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
        end.send(measured(library, case, size))

    context = multiprocessing.get_context("fork")
    mine, its = context.Pipe(duplex=False)
    process = context.Process(target=work, args=[its])
    process.start()
    its.close()
    try:
        return mine.recv()
    except EOFError:  # it was ended by a limit
        return None
    finally:
        process.join()


# ------------------------------------------------------------------------------------ the table


def row_of(name: str, cases: Sequence[Case], founds: Sequence[Found | None]) -> str:
    """Return a library's row of the table."""
    pairs = [(case, found) for case, found in zip(cases, founds, strict=True) if found]
    judged = {
        fits: [
            accepted
            for case, found in pairs
            for (_, is_valid), accepted in zip(case.texts, found.accepted, strict=True)
            if is_valid == fits
        ]
        for fits in (True, False)
    }
    counts = [f"{sum(judged[fits])} of {len(judged[fits])}" for fits in (True, False)]
    first = [1e3 * found.first for _, found in pairs]
    masks = [1e6 * seconds for _, found in pairs for seconds in found.masks]
    times = [f"{percentile(first, p):,.1f}" for p in (50, 90, 100)]
    times += [f"{time:,.0f}" for time in (mean(masks), max(masks))]
    cells = [name, f"{len(pairs)} of {len(cases)}, {len(pairs) / len(cases):.0%}", *counts, *times]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="timing.peers.schemas",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=25)
    given = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(MODEL)
    cases = cases_in(given.folder, given.every, tokenizer)
    libraries = {"the server": served(tokenizer), **installed(PEERS, tokenizer)}
    gc.freeze()  # as the server's engine does, too, once all is loaded
    print(f"{processor_name(torch.device('cpu'))}, one thread; {len(cases)} schemas\n")
    print(HEADER)
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name, library in libraries.items():
        measured(library, cases[0], len(tokenizer))
        measure = measured_in_child if name.split()[0] in SLOW else measured
        founds = [measure(library, case, len(tokenizer)) for case in cases]
        print(row_of(name, cases, founds), flush=True)


if __name__ == "__main__":
    main()
