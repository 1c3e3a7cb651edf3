"""Answers to lab 16's exercises: bytes and text, merges, and a stream of tokens."""

from collections import Counter

import regex

from solutions.tokenizer import (
    StreamDecoder,
    bytes_of,
    count_pairs,
    decode,
    encode,
    join_by_rank,
    merge,
    pre_tokenize,
    train,
)
from tests.common.attempts import right, wrong, wrong_result

wrong_result(decode, str.encode, "is b'the'; expected: it is 'the'")
wrong_result(decode, lambda text: None, "Is a `return` missing?")


@wrong(decode, "`token_bytes` has been changed")
def that_takes_the_tokens_out(ids, token_bytes):
    text = decode(ids, token_bytes)
    token_bytes.clear()
    return text


wrong(pre_tokenize, "is a generator; expected", "Take `yield` out")(
    lambda text: (yield from pre_tokenize(text))
)
wrong(pre_tokenize, "makes a generator: write `[")(lambda text: (w for w in pre_tokenize(text)))
wrong_result(pre_tokenize, lambda words: [*map(str.encode, words)], "is [b'the', b' king']")


@wrong(pre_tokenize)
def of_gpt_4(text):
    contraction = r"'(?i:[sdmt]|ll|ve|re)"
    words = r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    return regex.findall(rf"{contraction}|{words}|\s*[\r\n]|\s+(?!\S)|\s+", text)


wrong_result(merge, tuple, "is a tuple; expected: it is [b'ab'].")
wrong_result(merge, lambda parts: [*map(bytearray, parts)], "bytearray")


@wrong(count_pairs, "is not expected")
def with_all_pairs_of_parts(splits, counts):
    parts = sorted({part for split in splits.values() for part in split})
    return {(a, b): 0 for a in parts for b in parts} | count_pairs(splits, counts)


wrong_result(
    count_pairs,
    lambda counts: {repr(pair): n for pair, n in counts.items()},
    "The count of (b'a', b'b') is missing.",
)


@wrong(count_pairs, "`counts` has been changed")
def that_changes_the_counts(splits, counts):
    found = count_pairs(splits, counts)
    counts.update(dict.fromkeys(counts, 0))
    return found


@wrong(count_pairs, "another result the second time")
def that_adds_up_from_call_to_call(splits, counts, total=Counter()):  # noqa: B006
    total.update(count_pairs(splits, counts))
    return dict(total)


wrong_result(
    train,
    lambda pairs: [*map(list, pairs)],
    "Merge 1 is [b'a', b'b']; expected: it is (b'a', b'b')",
)
wrong_result(train, dict.fromkeys, "What it returned is a dict; expected: it is a list.")


@right(join_by_rank)
def in_one_pass_by_rank(word, ranks):
    """No merge makes a pair of a lower rank possible: training has seen to that."""
    parts = bytes_of(word)
    for pair in sorted(ranks, key=ranks.__getitem__):
        parts = merge(parts, pair)
    return parts


@wrong(join_by_rank)
def as_if_remembered_by_word(word, ranks, known={}):  # noqa: B006
    return known.setdefault(word, join_by_rank(word, ranks))


wrong_result(join_by_rank, b" ".join, "is b'ab'; expected: it is [b'ab']")


wrong(encode, "is a list with a bytes in it")(
    lambda text, tokenizer, allowed_special=(): [
        part for word in pre_tokenize(text) for part in join_by_rank(word.encode(), tokenizer.ranks)
    ]
)


@wrong(encode)
def as_if_remembered_by_the_text(text, tokenizer, allowed_special=(), known={}):  # noqa: B006
    key = text, tuple(allowed_special)
    return [*known.setdefault(key, encode(text, tokenizer, allowed_special))]


wrong_result(encode, tuple, "is a tuple; expected: it is a list of ints.")
wrong_result(StreamDecoder.push, str.encode, "is b'the'; expected: it is 'the'")


@wrong(StreamDecoder.push, "What `push` returned in call 2")
def all_of_the_text_so_far(self, token):
    self.text = getattr(self, "text", "") + StreamDecoder.push(self, token)
    return self.text


@wrong(StreamDecoder.push, "What `flush` returned")
def with_a_decoder_that_flush_does_not_know(self, token):
    self.all = getattr(self, "all", b"") + self.token_bytes[token]
    whole = self.all.decode("utf-8", "ignore")
    text = whole[len(getattr(self, "said", "")) :]
    self.said = whole
    return text


@wrong(StreamDecoder.push)
def as_hugging_face_does(self, token):
    """Compares two texts of all tokens, and waits while the second ends in U+FFFD."""
    before, self.all = (
        getattr(self, "all", b""),
        getattr(self, "all", b"") + self.token_bytes[token],
    )
    start, whole = (data.decode("utf-8", "replace") for data in (before, self.all))
    return "" if whole.endswith("\ufffd") else whole[len(start) :]


# ------------------------------------------------------------- mutants that do the same by right

EQUIVALENT = {
    "tokenizer.encode": {
        "sorted(allowed_special, key=len, reverse=True) -> sorted(allowed_special, reverse=True)": (
            "of two that begin at one place, the longer one is also the later one in the alphabet"
        ),
    },
}
