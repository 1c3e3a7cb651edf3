"""The tokenizer: it cuts, learns, encodes and decodes as tokenizers does, id for id."""

import json
import os
import unicodedata
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers

from gpt import SHIPPED, load_tokenizer
from solutions.decoding import decoded
from solutions.engine.sequence import stop_at_text
from solutions.tokenizer import (
    BYTE_CHARS,
    OwnTokenizer,
    StreamDecoder,
    byte_ids,
    bytes_of,
    count_pairs,
    count_words,
    decode,
    encode,
    from_printable,
    join_by_rank,
    merge,
    pre_tokenize,
    printable,
    read_tokenizer,
    train,
    train_fast,
    with_merges,
)

FILE = SHIPPED / "fable" / "tokenizer.json"
FABLE, THEIRS = read_tokenizer(FILE), tokenizers.Tokenizer.from_file(str(FILE))
TRANSFORMERS = load_tokenizer("fable")
HELD_OUT = (SHIPPED / "text" / "held_out.txt").read_text(encoding="utf-8")
END = "<|endoftext|>"

# Letters, emoji and white space of all sorts, and pieces whose neighbors change where a word ends.
NASTY = (
    *(" ", "  ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\x1c", "\x85", "\u200b"),
    *("'s", "'S", "'ll", "'", "’s", "_", "-", "…", "½", "10²", "٣", "Ⅷ", "7"),
    *("é", "e\u0301", "ẞ", "naïve", "中文", "עברית", "ﷺ", "\u200d", "\ufffd", "\x00"),
    *("👑", "👩‍👩‍👧", "🏳️‍🌈", "👍🏽", "the king", " Rumpelstiltskin", END, "<|", "|>"),
)


def is_old(char: str) -> bool:
    """Tell whether a character is in Unicode 3.2: newer ones aren't known to every library."""
    return unicodedata.ucd_3_2_0.category(char) != "Cn"


CHARS = st.characters(exclude_categories=["Cs"]).filter(is_old)
TEXTS = st.lists(st.sampled_from(NASTY) | CHARS, max_size=12).map("".join)
SMALL_TEXTS = st.text("aab bc\n", max_size=60)


# ------------------------------------------------------------------------------- files and bytes


def test_every_byte_has_a_character_of_its_own_that_can_be_seen():
    assert sorted(BYTE_CHARS) == [*range(256)]
    assert len(set(BYTE_CHARS.values())) == 256
    assert all(char.isprintable() and not char.isspace() for char in BYTE_CHARS.values())
    assert set(BYTE_CHARS.values()) == set(pre_tokenizers.ByteLevel.alphabet())


@given(st.binary())
def test_what_a_file_writes_for_a_token_gives_the_token(token):
    assert from_printable(printable(token)) == token
    assert printable(b" king\n") == "ĠkingĊ"


def test_the_shipped_file_holds_the_alphabet_and_what_the_merges_make():
    assert FABLE.special == {END: 0}
    written = {printable(token): number for token, number in FABLE.ids.items()}
    assert written | FABLE.special == THEIRS.get_vocab()
    assert list(FABLE.ranks.values()) == [*range(3839)]
    assert with_merges(list(FABLE.ranks), byte_ids(1), {END: 0}) == FABLE
    with pytest.raises(ValueError, match="Two tokens have the same id"):
        with_merges(list(FABLE.ranks), byte_ids(), {END: 0})


def written(folder: Path, **changes: Any) -> Path:
    """Write the shipped file with other values, by their keys or by those of its model."""
    content = json.loads(FILE.read_text(encoding="utf-8"))
    for key, value in changes.items():
        (content if key in content else content["model"])[key] = value
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_merges_in_the_form_of_older_files_are_read(tmp_path):
    merges = [" ".join(map(printable, pair)) for pair in FABLE.ranks]
    assert read_tokenizer(written(tmp_path, merges=merges)) == FABLE


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"type": "WordPiece"}, "doesn't cut text as GPT-2 does"),
        ({"normalizer": {"type": "NFC"}}, "no normalizer"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, "prefix space"),
        ({"pre_tokenizer": None}, "ByteLevel"),
        ({"vocab": {"!": 1}}, "no token for 255 bytes"),
        ({"vocab": {"▁the": 1}}, "KeyError: '▁'"),
        ({"merges": 3}, "TypeError"),
    ],
)
def test_another_kind_of_tokenizer_is_refused(changes, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        read_tokenizer(written(tmp_path, **changes))


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b"\xff"])
def test_a_file_that_is_no_tokenizer_is_refused(content, tmp_path):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match=r"file is not a tokenizer .*Download it again"):
        read_tokenizer(tmp_path / "file")


