"""Lab 20: no case hides a slip that people have made."""

import torch

from autograder.exercises import exercises
from tests.common.trials import cases_of, seeds


@seeds
def test_groups_and_heads_are_never_ones_that_hide_a_wrong_order(seed: int) -> None:
    """One KV head is right by broadcasting, and four rows are their own permutation."""
    cases = [case.data for case in cases_of(exercises()["llama.attend_in_groups"], seed)]
    groups = {(c["keys"].shape[1], c["queries"].shape[1] // c["keys"].shape[1]) for c in cases}
    assert {(2, 2), (2, 3), (3, 2), (3, 3)} <= groups
    for case in (case.data for case in cases_of(exercises()["llama.from_gguf"], seed)):
        rows = case["tensors"]["blk.0.attn_q.weight"].shape[0]
        assert rows // case["heads"] >= 6


@seeds
def test_each_nibble_is_at_each_place(seed: int) -> None:
    for kind in ("Q4_0", "Q4_1"):
        cases = cases_of(exercises()["llama.dequantize"], seed)
        raw = torch.cat([c.data["raw"][:, -16:] for c in cases if c.data["kind"] == kind])
        for place in range(16):
            for half in (raw[:, place] & 15, raw[:, place] >> 4):
                assert len(half.unique()) == 16


@seeds
def test_what_users_write_has_the_names_of_control_tokens(seed: int) -> None:
    chats = [case.data["messages"] for case in cases_of(exercises()["llama.chat_ids"], seed)]
    contents = {message["content"] for chat in chats for message in chat}
    assert sum("<|im_" in content for content in contents) >= 4
    assert "" in contents
    assert any(content.startswith("\n") for content in contents)
