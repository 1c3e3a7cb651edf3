"""How soon each turn of a chat is answered: what the command runs, counts and prints."""

import re

import pytest

from gpt import GPTConfig
from solutions.prefix_caching import PrefixManager
from tests.common.checkpoints import write_tiny
from tests.common.commands import resize, table_in
from timing import turns
from timing.table import workloads
from timing.table.workloads import Workload

SIZES = {"CHATS": 3, "CHAT_TURNS": 3, "CHAT_SYSTEM": 16, "CHAT_QUESTION": 5, "CHAT_ANSWER": 4}
DISTINCT = {"DISTINCT_REQUESTS": 4, "DISTINCT_PROMPT": 40, "DISTINCT_NEW": 2}


@pytest.fixture(autouse=True)
def quick(tmp_path, monkeypatch):
    """A small model, short chats, few repeats."""
    write_tiny(tmp_path, n_positions=64, n_embd=32)
    resize(monkeypatch, workloads, **SIZES)
    resize(monkeypatch, turns, MODEL=str(tmp_path), REPEATS=2, **DISTINCT)


def test_every_turn_has_a_row_with_both_times(capsys):
    turns.main()
    printed = capsys.readouterr().out
    environment, alone, together, distinct = re.split(r"\n\n(?=[A-Z\d])", printed)
    assert "threads: " in environment
    assert "Medians of 2 interleaved repeats" in environment
    assert alone.startswith("A single chat: TTFT in ms. prefix found 48 of 90 prompt tokens.")
    assert together.startswith("3 chats at the same time: TTFT in ms. prefix found 144 of 270 ")
    for table in (alone, together):
        _, *rows = table_in(table)
        assert [row[:2] for row in rows] == [["1", "21"], ["2", "30"], ["3", "39"]]
        for _, _, engine, prefix, ratio in rows:
            for times in (engine, prefix):
                middle, least, most = map(float, re.findall(r"[\d.]+", times))
                assert 0 <= least <= middle <= most
            assert float(ratio) > 0
    assert distinct.startswith("Distinct prompts (4 prompts of 40 tokens, 2 new): ")
    assert re.search(r"\nIts hashes: \d+\.\d\d µs per prompt token\.\n$", distinct)


def test_distinct_prompts_have_no_block_in_common():
    config, manager = GPTConfig(vocab_size=4096), PrefixManager(4 * 40, 1)
    workload = turns.distinct(config)
    assert [len(prompt) for prompt in workload.prompts] == [40] * 4
    for number, prompt in enumerate(workload.prompts):
        assert manager.admit(number, prompt) == 0
        manager.publish(number, prompt, len(prompt))


def test_the_ratio_is_of_each_repeat_by_itself():
    assert turns.ratios([2.0, 30.0, 4.0], [1.0, 10.0, 1.0]) == [2, 3, 4]
    assert turns.spread([0.002, 0.0301, 0.004]) == "4.0 (2.0-30.1)"


def test_a_technique_that_writes_other_texts_is_refused(monkeypatch):
    class Forgetful(PrefixManager):
        """It claims to have computed a block that it has not."""

        def admit(self, *given, **named) -> int:
            return max(16, super().admit(*given, **named))

    monkeypatch.setattr("solutions.prefix_caching.PrefixManager", Forgetful)
    with pytest.raises(SystemExit, match="Stopped: prefix does not generate"):
        turns.main()


def test_a_turn_s_prompt_is_all_before_it_and_its_question():
    prompts = [[1] * 7, [1] * 7, [2], [2], [3, 3], [3, 3]]
    workload = Workload("chat", "", "", prompts, [4] * 6, turns=3)
    assert [turns.prompt_tokens(workload, turn) for turn in range(3)] == [7, 12, 18]