# ---------------------------------------------------------------------------------- ids to text


@given(st.lists(st.integers(0, 4095)))
def test_ids_become_the_text_that_tokenizers_gives(ids):
    assert decode(ids, FABLE.token_bytes) == THEIRS.decode(ids, skip_special_tokens=False)


def test_an_unknown_id_is_refused():
    with pytest.raises(ValueError, match="There is no token 4096: this tokenizer has 4096 tokens"):
        decode([5, 4096], FABLE.token_bytes)
    with pytest.raises(ValueError, match="no token 4096"):
        StreamDecoder(FABLE.token_bytes).push(4096)


# --------------------------------------------------------------------------------- text to words


@given(TEXTS)
def test_words_are_cut_where_tokenizers_cuts_them_and_nothing_is_lost(text):
    words = pre_tokenize(text)
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    assert [printable(word.encode()) for word in words] == [word for word, _ in cut]
    assert "".join(words) == text
    assert all(pre_tokenize(word) == [word] for word in words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The king's  gold.", ["The", " king", "'s", " ", " gold", "."]),
        ("I'LL 'tis", ["I", "'", "LL", " '", "tis"]),
        ("a_b 10² x\n\n y \n", ["a", "_", "b", " 10²", " x", "\n\n", " y", " \n"]),
        ("", []),
    ],
)
def test_words_have_their_space_before_them(text, words):
    assert pre_tokenize(text) == words


# -------------------------------------------------------------------------------------- training


@pytest.mark.parametrize(
    ("word", "pair", "merged"),
    [
        ("a a a", "a a", "aa a"),
        ("a a a a", "a a", "aa aa"),
        ("a b ab a b", "a b", "ab ab ab"),
        ("ab c a bc", "a bc", "ab c abc"),
        ("", "a b", ""),
    ],
)
def test_a_pair_is_merged_from_left_to_right(word, pair, merged):
    parts, (left, right) = word.encode().split(), pair.encode().split()
    before = list(parts)
    assert merge(parts, (left, right)) == merged.encode().split()
    assert parts == before


def test_pairs_may_overlap_and_count_as_often_as_their_word():
    splits = {b"aaa": bytes_of(b"aaa"), b"aab": [b"aa", b"b"], b"ba": bytes_of(b"ba"), b"b": [b"b"]}
    counts = {b"aaa": 5, b"aab": 3, b"ba": 1, b"b": 9}
    assert count_pairs(splits, counts) == {(b"a", b"a"): 10, (b"aa", b"b"): 3, (b"b", b"a"): 1}


def pairs(*texts: str) -> list[tuple[bytes, bytes]]:
    return [(left.encode(), right.encode()) for left, right in (text.split() for text in texts)]


@pytest.mark.parametrize(
    ("words", "ids", "merges"),
    [
        ({b"ab": 1, b"cd": 2}, {b"a": 0, b"b": 1, b"c": 2, b"d": 3}, pairs("c d", "a b")),
        ({b"ab": 1, b"cd": 1}, {b"a": 3, b"b": 2, b"c": 1, b"d": 0}, pairs("c d", "a b")),
        ({b"ab": 1, b"ac": 1}, {b"a": 0, b"b": 7, b"c": 6}, pairs("a c", "a b")),
        # After (c, d) the pair (ab, x) is the smallest only if "ab" has kept its id.
        (
            {b"cd": 9, b"ab": 3, b"cdx": 2, b"abx": 2},
            {b"a": 0, b"b": 1, b"c": 2, b"d": 3, b"x": 4, b"ab": 5},
            pairs("c d", "a b", "ab x", "cd x"),
        ),
        ({b"aaaaa": 1}, {b"a": 0}, pairs("a a", "aa a", "aa aaa")),
        ({b"a": 9}, {b"a": 0}, []),
    ],
)
def test_the_most_frequent_pair_comes_first_then_the_one_of_smallest_ids(words, ids, merges):
    """And the merges end when no pair is left, even if more were asked for."""
    before = dict(words), dict(ids)
    assert train(words, 99, ids) == train_fast(words, 99, ids) == merges
    assert train(words, 1, ids) == train_fast(words, 1, ids) == merges[:1]
    assert train(words, 0, ids) == train_fast(words, 0, ids) == []
    assert (words, ids) == before


