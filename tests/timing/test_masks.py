"""The command that compares lab 14's masks with those of other libraries."""

import sys
from functools import partial

import pytest
import torch

from tests.common.commands import resize, table_in
from timing.peers import masks

SIZES = {"ROUNDS": 1, "SEEDS": 3, "PATTERNS": {"number": (r"-?[0-9](\.[0-9]+)?", ["-1.5"])}}


def one_more(text: str, tokenizer) -> masks.Library:
    """Lab 14's masks in packed bits, and with one token that is allowed everywhere."""
    [token], vocabulary = tokenizer(text).input_ids, masks.vocabulary_bytes(tokenizer)
    eos = tokenizer.eos_token_id

    def guide(regex):
        return masks.IndexGuide(masks.automaton_of(regex), vocabulary, eos)

    def fill(request, row) -> None:
        mask = request.guide.allowed(request.state).clone()
        mask[token] = True
        row[0] = (mask.view(-1, 32).long() << torch.arange(32)).sum(1)  # the lowest bit first

    return masks.own(guide)._replace(fill=fill, packed=True)


@pytest.fixture
def run(monkeypatch, capsys):
    def printed(**peers) -> str:  # these and ours, as if no library were installed
        for package in ("outlines_core", "llguidance", "xgrammar"):
            monkeypatch.setitem(sys.modules, package, None)
        resize(monkeypatch, masks, PEERS=peers or masks.PEERS, **SIZES)
        masks.main()
        return capsys.readouterr().out

    return printed


def test_without_other_libraries_the_table_has_ours_and_says_how_to_install_them(run):
    out = run()
    assert out.count(f"To install it: {masks.INSTALL}") == len(masks.PEERS)
    assert [row[4].split()[0] for row in table_in(out)[1:]] == ["0", "0"]


@pytest.mark.parametrize(("text", "shown"), [("a", "b'a'"), ("<|endoftext|>", "EOS")])
def test_a_token_too_many_is_found_and_named(run, text, shown):
    out = run(torch=partial(one_more, text))  # an installed package, because its version is shown
    assert not table_in(out)[-1][4].startswith("0 of ")
    assert f"only it allows {shown} after b''" in out
