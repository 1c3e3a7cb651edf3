"""Build the course's site: `make site`, or `python -m docs.site`.

The site is static: open site/index.html, or publish the folder. Every lab is on it as a student
gets it, with the pictures and outputs of the solved notebook. A site that holds a line of a
solution is refused. What a notebook showed is kept in build/ until something that it uses changes.
If a cell fails, that lab's page has no outputs, and the command ends with status 1.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

from autograder.text.lesson import lessons
from autograder.text.reference import ROOT, AuthorError
from docs.site.built import build
from docs.site.notebooks import executed

BUILD, SITE = ROOT / "build" / "site", ROOT / "site"


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the course's site in site/.")
    parser.add_argument(
        "--with-solutions", action="store_true", help="add the reference, for instructors"
    )
    with_solutions = parser.parse_args().with_solutions
    start = time.perf_counter()
    try:
        solved = executed(lessons().values())
        print(f"Building the pages, after {time.perf_counter() - start:.0f} s.", flush=True)
        html = build(BUILD, solved, with_solutions)
        replace(SITE, html)
    except AuthorError as refusal:
        print(refusal, file=sys.stderr)
        return 1
    files = [path for path in SITE.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 1e6
    print(f"site/index.html, after {time.perf_counter() - start:.0f} s: {size:.0f} MB in all.")
    failed = [lesson.name for lesson in lessons().values() if lesson.name not in solved]
    if failed:
        print(f"Without outputs, because a cell failed: {', '.join(failed)}.", file=sys.stderr)
    return 1 if failed else 0


def replace(site: Path, html: Path) -> None:
    """Move a new site to its place. Raises AuthorError if what is there was no site."""
    if site.exists() and not (site / "objects.inv").exists():
        raise AuthorError(f"{site} was not written by this command. Move it away, and build again.")
    shutil.rmtree(site, ignore_errors=True)
    html.rename(site)


if __name__ == "__main__":
    sys.exit(main())
