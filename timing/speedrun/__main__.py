"""Run the code of a record again, and compare its score with the one that the record claims.

    python -m timing.speedrun check docs/records/reference.json

The code of a record is run as any program of yours: read it first. The exit status is 1 if the
record isn't confirmed.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from timing.command_line import Parser, new_console, thread_count
from timing.speedrun.record import enter, read_record, require_weights, show, verdict
from timing.threads import set_threads


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(
        prog="timing.speedrun",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    check = commands.add_parser("check", help="run a record again")
    check.add_argument("file", type=Path, metavar="FILE")
    check.add_argument("--threads", type=thread_count, help="one for each usable core")
    args = parser.parse_args(argv)
    set_threads(args.threads)
    try:
        record = read_record(args.file)
        require_weights(record, args.file, record["model"])
        again, result = enter(record["model"], record["code"], torch.get_num_threads())
    except ValueError as error:
        parser.error(str(error))
    console = new_console()
    show(console, again, result)
    confirmed, sentence = verdict(record, again)
    console.print(sentence)
    sys.exit(not confirmed)


if __name__ == "__main__":
    main()
