"""Time the techniques of the course on the same requests, in one table and one chart.

    python timed_generate.py                 the rows that tell the story, in a minute and a half
    python timed_generate.py --all           every technique on every workload
    python timed_generate.py --mine          adds your own code from the labs
    python timed_generate.py --peers         adds other engines; --peers ct2,llama.cpp, only these
    python timed_generate.py --speedrun      scores your engine against the reference's, as a record
    python timed_generate.py --race          naive, transformers and your engine, side by side
    python timed_generate.py --profile engine   where a decode step of a row goes, with a picture
    python timed_generate.py --workloads lengths --techniques naive,cached --tokens 64,256,512
    python timed_generate.py --workloads ragged --repeats 3 --plot times.png

There are five workloads. `lengths` continues one prompt by each number in --tokens; `sampled`
continues the beginnings of some tales at a temperature; `ragged` is many requests of unequal
lengths; `equal` is many requests that begin and end together; `chat` is chats in which each turn
continues the whole conversation so far.

Every technique is verified before it is timed: it must produce the reference's tokens. Where tokens
are drawn at random, it must draw the same ones with its caches as without. Where weights are
rounded or a window hides tokens (marked #), it must produce the tokens of a naive model with the
same weights or window. A row that other programs disturbed is timed again, and marked ! if they
went on. The last line of the output is the whole result as JSON. A lab's techniques are in the
row.py of its folder in course/.
"""

import argparse
import difflib
import functools
import json
import os
import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType

import torch
import transformers
from tqdm import tqdm

from gpt import GPTLMHead
from solutions.engine.products import PRODUCTS, WAYS, Products, in_words, weights_of
from solutions.families import find_checkpoint, load_tokenizer
from solutions.gguf.file import gguf_in
from timing import techniques
from timing.command_line import (
    Parser,
    has_matplotlib,
    has_pictures,
    new_console,
    plot_file,
    thread_count,
    whole_number,
    writable_file,
)
from timing.cores import usable_cores
from timing.kept_rows import keep
from timing.machine import last_level_cache, memory_bandwidth, processor_name
from timing.peers.catalogue import NEVER, OTHERS, PEERS, missing
from timing.peers.row import SIZES, peer_techniques
from timing.peers.worker import Workers
from timing.speedrun import record as speedrun
from timing.table import (
    REPEATS,
    Absent,
    Bench,
    Key,
    NotTimed,
    Plan,
    Prepare,
    Prepared,
    Row,
    Rows,
    Verifier,
    draw_chart,
    growth,
    measure_rows,
    show_environment,
    show_growth,
    show_missing,
    show_race,
    show_tables,
    show_words,
)
from timing.table.workloads import KINDS, LENGTHS, RAGGED, Workload, new_workloads
from timing.threads import set_threads
from timing.work import weight_bytes


def mine(lab: str) -> ModuleType:
    from autograder import check  # only --mine needs the autograder

    return check.mine(lab)


def has_solved() -> bool:
    """Return whether any exercise has passed its check here."""
    from autograder.notebook import passed

    return any(passed.folder().glob("*/*.py"))


DEFAULT = list(techniques.TECHNIQUES)
STORY = ["naive", "cached", "speculative", "ngram", "continuous", "paged", "engine", "int8", "hf"]
STORY_KINDS, STORY_TOKENS, STORY_CHART = (LENGTHS, RAGGED), [256], Path("timed.png")
STRIP = Path("timed-profile.png")
TECHNIQUES: Rows = {**techniques.TECHNIQUES, "mine": techniques.mine_rows(mine)}
RACERS = "naive", "hf", "mine"
RECORD = Path("speedrun.json")
SHORT, LARGE = 64, 2**28  # new tokens, and bytes of weights; see `in_time`


# ------------------------------------------------------------------------------ the command line


def length_list(text: str) -> list[int]:
    return sorted({whole_number(part) for part in text.split(",")})


def list_of(what: str, known: Collection[str]) -> Callable[[str], list[str]]:
    """A reader of names, separated by commas, that refuses those that aren't known."""

    def names_in(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",")]
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                meant = f" Did you mean {near[0]!r}?" if near else ""
                raise argparse.ArgumentTypeError(
                    f"there is no {what} {name!r}.{meant} There are {', '.join(known)}."
                )
        return list(dict.fromkeys(names))

    return names_in


def usable_device(text: str) -> torch.device:
    try:
        device = torch.device(text)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:  # a torch built without CUDA asserts
        found = torch.accelerator.current_accelerator(check_available=True)
        usable = f"cpu or {found.type}" if found else "cpu"
        raise argparse.ArgumentTypeError(
            f"torch cannot use a device {text!r} here. Take {usable}."
        ) from error
    return device


