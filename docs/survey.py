"""Make docs/survey.md, the map of the field, from docs/survey.yml: `python -m docs.survey`."""

import re
from collections.abc import Iterator
from datetime import date
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from autograder.exercises import exercises

DOCS = Path(__file__).resolve().parent
DATA, PAGE = DOCS / "survey.yml", DOCS / "survey.md"
VALUES = ("yes", "partly", "experimental")
QUESTIONS = {  # of the choices, as they are asked
    "users": "How many users?",
    "hardware": "On which hardware?",
    "models": "Which models?",
    "network": "Offline?",
}

INTRO = """\
# Which engine has which technique

A mark says what its source says, and links to it. It reads *yes*, *partly*, *experimental*, or
names the formats; its tooltip has the source's date. **An empty cell means that we found no
source, not that the engine can't do it.** The sources were read until {checked}, and engines change
every week.

The name of a technique leads to the lab that builds it, or to a paragraph below. The map began from
the table of 25 engines and 23 techniques in [{title}]({url}), {date}: all of them are here.

This page is made from [survey.yml](survey.yml). To correct it, change that file and run
`.venv/bin/python -m docs.survey`. Every mark needs a source with a date: a paper, or the
documentation or code of one version.
"""


# ----------------------------------------------------------------------------------------- the data


def read_survey(text: str) -> dict[str, Any]:
    """Parse the text of survey.yml; raise ValueError with everything that is wrong in it."""
    survey = yaml.safe_load(text)
    wrong = [*wrong_techniques(survey), *wrong_engines(survey), *wrong_choices(survey)]
    if wrong:
        raise ValueError("\n".join(wrong))
    return survey


def wrong_techniques(survey: dict[str, Any]) -> Iterator[str]:
    for technique in survey["techniques"]:
        name = f"The technique {technique['id']}"
        if ("lab" in technique) == ("about" in technique):
            yield f"{name} needs either a lab or a paragraph (about), not both."
        if "lab" in technique and not notebooks(technique["lab"]):
            yield f"{name} names a lab that doesn't exist: {technique['lab']}."
        for exercise in technique.get("exercises", []):
            if exercise not in exercises():
                yield f"{name} names an exercise that doesn't exist: {exercise}."
        if "column" in technique and not ({"exercises", "about"} & technique.keys()):
            yield f"{name}, a column of the survey's table, needs its exercises."
        if "about" in technique:
            yield from wrong_source(technique.get("source"), name, survey["checked"])


def wrong_engines(survey: dict[str, Any]) -> Iterator[str]:
    known = {technique["id"] for technique in survey["techniques"]}
    for engine in survey["engines"]:
        for key, source in engine["sources"].items():
            name = f"The source {key} of {engine['name']}"
            yield from wrong_source(source, name, survey["checked"])
        for key, mark in engine["marks"].items():
            name = f"The mark {key} of {engine['name']}"
            if key not in known:
                yield f"{name} is for an unknown technique. Add it to techniques, or correct it."
            if mark.get("source") not in engine["sources"]:
                yield f"{name} has no source. Name one of its engine's sources, or remove the mark."
            if mark.get("value", "yes") not in VALUES:
                yield f"{name} has the value {mark['value']}. Use one of: {', '.join(VALUES)}."


def wrong_choices(survey: dict[str, Any]) -> Iterator[str]:
    engines = {engine["id"]: engine for engine in survey["engines"]}
    for choice in survey["choices"]:
        for engine in choice["engines"]:
            if engine not in engines:
                yield f"A choice names the engine {engine}, which isn't here."
            elif missing := set(choice["needs"]) - engines[engine]["marks"].keys():
                yield f"A choice of {engine} needs marks that it has not: {sorted(missing)}."


def wrong_source(source: Any, name: str, checked: date) -> Iterator[str]:
    source = source or {}
    if not source.get("title") or not source.get("url"):
        yield f"{name} needs a source with a title and a url."
    when = source.get("date")
    if not isinstance(when, date) or when > checked:
        yield f"{name} needs a date like 2026-01-31, not after `checked`, which is {checked}."


def notebooks(lab: str) -> list[Path]:
    """Find the notebook of a lab: one path, or none if there is no such lab."""
    return list(DOCS.parent.glob(f"labs/[0-9]*_{lab}/{lab}.ipynb"))


# ----------------------------------------------------------------------------------------- the page