def their_merges(text: str, vocab_size: int) -> list[tuple[bytes, bytes]]:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    settings: dict[str, Any] = {"initial_alphabet": alphabet, "show_progress": False}
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=[END], **settings)
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.train_from_iterator([text], trainer)
    merges = json.loads(bpe.to_str())["model"]["merges"]
    return [(from_printable(left), from_printable(right)) for left, right in merges]


@given(SMALL_TEXTS | TEXTS)
def test_training_learns_the_merges_that_tokenizers_learns_to_the_last_pair(text):
    words, ids = count_words(text), byte_ids(1)
    merges = train(words, 1000, ids)
    assert merges == their_merges(text, 5000)
    assert train_fast(words, 1000, ids) == merges


def test_training_on_tales_learns_the_merges_that_tokenizers_learns():
    merges = train_fast(count_words(HELD_OUT), 3000, byte_ids(1))
    assert merges == their_merges(HELD_OUT, 257 + 3000)
    beginning = HELD_OUT[:6000]
    merges = train(count_words(beginning), 300, byte_ids(1))
    assert merges == their_merges(beginning, 257 + 300)


@pytest.mark.skipif(
    "CORPUS" not in os.environ,
    reason="the text that fable's tokenizer learned from isn't shipped: give its path as CORPUS",
)
def test_training_repeats_the_shipped_merges_in_order():
    corpus = Path(os.environ["CORPUS"]).read_text(encoding="utf-8")
    words = count_words(corpus[: int(len(corpus) * 0.97)])  # the last 3% are held out
    assert train_fast(words, 3839, byte_ids(1)) == list(FABLE.ranks)


# ---------------------------------------------------------------------------------- words to ids


@pytest.mark.parametrize(
    ("word", "merges", "tokens"),
    [
        ("abc", pairs("b c", "a b"), "a bc"),  # not the leftmost pair
        ("abc", pairs("a b", "b c", "ab c"), "abc"),
        ("abcd", pairs("b c", "a b", "c d", "ab cd"), "a bc d"),  # not the longest token
        ("abab", pairs("ab a", "a b"), "ab ab"),  # everywhere, before any other pair is looked for
        ("aaaaa", pairs("a a"), "aa aa a"),
        ("xyz", pairs("a b"), "x y z"),
        ("", pairs("a a"), ""),
    ],
)
def test_the_pair_of_lowest_rank_is_merged_first(word, merges, tokens):
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    assert join_by_rank(word.encode(), ranks) == tokens.encode().split()


def test_the_longest_token_first_would_be_another_tokenizer():
    def longest_first(word: bytes) -> list[bytes]:
        end = next(n for n in range(len(word), 0, -1) if word[:n] in FABLE.ids)
        return [word[:end], *(longest_first(word[end:]) if word[end:] else [])]

    words = [*count_words(HELD_OUT)]
    differing = [w for w in words if longest_first(w) != join_by_rank(w, FABLE.ranks)]
    assert 0.1 < len(differing) / len(words) < 0.9


@given(TEXTS)
def test_a_text_gets_the_ids_that_tokenizers_gives_with_special_tokens_and_without(text):
    THEIRS.encode_special_tokens = False
    assert encode(text, FABLE, [END]) == THEIRS.encode(text).ids
    THEIRS.encode_special_tokens = True
    plain = encode(text, FABLE)
    assert plain == THEIRS.encode(text).ids
    assert 0 not in plain
    assert decode(plain, FABLE.token_bytes) == text


@given(TEXTS)
@example(HELD_OUT)
def test_transformers_gives_the_same_ids(text):
    assert encode(text, FABLE, [END]) == TRANSFORMERS(text, verbose=False).input_ids
    assert OwnTokenizer(FABLE).encode(text) == encode(text, FABLE)


