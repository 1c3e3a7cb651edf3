"""Grading a class, from the command line.

    python -m autograder grade LAB       grade all submissions for a lab in submitted/
    python -m autograder report LAB      which exercises were hard, which mistakes were frequent
    python -m autograder collect FILE    put a learning platform's download into submitted/
    python -m autograder release LAB     make a bundle of a lab for a class
    python -m autograder speedrun FOLDER compare the speed of a class's engines, from their records
    python -m autograder demo            make a small class and grade it: the two-minute tour
    python -m autograder certificates    make a key and certificate for grading on a cluster

Name a lab as kv_cache, 02_kv_cache or 2. autograder/README.md explains every command.
"""

import argparse
import sys
from pathlib import Path

from autograder.grading import commands, demo, speedrun
from autograder.grading.judge.jail import JailError
from autograder.grading.refused import GOES_ON, Refused
from autograder.text.lesson import Lesson, lessons


def main(arguments: list[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    try:
        return given.command(given)
    except (JailError, Refused) as refusal:
        print(refusal, file=sys.stderr)
        return 1
    except OSError as error:
        what = error.filename or "A file"
        see = "Check that it exists, that you may read and write it, and that its disk has room."
        print(f"{what}: {error.strerror or error}. {see} {GOES_ON}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\nStopped. {GOES_ON}")
        return 130


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(
        prog="python -m autograder",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    each = whole.add_subparsers(required=True, metavar="COMMAND")

    grade = each.add_parser("grade", help="grade the submissions for a lab")
    grade.set_defaults(command=commands.grade)
    grade.add_argument("lab", type=lesson, metavar="LAB")
    grade.add_argument("--student", help="grade only this student, again if already graded")
    where = grade.add_mutually_exclusive_group()
    where.add_argument(
        "--jobs", type=positive, default=1, help="number of processes on this machine (default: 1)"
    )
    where.add_argument(
        "--scheduler", metavar="ADDRESS", help="grade on a Dask cluster, such as tls://host:8786"
    )
    grade.add_argument(
        "--unsandboxed",
        action="store_true",
        help="run students' code with your rights, without a sandbox; every report says so",
    )

    report = each.add_parser("report", help="report hard exercises and frequent mistakes")
    report.set_defaults(command=commands.report)
    report.add_argument("lab", type=lesson, metavar="LAB")

    collect = each.add_parser("collect", help="put a platform's download into submitted/")
    collect.set_defaults(command=commands.collect)
    collect.add_argument("file", type=Path, metavar="FILE.zip")
    collect.add_argument("--lab", type=lesson, help="the lab, if the files' names don't say it")

    release = each.add_parser("release", help="make a bundle of a lab for a class")
    release.set_defaults(command=commands.release)
    release.add_argument("lab", type=lesson, metavar="LAB")
    release.add_argument(
        "--out",
        type=Path,
        metavar="FILE.zip",
        help="the file to write (default: 02_kv_cache.zip here)",
    )

    race = each.add_parser("speedrun", help="compare the speed of a class's engines")
    race.set_defaults(command=speedrun.speedrun)
    race.add_argument("folder", type=Path, metavar="FOLDER", help="with a record of each student")
    race.add_argument("--threads", type=positive, help="one for each usable core")

    tour = each.add_parser("demo", help="make a small class and grade it")
    tour.set_defaults(command=demo.run)
    tour.add_argument("--jobs", type=positive, default=2, help="number of processes (default: 2)")

    certificates = each.add_parser("certificates", help="make a key and certificate for a cluster")
    certificates.set_defaults(command=commands.certificates)
    return whole


def lesson(name: str) -> Lesson:
    """Find a lab by its name, its folder's name or its number."""
    for found in lessons().values():
        number = found.name.split("_")[0]
        if name in (found.lab, found.name, number, number.lstrip("0")):
            return found
    known = ", ".join(found.name for found in lessons().values())
    raise argparse.ArgumentTypeError(f"there is no lab {name!r}; the labs are {known}")


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, not {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
