"""Answers to lab 16's exercises: bytes and text, merges, and a stream of tokens."""

import re
from collections import Counter
from functools import lru_cache
from itertools import pairwise

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
    train_fast,
)
from tests.common.attempts import right, wrong

# ---------------------------------------------------------------------------------- ids to text


@right(decode)
def by_a_stream(ids, token_bytes):
    decoder = StreamDecoder(token_bytes)
    return "".join([*map(decoder.push, ids), decoder.flush()])


wrong(decode, "is b'the'; expected: it is 'the'")(
    lambda ids, token_bytes: b"".join(token_bytes[number] for number in ids)
)
wrong(decode, "Is a `return` missing?")(lambda ids, token_bytes: None)


@wrong(decode, "`token_bytes` has been changed")
def that_takes_the_tokens_out(ids, token_bytes):
    text = decode(ids, token_bytes)
    token_bytes.clear()
    return text


# --------------------------------------------------------------------------------- text to words


@right(pre_tokenize)
def with_re_and_isnumeric(text):
    """Numerals of Python's `re` are decimal digits, so others are replaced by one of them first."""
    shown = "".join("7" if char.isnumeric() and not char.isalpha() else char for char in text)
    pattern = r"'(?:[stmd]|re|ve|ll)| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+"
    ends = [found.end() for found in re.finditer(pattern, shown)]
    return [text[start:end] for start, end in pairwise([0, *ends])]


wrong(pre_tokenize, "is a generator; expected", "Take `yield` out")(
    lambda text: (yield from pre_tokenize(text))
)
wrong(pre_tokenize, "makes a generator: write `[")(lambda text: (w for w in pre_tokenize(text)))
wrong(pre_tokenize, "is [b'the', b' king']")(lambda text: [w.encode() for w in pre_tokenize(text)])


@wrong(pre_tokenize)
def of_gpt_4(text):
    contraction = r"'(?i:[sdmt]|ll|ve|re)"
    words = r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    return regex.findall(rf"{contraction}|{words}|\s*[\r\n]|\s+(?!\S)|\s+", text)


# -------------------------------------------------------------------------------------- training


@wrong(merge, "`parts` has been changed")
def in_place_and_copied(parts, pair):
    parts[:] = merge(parts, pair)
    return list(parts)


wrong(merge, "is a tuple; expected: it is [b'ab'].")(lambda *given: tuple(merge(*given)))
wrong(merge, "bytearray")(lambda *given: [bytearray(part) for part in merge(*given)])


@right(count_pairs)
def word_by_word(splits, counts):
    total = Counter()
    for word, parts in splits.items():
        for pair, times in Counter(pairwise(parts)).items():
            total.update({pair: times * counts[word]})
    return total


@wrong(count_pairs, "is not expected")
def with_all_pairs_of_parts(splits, counts):
    parts = sorted({part for split in splits.values() for part in split})
    return {(a, b): 0 for a in parts for b in parts} | count_pairs(splits, counts)


wrong(count_pairs, "The count of (b'a', b'b') is missing.")(
    lambda splits, counts: {repr(pair): n for pair, n in count_pairs(splits, counts).items()}
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


right(train)(lambda words, merges, ids: train_fast(words, merges, ids))
wrong(train, "Merge 1 is [b'a', b'b']; expected: it is (b'a', b'b')")(
    lambda *given: [list(pair) for pair in train(*given)]
)
wrong(train, "What it returned is a dict; expected: it is a list.")(
    lambda *given: {pair: i for i, pair in enumerate(train(*given))}
)


@wrong(train, "Merge 2 is (b'b', b'c'); expected: it is (b'ab', b'c')")
def with_the_merges_of_the_letters(words, merges, ids):
    """Merges the first letters, but goes on counting pairs of letters."""
    learned, known = [], set()
    splits = {word: bytes_of(word) for word in words}
    counts = count_pairs(splits, words)
    while len(learned) < merges and (left := counts.keys() - known):
        best = min(left, key=lambda pair: (-counts[pair], ids[pair[0]], ids[pair[1]]))
        known.add(best)
        learned.append(best)
    return learned


# ---------------------------------------------------------------------------------- words to ids


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


wrong(join_by_rank, "is b'ab'; expected: it is [b'ab']")(
    lambda word, ranks: b" ".join(join_by_rank(word, ranks))
)


@right(encode)
def with_a_cache_of_words(text, tokenizer, allowed_special=()):
    @lru_cache
    def ids_of(word):
        return [tokenizer.ids[part] for part in join_by_rank(word.encode(), tokenizer.ranks)]

    found = []
    while text:
        places = {name: text.find(name) for name in allowed_special if name in text}
        name = min(places, key=lambda name: (places[name], -len(name)), default=None)
        end = places.get(name, len(text))
        found += [number for word in pre_tokenize(text[:end]) for number in ids_of(word)]
        found += [tokenizer.special[name]] if name else []
        text = text[end + len(name or "") :]
    return found


wrong(encode, "is a list with a bytes in it")(
    lambda text, tokenizer, allowed_special=(): [
        part for word in pre_tokenize(text) for part in join_by_rank(word.encode(), tokenizer.ranks)
    ]
)
wrong(encode, "is a tuple; expected: it is a list of ints.")(
    lambda *given, **named: tuple(encode(*given, **named))
)


# ------------------------------------------------------------------------------ a stream of text


@wrong(StreamDecoder.push, "is b'the'; expected: it is 'the'")
def of_bytes(self, token):
    return StreamDecoder.push(self, token).encode()


@wrong(StreamDecoder.push, "What `push` returned for token 2")
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