SPECIAL = {"<|end|>": 0, "<|end|><|end|>": 1, "<a": 2, "a>": 3, ".*": 4}
BYTES = with_merges(pairs("a >", "< |"), byte_ids(5), SPECIAL)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("b<|end|>b", ["b", 0, "b"]),
        ("<|end|><|end|><|end|>", [1, 0]),  # the longest
        ("<a>", [2, ">"]),  # the first
        (" <|end|> ", [" ", 0, " "]),
        (".*b.", [4, "b."]),
        ("<|END|>", ["<|END|>"]),
    ],
)
def test_allowed_special_tokens_are_found_and_all_else_is_text(text, pieces):
    parts = [[piece] if isinstance(piece, int) else encode(piece, BYTES) for piece in pieces]
    ids = encode(text, BYTES, SPECIAL.keys())
    assert ids == [*chain(*parts)]
    assert decode(ids, BYTES.token_bytes) == text
    assert min(encode(text, BYTES)) > max(SPECIAL.values())
    assert {*encode(text, BYTES, ["<|end|>"])} & {*SPECIAL.values()} <= {0}


@pytest.mark.parametrize("text", ["\ud83d", "a crown: \udc51"])
def test_half_of_a_surrogate_pair_is_refused(text):
    for encoded in (lambda text: encode(text, FABLE), OwnTokenizer(FABLE)):
        with pytest.raises(ValueError, match="half of a surrogate pair"):
            encoded(text)


@pytest.mark.parametrize("allowed", [["<|end|>"], END])
def test_a_special_token_that_the_tokenizer_does_not_have_is_refused(allowed):
    with pytest.raises(ValueError, match=r"This tokenizer has <\|endoftext\|>"):
        encode("x", FABLE, allowed)


# ------------------------------------------------------------------------------ a stream of text

# Bytes that begin, continue and break characters of one to four bytes; some have no UTF-8 at all.
LEADS = b"a\xc0\xc3\xe0\xe2\xed\xf0\xf4\xf5\xff"
TAILS = b"\x80\x82\x8f\x90\x9f\xa0\xac\xbf"
STREAMS = st.lists(
    st.lists(st.sampled_from(LEADS + TAILS + TAILS), max_size=4).map(bytes)
    | st.sampled_from([c.encode() for c in "aé€👑\ufffd"])
    | st.binary(max_size=3)
)
# Python holds the beginning of a surrogate, too, because it can be told to pass them.
CHARACTERS = [chr(n).encode("utf-8", "surrogatepass") for n in range(0x80, 0x110000, 64)]
BEGINNINGS = {char[:n] for char in CHARACTERS for n in range(1, len(char))}


@given(STREAMS)
def test_a_stream_gives_every_character_as_soon_as_it_is_certain(tokens):
    """That is all but an ending with which some character begins."""
    stream, shown, data = StreamDecoder(dict(enumerate(tokens))), "", b""
    for number, token in enumerate(tokens):
        shown += stream.push(number)
        data += token
        begun = next((n for n in (1, 2, 3) if data[-n:] in BEGINNINGS), 0)
        assert shown == data[: len(data) - begun].decode("utf-8", "replace")
    assert shown + stream.flush() == decode(range(len(tokens)), stream.token_bytes)
    assert stream.flush() == ""


@given(st.lists(st.integers(0, 4095)))
def test_the_pieces_of_any_ids_are_the_text_that_decode_gives(ids):
    stream = OwnTokenizer(FABLE).stream()
    assert "".join(map(stream.push, ids)) + stream.flush() == decode(ids, FABLE.token_bytes)


# ------------------------------------------------------------------------------- for other labs


def test_other_labs_can_use_it_where_they_use_that_of_transformers():
    own, theirs = OwnTokenizer.from_pretrained("fable"), TRANSFORMERS
    text = "The king said: ‘No crown 👑, no naïve dragons’"
    ids = own(text).input_ids
    assert ids == theirs(text).input_ids
    assert own.decode(torch.tensor(ids)) == theirs.decode(ids) == text
    assert [*decoded(ids, own)] == [*decoded(ids, theirs)]
    for stop in ("crown 👑", "dragons’", "queen"):
        assert stop_at_text(own, [stop])(ids) == stop_at_text(theirs, [stop])(ids)


def test_a_text_whose_words_repeat_is_encoded_from_the_words_kept():
    own, words = OwnTokenizer(FABLE), pre_tokenize(HELD_OUT[:500])
    own.encode("".join(words))
    kept = own.ids_of_word.cache_info()
    assert (kept.misses, kept.hits) == (len(set(words)), len(words) - len(set(words)))
