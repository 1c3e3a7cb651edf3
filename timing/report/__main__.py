"""Write a report of your engine: one page of HTML to keep or send.

python -m timing.report                writes work/report.html from what has been kept there
python -m timing.report --name "Ada"   puts your name on it
python -m timing.report --time         times your code first, next to the engines installed here
python -m timing.report --out FILE     writes it elsewhere
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence

from autograder.text.reference import ROOT
from timing.command_line import Parser, writable_file
from timing.peers.catalogue import PEERS, missing
from timing.report import write_report


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(
        prog="timing.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--name", help="your name, for the top of the page (none)")
    parser.add_argument("--time", action="store_true", help="time your code first")
    parser.add_argument("--out", type=writable_file, metavar="FILE", help="(work/report.html)")
    args = parser.parse_args(argv)
    if args.time and subprocess.run(timing(), cwd=ROOT).returncode:
        parser.error("timing has failed, for the reason above, so no report was written.")
    try:
        write_report(args.out, args.name)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    where = args.out or "work/report.html"
    print(f"Your report is in {where}. Open it in a browser; it needs no other file.")


def timing() -> list[str]:
    """Return the command that times the learner's code and every engine that is installed."""
    absent = dict(missing("cpu"))
    installed = ",".join(name for name in PEERS if name not in absent)
    return [sys.executable, "timed_generate.py", "--mine", f"--peers={installed}"]


if __name__ == "__main__":
    main()
