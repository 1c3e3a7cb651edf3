"""Its row: how much of the chats is found in the cache."""

import pytest

from gpt import GPTConfig, read_config
from solutions.kv_cache import kv_bytes_per_token
from tests.common.checkpoints import write_tiny
from tests.common.timed import broken, prepared, rows_of
from timing.table import BLOCK_SIZE, workloads
from timing.table.workloads import CHAT

pytestmark = pytest.mark.usefixtures("quick")


WHOLE_CHAT = workloads.chat(GPTConfig(vocab_size=4096), workloads.CHATS)


def test_of_48_turns_the_prefix_cache_finds_what_the_readme_says(tmp_path):
    write_tiny(tmp_path, n_positions=WHOLE_CHAT.longest, n_embd=32)
    run = prepared("prefix", CHAT, tmp_path).run(WHOLE_CHAT)
    # A step has room for the first turns of two chats and for 16 tokens of a third one's. The other
    # five come when the system prompt is known.
    found = 5 * 96
    found += sum(8 * ((120 + 56 * turn + 31) // 16 * 16) for turn in range(5))
    assert (run.notes["queried"], run.notes["hits"]) == (12_480, found) == (12_480, 10_592)
    # The last token of each answer is never computed.
    assert run.tokens_computed == 12_480 - found + 48 * 31
    assert run.notes["preemptions"] == 0


def test_what_was_found_is_counted_and_told(table, tiny):
    printed, result = table("--workloads", "chat,ragged", "--techniques", "cached,engine,prefix")
    rows, ragged = rows_of(result, "chat"), rows_of(result, "ragged")
    prompts, answers, found = 3 * (21 + 30 + 39), 9 * 3, 3 * (16 + 32)
    assert rows["engine"]["tokens_computed"] == prompts + answers
    assert rows["prefix"]["tokens_computed"] == prompts + answers - found
    for key in ("kv_bytes", "kv_bytes_reserved"):  # of all three chats at their ends
        blocks = 3 * 3 * BLOCK_SIZE
        assert rows["engine"][key] == blocks * kv_bytes_per_token(read_config(tiny))
    assert rows["engine"]["hits"] is rows["cached"]["hits"] is None
    assert "prefix, chat: 144 of 270 prompt tokens found in the prefix cache" in printed
    assert "prefix, ragged: 0 of" in printed
    assert ragged["prefix"]["tokens_computed"] == ragged["engine"]["tokens_computed"]


def alike(ids: list[int], size: int, salt: bytes) -> list[bytes]:
    """Hashes that take every text for any other of its length."""
    return [bytes([number]) for number in range(len(ids) // size)]


def test_hashes_that_are_all_alike_are_never_timed(assert_stopped):
    assert_stopped("prefix", CHAT, broken("prefix_caching", block_hashes=alike))