def new_parser() -> Parser:
    parser = Parser(
        prog="timed_generate.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    techniques, kinds = list_of("technique", TECHNIQUES), list_of("workload", KINDS)
    add(
        "--model",
        default="fable",
        help="a shipped or installed model, a folder, a GGUF file, or a model of the hub (fable)",
    )
    add("--all", action="store_true", help="time every technique on every workload")
    add("--workloads", type=kinds, help=f"of {','.join(KINDS)} (alone: every technique on them)")
    add("--tokens", type=length_list, help="new tokens (256; with a choice of rows 16,64,256)")
    add(
        "--techniques",
        type=techniques,
        help=f"of {','.join(TECHNIQUES)} (alone: on every workload)",
    )
    add("--mine", action="store_true", help="add your own code, as the labs' checks kept it")
    engines = [*PEERS, *NEVER]  # to name one of NEVER is to ask why it is missing
    add(
        "--peers",
        nargs="?",
        metavar="NAMES",
        type=list_of("engine", engines),
        const=engines,
        default=[],
        help=f"add other engines, on {','.join(SIZES)}: all, or those named of {','.join(PEERS)}",
    )
    add("--race", action="store_true", help="show naive, hf and mine side by side, and no table")
    add(
        "--profile",
        choices=TECHNIQUES,
        metavar="NAME",
        help="show where a decode step of an engine's row goes, and no table",
    )
    add("--speedrun", action="store_true", help="score your engine, and write a record of it")
    add("--device", type=usable_device, default=torch.device("cpu"), help="cpu, cuda, mps (cpu)")
    add("--threads", type=thread_count, help="processor threads (one for each usable core)")
    ways = "; ".join(WAYS)
    multiply = f"how to multiply by the weights: {ways} (the fastest way)"
    add("--products", choices=WAYS, metavar="WAY", help=multiply)
    add(
        "--repeats",
        type=whole_number,
        help=f"timed runs of each row ({REPEATS}, fewer where one takes long)",
    )
    add(
        "--json",
        type=writable_file,
        metavar="FILE",
        help="write the last line, or the record, there",
    )
    add("--plot", type=plot_file, metavar="FILE", help="draw the chart there, as PNG")
    return parser


def require_one_row(parser: Parser, args: argparse.Namespace) -> None:
    """Refuse, with --profile, what it would ignore."""
    names = "all", "workloads", "techniques", "mine", "peers", "race", "repeats", "json"
    others = [f"--{name}" for name in names if getattr(args, name)]
    if args.device.type != "cpu":
        others.append("--device")
    if others:
        parser.error(
            "--profile records a step of one row on the processor, and times no table: leave out "
            f"{', '.join(others)}."
        )
    if args.plot and not has_pictures():
        parser.error("The picture of --profile needs ipywidgets: pip install ipywidgets.")


def with_choice(args: argparse.Namespace) -> argparse.Namespace:
    """What to time, filled in: the story, unless rows were chosen."""
    story = not (args.all or args.workloads or args.techniques)
    args.names = list(args.techniques or (STORY if story else DEFAULT))
    args.kinds = args.workloads or (STORY_KINDS if story else KINDS)
    args.tokens = args.tokens or (STORY_TOKENS if story else [16, 64, 256])
    chart, has = (STRIP, has_pictures) if args.profile else (STORY_CHART, has_matplotlib)
    if story and not args.plot and has() and os.access(".", os.W_OK):
        args.plot = chart
    return args


# ------------------------------------------------------------------------------------- what to do


def new_plan(folder: Path, args: argparse.Namespace, peers: Rows, weights: int) -> Plan:
    """Which techniques run on which workload: each on those that it serves."""
    names = [*args.names, *peers]
    if args.mine and "mine" not in names:
        names.insert(len(args.names), "mine")
    techniques = {**TECHNIQUES, **peers}
    serving = {kind: [name for name in names if kind in techniques[name]] for kind in args.kinds}
    require_served(args, names, serving)
    plan = []
    served = [kind for kind in args.kinds if serving[kind]]
    for workload in new_workloads(served, folder, args.tokens):
        names = serving[workload.kind]
        plan.append((workload, names) if args.techniques else in_time(workload, names, weights))
    return plan


def require_served(
    args: argparse.Namespace, names: list[str], serving: dict[str, list[str]]
) -> None:
    """Raises ValueError where a technique or a workload that was asked for would be left out."""
    for name in args.techniques or []:
        if not TECHNIQUES[name].keys() & serving.keys():
            raise ValueError(
                f"{name} serves the workloads {','.join(TECHNIQUES[name])}, not "
                f"{','.join(serving)}. Choose with --workloads."
            )
    if args.peers and not SIZES.keys() & serving.keys():
        raise ValueError(
            f"--peers adds to the workloads {','.join(SIZES)}, not to {','.join(serving)}. Choose "
            "with --workloads."
        )
    for kind in args.workloads or []:
        if not serving[kind]:
            able = [name for name in TECHNIQUES if kind in TECHNIQUES[name]]
            raise ValueError(
                f"The workload {kind} is served by {','.join(able)}, not by {','.join(names)}. "
                "Choose with --techniques."
            )


def in_time(workload: Workload, names: list[str], weights: int) -> tuple[Workload, list[str]]:
    """Leave out what takes minutes, unless it is asked for by name.

    These compute the whole text again for each token: transformers without its cache beyond SHORT
    new tokens, and the naive loop, too, if the model is LARGE.
    """
    slow = set()
    if max(workload.new_tokens) > SHORT:
        slow = {"hf-nocache", "naive"} if weights > LARGE else {"hf-nocache"}
    if workload.reference in slow:
        workload = replace(workload, reference="cached")
    return workload, [name for name in names if name not in slow]


def prepare(bench: Bench, plan: Plan, techniques: Rows) -> dict[tuple[str, str], Prepared]:
    """What will run, by kind of workload and name; the references come along."""

    @functools.cache
    def made(make: Prepare) -> Prepared:
        try:
            return make(bench)
        except NotTimed as reason:
            return Absent(str(reason))

    return {
        (workload.kind, name): made(techniques[name][workload.kind])
        for workload, names in plan
        for name in [workload.reference, *names]
    }


def add_words(
    rows: list[Row], plan: Plan, prepared: dict[tuple[str, str], Prepared], verifier: Verifier
) -> None:
    """Add what each row is, and whether its tokens may differ from the reference's."""
    kinds = {workload.name: workload.kind for workload, _ in plan}
    for row in rows:
        workload, name = row["workload"], row["technique"]
        row["about"] = prepared[kinds[workload], name].about
        row["differs"] = (workload, name) in verifier.differing


def not_timed(plan: Plan, absent: Mapping[str, str], left_out: Mapping[Key, str]) -> dict[str, str]:
    """Which rows are not on the table, or not on all of it, and why."""
    reasons = dict(absent)
    for workload, _ in plan:
        if workload.kind == LENGTHS and workload.reference != "naive":
            reasons["naive"] = (
                f"beyond {SHORT} new tokens it takes minutes with a model of this size. To time it "
                "all the same, name it with --techniques."
            )
    for name, reason in dict.fromkeys((name, reason) for (_, name), reason in left_out.items()):
        places = [w for (w, other), told in left_out.items() if (other, told) == (name, reason)]
        sentence = f"{', '.join(places)}: {reason}"
        reasons[name] = f"{reasons[name]} {sentence}" if name in reasons else sentence
    return reasons


def environment(
    args: argparse.Namespace, plan: Plan, naive_model: GPTLMHead
) -> dict[str, str | int | float | None]:
    prompts = [workload.prompts[0] for workload, _ in plan if workload.kind == LENGTHS]
    return {
        "model": args.model,
        "weight_bytes": weight_bytes(naive_model),
        "dtype": "float32",
        "device": str(args.device),
        "processor": processor_name(args.device),
        "cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "memory_bandwidth_bytes_per_s": memory_bandwidth(args.device),
        "last_level_cache_bytes": last_level_cache(args.device),
        "os": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "products": in_words(args.products.choice_for(weights_of(naive_model))),
        "prompt_tokens": len(prompts[0]) if prompts else None,
        "repeats": args.repeats,
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = new_parser()
    args = parser.parse_args(argv)
    if args.profile:
        require_one_row(parser, args)
    args = with_choice(args)
    set_threads(args.threads)
    args.products = Products(args.products) if args.products else PRODUCTS
    if args.speedrun:
        run_speedrun(parser, args)
        return
    racers: Sequence[str] = RACERS
    if (args.mine or args.race) and not has_solved():
        new_console().print(
            "No exercise of yours has passed its check yet, so `mine` is left out: make lab\n"
        )
        args.mine, racers = False, ("naive", "hf")
    if args.race:
        run_race(parser, args, racers)
        return
    if args.profile:
        run_profile(parser, args)
        return
    with Workers() as workers:
        time_all(parser, args, workers)


def run_race(parser: Parser, args: argparse.Namespace, racers: Sequence[str]) -> None:
    """Each runs alone, verified and warmed up like a row of the table; then they are shown."""
    try:
        folder = find_checkpoint(args.model)
        tokenizer = load_tokenizer(folder)
        [workload] = new_workloads([LENGTHS], folder, [max(args.tokens)])
        bench = Bench(folder, args.device, products=args.products)
        weights = weight_bytes(bench.load(GPTLMHead))
        workload, racers = in_time(workload, list(racers), weights)
        techniques = {name: TECHNIQUES[name][LENGTHS](bench) for name in racers}
    except ValueError as error:
        parser.error(str(error))
    verifier, runs = Verifier(bench.load(GPTLMHead)), {}
    for name in tqdm(racers, leave=False, disable=None):
        verifier.run(workload, name, techniques[name])
        runs[name] = verifier.run(workload, name, techniques[name])
    show_race(new_console(), runs, tokenizer, tokenizer.decode(workload.prompts[0]))


def run_profile(parser: Parser, args: argparse.Namespace) -> None:
    from timing.profile import profiled, show_profile  # imports numba where it is installed

    name, console = args.profile, new_console()
    try:
        folder = find_checkpoint(args.model)
        [workload] = new_workloads([LENGTHS], folder, [max(args.tokens)])
        bench = Bench(folder, args.device, products=args.products)
        found = profiled(name, TECHNIQUES[name], bench, workload)
    except ValueError as error:
        parser.error(str(error))
    except NotTimed as reason:
        parser.error(f"{name} can't be profiled: {reason}")
    show_profile(console, name, found)
    if args.plot:
        from visuals.one_kernel import show_strip  # needs packages that the table doesn't

        picture = show_strip(found.events, 1e3 * found.floor_ms())
        picture.savefig(args.plot, format="png", dpi=150)
        console.print(f"\nThe picture: {args.plot}")


def run_speedrun(parser: Parser, args: argparse.Namespace) -> None:
    if args.device.type != "cpu":
        parser.error("--speedrun runs on the CPU. Leave out --device.")
    if not has_solved():
        parser.error("no exercise of yours has passed its check yet: make lab.")
    file, console = args.json or RECORD, new_console()
    try:
        threads = torch.get_num_threads()
        record, result = speedrun.enter(args.model, speedrun.kept_code(), threads)
        speedrun.show(console, record, result)
        speedrun.write_record(record, file)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    console.print(f"The record is in {file}. docs/records.md says how to enter it.")


def time_all(parser: Parser, args: argparse.Namespace, workers: Workers) -> None:
    absent = {name: why for name, why in missing(args.device.type) if name in args.peers}
    peers = peer_techniques([name for name in args.peers if name not in absent], workers)
    try:
        folder = find_checkpoint(args.model)
        if args.names == STORY and gguf_in(folder) is not None:
            args.names.insert(args.names.index("hf"), "codes")
        bench = Bench(folder, args.device, products=args.products)
        naive_model = bench.load(GPTLMHead)
        plan = new_plan(folder, args, peers, weight_bytes(naive_model))
        prepared = prepare(bench, plan, {**TECHNIQUES, **peers})
    except ValueError as error:
        parser.error(str(error))

    console = new_console()
    found = environment(args, plan, naive_model)
    show_environment(console, found, plan)
    measured = measure_rows(plan, prepared, naive_model, found, args.repeats)
    rows, verifier = measured.rows, measured.verifier
    add_words(rows, plan, prepared, verifier)
    one_prompt = {workload.name for workload, _ in plan if workload.kind == LENGTHS}
    powers = growth([row for row in rows if row["workload"] in one_prompt])

    show_tables(console, plan, rows, verifier)
    show_words(console, plan, rows, prepared)
    left_out = not_timed(plan, absent, measured.left_out)
    show_missing(console, left_out)
    if powers:
        show_growth(console, powers, args.tokens)
    if args.plot:
        light, dark = draw_chart(args.plot, plan, rows, verifier, OTHERS)
        console.print(f"\nThe chart: {light}, and {dark} for a dark page.")
    done = {
        "rows": rows,
        "environment": found,
        "growth": powers,
        "losses": {name: asdict(it.loss) for name, it in verifier.lossy.items() if it.loss},
        "not_timed": left_out,
    }
    line = json.dumps(done)
    if args.json:
        args.json.write_text(line + "\n")
    keep(done)
    print(line)


if __name__ == "__main__":
    main()
