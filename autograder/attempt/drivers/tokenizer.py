"""Drivers of lab 16: text and bytes, merges, and a stream of tokens.

Where a case has text for bytes, each byte is a character, by its number. What was returned is put
into words, as Python writes bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autograder.attempt.plain import kind_of, plain
from autograder.attempt.records import Attempt, Seen, as_it_was

DEEP = 3  # lists in lists that are shown
Merges = list[tuple[str, str]]


@dataclass
class Tokenizer:
    """Has the fields of the notebook's class, and replaces it."""

    __module__ = "builtins"  # whose names its methods have, instead of a driver's

    ids: dict[bytes, int]
    ranks: dict[tuple[bytes, bytes], int]
    special: dict[str, int]
    token_bytes: dict[int, bytes]

    def __repr__(self) -> str:
        """Show how the notebook's functions make it."""
        first = min(self.ids.values())
        return f"with_merges({list(self.ranks)}, byte_ids({first}), {self.special})"


# ------------------------------------------------------------------------------ bytes, in words


def raw(text: str) -> bytes:
    """The bytes that a case's text stands for."""
    return text.encode("latin-1")


def raw_pair(pair: tuple[str, str]) -> tuple[bytes, bytes]:
    left, right = pair
    return raw(left), raw(right)


def told(value: Any) -> Any:
    """Text, bytes or a list in words, as Python writes it; anything else as it is."""
    return f"is {readable(value)!r}" if type(value) in (str, bytes, list) else value


def readable(value: Any, depth: int = 0) -> Any:
    """Plain data, of which bytes and the lists around them stay as they are."""
    if type(value) is bytes:
        return value
    if type(value) in (list, tuple) and depth < DEEP:
        return type(value)(readable(part, depth + 1) for part in value)
    return plain(value)


# ---------------------------------------------------------------------------------- ids to text


def decode(attempt: Attempt, ids: list[int], token_bytes: dict[int, bytes]) -> list[Seen]:
    given = dict(token_bytes)
    text = attempt(ids, given)
    return [Seen("The text", told(text)), as_it_was("`token_bytes`", given, token_bytes)]


def pre_tokenize(attempt: Attempt, text: str) -> list[Seen]:
    return [Seen("What it returned", told(attempt(text)))]


# -------------------------------------------------------------------------------------- training


def merge(attempt: Attempt, parts: list[str], pair: tuple[str, str]) -> list[Seen]:
    given = [raw(part) for part in parts]
    before = list(given)
    found = attempt(given, raw_pair(pair))
    return [
        Seen("What it returned", told(found)),
        as_it_was("`parts`", given, before),
        Seen("The list that it returned", "is `parts` itself" if found is given else "is new"),
    ]


def count_pairs(
    attempt: Attempt, splits: dict[str, list[str]], counts: dict[str, int]
) -> list[Seen]:
    """Record the count of each pair, in whatever order they are."""

    def made() -> tuple[dict[bytes, list[bytes]], dict[bytes, int]]:
        parts = {raw(word): [raw(part) for part in split] for word, split in splits.items()}
        return parts, raw_words(counts)

    (given, weights), (before, weights_before) = made(), made()
    found = attempt(given, weights)
    seen = [Seen("What it returned", "is a dict" if isinstance(found, Mapping) else found)]
    if isinstance(found, Mapping):
        pairs = {repr(readable(pair)): count for pair, count in found.items()}
        seen += [Seen(f"The count of {pair}", pairs[pair]) for pair in sorted(pairs)]
    seen.append(as_it_was("`splits`", given, before))
    return [*seen, as_it_was("`counts`", weights, weights_before)]


def raw_words(counts: dict[str, int]) -> dict[bytes, int]:
    return {raw(word): count for word, count in counts.items()}


def train(attempt: Attempt, words: dict[str, int], merges: int, ids: dict[str, int]) -> list[Seen]:
    """Record merge by merge, so that the first wrong one is told."""
    given, tokens = raw_words(words), raw_words(ids)
    found = attempt(given, merges, tokens)
    seen = [Seen("What it returned", "is a list" if type(found) is list else found)]
    if type(found) is list:
        pairs = [f"is {readable(pair)!r}" for pair in found]
        seen += [Seen(f"Merge {number}", pair) for number, pair in enumerate(pairs, 1)]
        seen.append(Seen("The number of merges", len(found)))
    return [
        *seen,
        as_it_was("`words`", given, raw_words(words)),
        as_it_was("`ids`", tokens, raw_words(ids)),
    ]


# ---------------------------------------------------------------------------------- words to ids


def join_by_rank(attempt: Attempt, word: str, ranks: list[tuple[str, str, int]]) -> list[Seen]:
    given = {raw_pair((left, right)): rank for left, right, rank in ranks}
    before = dict(given)
    found = attempt(raw(word), given)
    return [Seen("What it returned", told(found)), as_it_was("`ranks`", given, before)]


def encode(
    attempt: Attempt,
    text: str,
    alphabet: str,
    first: int,
    merges: Merges,
    special: dict[str, int],
    **allowed: list[str],
) -> list[Seen]:
    """Record the tokens that the ids stand for. `allowed_special` is passed if the case has one.

    alphabet: the 256 bytes, which have the ids from `first` up; the merges have the next ones.
    """
    pairs = [raw_pair(pair) for pair in merges]
    tokens = [*(raw(byte) for byte in alphabet), *(left + right for left, right in pairs)]
    table = dict(enumerate(tokens, first)) | {
        number: name.encode() for name, number in special.items()
    }
    ids = {token: number for number, token in enumerate(tokens, first)}
    ranks = {pair: rank for rank, pair in enumerate(pairs)}
    given = Tokenizer(dict(ids), dict(ranks), dict(special), dict(table))
    found = attempt(text, given, **allowed)
    seen = [Seen("What it returned", list_kind(found))]
    if list_kind(found) == "is a list of ints":
        stood_for = [table.get(number, number) for number in found]
        seen.append(Seen("The list of tokens", told(stood_for)))
    return [*seen, as_it_was("`tokenizer`", given, Tokenizer(ids, ranks, special, table))]


def list_kind(value: Any) -> Any:
    """Whether a value is a list of ints, in words; anything but a list is returned as it is."""
    if type(value) is not list:
        return value
    odd = [kind_of(item) for item in value if type(plain(item)) is not int]
    return f"is a list with {odd[0]} in it" if odd else "is a list of ints"


# ------------------------------------------------------------------------------ a stream of text


def push(attempt: type, token_bytes: dict[int, bytes], tokens: list[tuple[int, int]]) -> list[Seen]:
    """Push the tokens in turn, each into the decoder of its request; then flush every decoder."""
    decoders = {request: attempt(dict(token_bytes)) for request, _ in tokens}
    seen = []
    for number, (request, token) in enumerate(tokens, 1):
        of = f" of request {request}" if len(decoders) > 1 else ""
        where = f"in call {number}, for {token_bytes[token]!r}{of},"
        seen.append(Seen("What `push` returned", told(decoders[request].push(token)), where))
    for request, decoder in decoders.items():
        of = f"at the end of request {request}" if len(decoders) > 1 else "at the end"
        seen.append(Seen("What `flush` returned", told(decoder.flush()), of))
    return seen
