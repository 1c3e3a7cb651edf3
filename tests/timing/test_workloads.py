"""The workloads: the same every time, served in order, and as long as the context allows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt import GPTConfig
from tests.common.timed import prepared
from timing.table import workloads
from timing.table.workloads import CHAT, Workload

pytestmark = pytest.mark.usefixtures("quick")


def test_ragged_requests_are_the_same_every_time_and_mostly_short():
    config = GPTConfig(vocab_size=100)
    workload = workloads.ragged(config)
    assert workload == workloads.ragged(config)
    generator = torch.Generator().manual_seed(0)
    drawn = workloads.log_uniform((8, 128), 10_000, generator)
    assert (min(drawn), max(drawn)) == (8, 128)
    assert sorted(drawn)[5_000] == pytest.approx(32, abs=1)  # the geometric mean of the ends


def test_chats_are_the_same_every_time_and_share_their_system_prompt():
    workload = workloads.chat(GPTConfig(vocab_size=100), 3)
    assert workload == workloads.chat(GPTConfig(vocab_size=100), 3)
    first, *others = workload.prompts[:3]
    assert all(prompt[:16] == first[:16] != prompt[16:] for prompt in others)
    assert [len(prompt) for prompt in workload.prompts] == [16 + 5] * 3 + [5] * 6
    assert len({tuple(prompt) for prompt in workload.prompts}) == 9


CHATTING = "cached", "engine", "prefix"


SAYINGS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=9, max_size=9)


@settings(max_examples=20, deadline=None)
@given(SAYINGS, st.permutations(range(1, 10)))
def test_chats_go_on_from_their_own_answers_in_whatever_order_they_end(tiny, prompts, limits):
    """Three chats of three turns: those with short answers overtake the others."""
    workload = Workload(CHAT, CHAT, "", prompts, limits, turns=3)
    runs = [prepared(name, CHAT, tiny).run(workload) for name in CHATTING]
    texts = runs[0].outputs
    assert workload.longest == max(map(len, texts))
    for number, text in enumerate(texts):
        before = texts[number - 3] if number >= 3 else []
        assert text[: -limits[number]] == before + prompts[number]
    for run in runs:
        assert run.outputs == texts
        assert [len(times) for times in run.token_times] == limits
        assert all(request.ttft > 0 for request in run.metrics(turns=3))


@pytest.mark.parametrize(
    ("kind", "new"),
    [("ragged", "RAGGED_NEW"), ("equal", "EQUAL_NEW"), ("chat", "CHAT_SYSTEM")],
)
def test_a_context_too_short_for_the_requests_is_refused(table, monkeypatch, capsys, kind, new):
    monkeypatch.setattr(workloads, new, (100, 100) if kind == "ragged" else 100)
    with pytest.raises(SystemExit):
        table("--workloads", kind)
    assert f"The workload {kind} needs a context of 1" in capsys.readouterr().err