def page(survey: dict[str, Any]) -> str:
    techniques, engines = survey["techniques"], survey["engines"]
    parts = [INTRO.format(checked=survey["checked"], **survey["survey"])]
    parts.append(f"## What would I use?\n\n{choices(survey)}")
    shown = [technique for technique in techniques if "only" not in technique]
    for group, members in groupby(shown, key=lambda technique: technique["group"]):
        parts.append(f"## {group.capitalize()}\n\n{table(list(members), engines)}")
    parts.append(f"## The survey's 23 columns\n\n{columns(survey)}")
    parts.append("## Techniques without a lab\n")
    parts += [paragraph(technique) for technique in techniques if "about" in technique]
    parts.append("## The engines and their sources\n")
    names = {technique["id"]: technique["name"] for technique in techniques}
    parts += [said_by_source(engine, names) for engine in engines]
    return "\n".join([*parts, *map(references, engines)]) + "\n"


def table(techniques: list[dict[str, Any]], engines: list[dict[str, Any]]) -> str:
    """Make one row for each engine and one column for each technique."""
    rows = [["", *map(heading, techniques)]]
    for engine in engines:
        cells = [cell(engine, technique["id"]) for technique in techniques]
        rows.append([f"[{engine['name']}](#{anchor(engine['name'])})", *cells])
    return grid(rows)


def grid(rows: list[list[str]]) -> str:
    rows = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def choices(survey: dict[str, Any]) -> str:
    """Make one row for each answer to the four questions, with engines and the reason for each."""
    named = {engine["id"]: engine["name"] for engine in survey["engines"]}
    rows = [[*QUESTIONS.values(), "Then look at", "which all have"]]
    for choice in survey["choices"]:
        engines = [
            f"[{named[key]}](#{anchor(named[key])}): {reason}"
            for key, reason in choice["engines"].items()
        ]
        techniques = [t["name"] for t in survey["techniques"] if t["id"] in choice["needs"]]
        answers = [choice[question] for question in QUESTIONS]
        rows.append([*answers, "; ".join(engines), ", ".join(techniques)])
    return grid(rows)


def columns(survey: dict[str, Any]) -> str:
    """List how the survey names each of its techniques, and the exercises that build it."""
    rows = [
        ["in the survey", "here", "exercises, each with its check", "in its table, today not so"]
    ]
    for technique in survey["techniques"]:
        if "column" in technique:
            here = heading(technique)
            if "only" in technique:
                here += f": no column, because {technique['only']}"
            ids = [f"`{exercise}`" for exercise in technique.get("exercises", [])]
            rows.append(
                [
                    technique["column"],
                    here,
                    ", ".join(ids),
                    "; ".join(differing(technique, survey["engines"])),
                ]
            )
    return grid(rows)


def differing(technique: dict[str, Any], engines: list[dict[str, Any]]) -> Iterator[str]:
    """Say which mark the survey gives an engine, where today's source says something else."""
    for engine in engines:
        mark = engine["marks"].get(technique["id"], {})
        if "survey" in mark:
            yield f"{engine['name']}: {mark['survey']}, but {cell(engine, technique['id'])}"


def heading(technique: dict[str, Any]) -> str:
    if "about" in technique:
        return f"[{technique['name']}](#{anchor(technique['name'])})"
    [notebook] = notebooks(technique["lab"])
    return f"[{technique['name']}](../{notebook.relative_to(DOCS.parent).as_posix()})"


def cell(engine: dict[str, Any], technique: str) -> str:
    mark = engine["marks"].get(technique)
    if not mark:
        return ""
    text = mark.get("formats") or mark.get("value", "yes")
    return f"[{text}][{engine['id']} {mark['source']}]"


def anchor(title: str) -> str:
    """Return the name that GitHub gives to a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def paragraph(technique: dict[str, Any]) -> str:
    source = technique["source"]
    link = f"[{source['title']}]({source['url']}), {source['date']}"
    return f"### {technique['name']}\n\n{technique['about']}\n\n{link}.\n"


def said_by_source(engine: dict[str, Any], names: dict[str, str]) -> str:
    """Describe an engine in a sentence, and list what each of its sources says that it has."""
    link = f"[{engine['name']}]({engine['url']})"
    lines = [f"### {engine['name']}\n", f"{link} ({engine['kind']}): {engine['about']}\n"]
    for key, source in engine["sources"].items():
        said = [
            names[technique] + (f" ({mark['note']})" if "note" in mark else "")
            for technique, mark in engine["marks"].items()
            if mark["source"] == key
        ]
        link = f"[{source['title']}][{engine['id']} {key}]"
        lines.append(f"- {link}, {source['date']}: {'; '.join(said)}")
    return "\n".join(lines) + "\n"


def references(engine: dict[str, Any]) -> str:
    """Define the links to an engine's sources, with their tooltips."""
    return "\n".join(
        f'[{engine["id"]} {key}]: {source["url"]} "{source["title"]}, {source["date"]}"'
        for key, source in engine["sources"].items()
    )


if __name__ == "__main__":
    PAGE.write_text(page(read_survey(DATA.read_text(encoding="utf-8"))), encoding="utf-8")
