"""The map of the field is what its data says, and every mark in it has a dated source."""

import re

import pytest

from docs.survey import DATA, DOCS, PAGE, page, read_survey

SURVEY = """
checked: 2026-01-31
survey: {title: A survey, date: 2025-05-03, url: "https://example.org/survey"}
techniques:
  - id: paged
    name: paged KV cache
    column: PagedAttention
    group: memory
    lab: paged_attention
    exercises: [paged_attention.BlockManager.free]
  - {id: kv, name: KV cache, group: memory, lab: kv_cache, only: all have it}
  - id: medusa
    name: Medusa
    group: decoding
    about: Several heads guess several tokens.
    source: {title: Cai et al., date: 2024-01-19, url: "https://example.org/medusa"}
choices:
  - users: one
    hardware: a laptop
    models: small ones
    network: any
    needs: [medusa]
    engines: {one: it is small}
engines:
  - id: one
    name: One
    kind: engine
    url: https://example.org/one
    about: An engine.
    sources:
      readme: {title: README, date: 2025-12-24, url: "https://example.org/readme"}
    marks:
      paged: {source: readme, note: in blocks of 16, survey: "no"}
      medusa: {source: readme, value: partly}
"""


def test_the_page_is_made_from_the_data():
    made = page(read_survey(DATA.read_text(encoding="utf-8")))
    assert PAGE.read_text(encoding="utf-8") == made, "Run: .venv/bin/python -m docs.survey"


def test_every_file_and_heading_that_the_page_links_to_exists():
    text = PAGE.read_text(encoding="utf-8")
    files = re.findall(r"(?:\]\(|\]: )(\.\./[^) ]+)", text)
    assert len(files) > 20
    assert [file for file in files if not (DOCS / file).exists()] == []
    headings = {
        re.sub(r"[^a-z0-9-]", "", heading.lower().replace(" ", "-"))
        for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= headings


def test_a_mark_links_to_its_source_and_a_technique_to_its_lab_or_paragraph():
    made = page(read_survey(SURVEY))
    assert "[paged KV cache](../labs/04_paged_attention/paged_attention.ipynb)" in made
    assert "[Medusa](#medusa)" in made
    assert "| [One](#one) | [partly][one readme] |" in made
    assert "| [KV cache]" not in made
    assert "| PagedAttention | [paged KV cache](../labs/04_paged_attention/" in made
    assert "| `paged_attention.BlockManager.free` | One: no, but [yes][one readme] |" in made
    assert "| one | a laptop | small ones | any | [One](#one): it is small | Medusa |" in made
    assert '[one readme]: https://example.org/readme "README, 2025-12-24"' in made
    assert "2025-12-24: paged KV cache (in blocks of 16); Medusa" in made


WRONG = {
    "a mark without a source": (
        "source: readme, note",
        "note",
        "The mark paged of One has no source. Name one of its engine's sources",
    ),
    "an unknown source": ("paged: {source: readme", "paged: {source: blog", "has no source"),
    "an unknown technique": ("paged: {source", "radix: {source", "is for an unknown technique"),
    "an unknown value": ("value: partly", "value: perhaps", "Use one of: yes, partly, experiment"),
    "a source without a date": ("date: 2025-12-24, ", "", "The source readme of One needs a date"),
    "half a date": ("2025-12-24", "2025-12", "needs a date like 2026-01-31"),
    "a date after the check": ("2025-12-24", "2026-02-01", "not after `checked`"),
    "a source without an address": (', url: "https://example.org/readme"', "", "a title and a url"),
    "a lab and a paragraph": ("    about: S", "    lab: engine\n    about: S", "not both"),
    "neither": ("    lab: paged_attention\n", "", "either a lab or a paragraph"),
    "a lab that doesn't exist": ("lab: paged_attention", "lab: magic", "doesn't exist: magic"),
    "an exercise that doesn't exist": ("Manager.free", "Manager.buy", "attention.BlockManager.buy"),
    "a column without exercises": ("    exercises: [p", "    sizes: [p", "needs its exercises"),
    "a choice without its mark": ("needs: [medusa]", "needs: [kv]", "has not: ['kv']"),
    "a choice of nothing": ("{one: it", "{two: it", "the engine two, which isn't here"),
    "a paragraph without a source": ("    source: {title: Cai", "    sauce: {title: Cai", "Medusa"),
}


@pytest.mark.parametrize(("right", "wrong", "sentence"), WRONG.values(), ids=WRONG)
def test_wrong_data_is_refused_with_a_sentence(right, wrong, sentence):
    assert right in SURVEY
    with pytest.raises(ValueError, match="(?i)" + re.escape(sentence)):
        read_survey(SURVEY.replace(right, wrong, 1))
