"""The exercises of lab 16: text and bytes, merges, and a stream of tokens.

Where a case has text for bytes, each character stands for the byte of its number.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from autograder.attempt.drivers import tokenizer as drivers
from autograder.judging.draws import draw
from autograder.judging.exercise import Case, Exercise, case_of
from solutions import tokenizer as reference
from solutions.tokenizer import Pair

SYLLABLES = ("lo", "w", "er", "st", "ne", "wi", "de", "ing", "é", "t", "th", "a", "ß")
FAMILY = "👩‍👩‍👧"


def latin(data: bytes) -> str:
    """Bytes as the text that stands for them in a case."""
    return data.decode("latin-1")


def picked(generator: torch.Generator, choices: Sequence[str], low: int, high: int) -> list[str]:
    """From `low` to `high` of the choices; each may come several times."""
    return [
        choices[draw(generator, 0, len(choices) - 1)] for _ in range(draw(generator, low, high))
    ]


# ---------------------------------------------------------------------------------- ids to text

BYTES = ("\xc3", "\xa9", "a", " b", "\xe2\x82", "\xac", "\xf0\x9f", "\x91")


def numbered(generator: torch.Generator, pieces: list[str]) -> tuple[list[int], dict[int, bytes]]:
    """Ids for tokens of these bytes, in no order, and a table of these and a few more."""
    tokens = list(dict.fromkeys([*pieces, "x", " other"]))
    numbers = torch.randperm(2 * len(tokens), generator=generator).tolist()
    ids = dict(zip(tokens, numbers, strict=False))
    table = {number: drivers.raw(token) for token, number in ids.items()}
    return [ids[piece] for piece in pieces], table


def decode_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, text: str) -> Case:
        """The bytes of the tokens, with / between them."""
        ids, token_bytes = numbered(generator, text.split("/") if text else [])
        return Case(label, {"ids": ids, "token_bytes": token_bytes})

    some = picked(generator, BYTES, 7, 7)
    return [
        case("one token", "the"),
        case("two tokens", "the/ king"),
        case("no token", ""),
        case("white space at both ends", " the/ king/\n"),
        case("white space before marks, and a line break of two", "the/  king/ ,/ it/ '/s ./\r\n"),
        case("a character of two bytes in one token", "caf/\xc3\xa9"),
        case("a character of two bytes in two tokens", "caf\xc3/\xa9"),
        case("a character of four bytes in four tokens", "\xf0/\x9f/\x91/\x91"),
        case("a text that ends within a character", "the /\xf0\x9f/\x91"),
        case("a byte that never occurs in UTF-8", "a/\xff/b"),
        case("seven tokens of a few bytes", "/".join(some)),
        case("the same tokens in reverse order", "/".join(some[::-1])),
    ]


# --------------------------------------------------------------------------------- text to words

TEXTS = {
    "two words": "the king",
    "no text": "",
    "two spaces between words": "the  king",
    "a space at the beginning and at the end": " the king ",
    "several spaces at the end": "king   ",
    "a line break between words": "king\nqueen",
    "two line breaks between words": "king\n\nqueen",
    "a space, a line break, a space": "king \n queen",
    "a tab before a word, and before a digit": "a\tb\t1",
    "a full stop, and a comma": "Yes, king.",
    "several marks together": 'so... (he said) "no!?" -- 3 + 4',
    "letters and digits": "abc123 4x5",
    "a long number": "a 1234567 b",
    "contractions": "I'm sure they've said it's what we'd do; you're right, don't, I'll",
    "contractions in upper case": "I'M DON'T IT'S",
    "an apostrophe that is no contraction": "o'clock 'king' kings' rock'n'roll",
    "an apostrophe after a space": "a 's b 'sure",
    "contractions behind a digit and a mark": "'twas the 1's (2)'ll",
    "typographic apostrophes": "it\u2019s don\u2019t \u2018king\u2019 we\u2019ll",
    "a contraction with letters after it": "it'sit you'reing",
    "an underscore": "snake_case _a _",
    "a fraction, a power, a Roman number": "½ cup of 10² in Ⅻ",
    "letters beyond ASCII": "naïve café Straße ΑΒΓ где 中文字",
    "an accent as a character of its own": "cafe\u0301 e\u0301a",
    "an emoji of several characters": f"the {FAMILY} family{FAMILY}",
    "a space that doesn't break": "10\u00a0kg \u00a0 a",
    "a special token": "end<|endoftext|>Once",
}
BITS = [
    *(" ", " ", "  ", "\n", "\t", "the", "King", "é", "中", "½", "10", "²", "7", "_", "-", "..."),
    *("'s", "'ll", "'", "'T", "👑", "\u0301", "\u00a0"),
]


def pre_tokenize_cases(generator: torch.Generator) -> list[Case]:
    case = case_of("text")
    drawn = ["".join(picked(generator, BITS, 6, 12)) for _ in range(3)]
    return [
        *(case(label, text) for label, text in TEXTS.items()),
        *(case(f"a text of some pieces, {number}", text) for number, text in enumerate(drawn, 1)),
    ]


# -------------------------------------------------------------------------------------- training


def merge_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, parts: str, pair: str) -> Case:
        """The parts and the pair, with spaces between them."""
        left, right = pair.split()
        return Case(label, {"parts": parts.split(), "pair": (left, right)})

    def drawn(letters: str) -> str:
        return " ".join(picked(generator, letters.split(), 8, 8))

    return [
        case("a pair, and nothing else", "a b", "a b"),
        case("the pair is in the middle", "x a b y", "a b"),
        case("the pair is at the end", "x y a b", "a b"),
        case("the pair is there twice", "a b x a b", "a b"),
        case("no parts", "", "a b"),
        case("one part", "a", "a b"),
        case("the pair isn't there", "a x b", "a b"),
        case("the other way round", "b a x b a", "a b"),
        case("a a a", "a a a", "a a"),
        case("a a a a", "a a a a", "a a"),
        case("parts that end or begin like the pair", "xa b a bx", "a b"),
        case("a a a a a, with other parts around", "x a a a a a y", "a a"),
        case("parts that are merged already", "lo w x lo w er", "lo w"),
        case("the same bytes, divided in another place", "a bc ab c a bc", "ab c"),
        case("eight parts of two kinds", drawn("a b"), "a b"),
        case("eight parts, the pair is b b", drawn("a b b"), "b b"),
        case("eight parts of three kinds", drawn("lo w x"), "lo w"),
    ]


def count_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, *words: tuple[str, int]) -> Case:
        """Each word as its parts, and how often it occurs."""
        split = {parts.replace(" ", ""): (parts.split(), count) for parts, count in words}
        parts, counts = ({word: both[i] for word, both in split.items()} for i in (0, 1))
        return Case(label, {"splits": parts, "counts": counts})

    def drawn(letters: str, words: int) -> list[tuple[str, int]]:
        texts = [" ".join(picked(generator, letters.split(), 2, 6)) for _ in range(words)]
        return [(text, draw(generator, 1, 9)) for text in texts]

    return [
        case("one word of two parts, once", ("a b", 1)),
        case("one word of two parts, three times", ("a b", 3)),
        case("two words without a common pair", ("a b", 2), ("c d", 5)),
        case("two words with a common pair", ("a b c", 2), ("x a b", 3)),
        case("a pair twice in a word", ("a b x a b", 4)),
        case("a a a", ("a a a", 1)),
        case("a a a a, three times", ("a a a a", 3)),
        case("a pair in both orders", ("a b a", 2), ("b a", 3)),
        case("only words of one part", ("a", 7), ("bc", 1)),
        case("no words"),
        case("parts that are merged already", ("lo w", 5), ("lo w er", 2), ("l o o", 3)),
        case("the same bytes, divided in two ways", ("ab c x", 2), ("x a bc", 3)),
        case("up to four words of a few letters", *drawn("a b c", 4)),
        case("up to six words of merged parts", *drawn("lo w er s", 6)),
    ]


def train_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, words: str, merges: int, ids: str | dict[str, int] = "") -> Case:
        """Words with their counts; ids, or the letters in their order, by default in any order."""
        items = words.split(" ") if words else []
        counts = dict(zip(items[::2], map(int, items[1::2]), strict=True))
        if isinstance(ids, str):
            letters = list(ids) or sorted(set("".join(counts)))
            places = torch.randperm(len(letters), generator=generator).tolist()
            ids = {c: 20 + (i if ids else places[i]) for i, c in enumerate(letters)}
        return Case(label, {"words": counts, "merges": merges, "ids": ids})

    def drawn(letters: str, words: int) -> str:
        found = ["".join(picked(generator, letters, 2, 6)) for _ in range(words)]
        return " ".join(f"{word} {draw(generator, 1, 4)}" for word in found)

    every = {latin(token): number for token, number in reference.byte_ids(1).items()}
    accents = " ".join(f"{latin(word.encode())} 2" for word in ("née", "né", "élan", "½"))
    gaps = {"a": 9, "b": 8, "c": 7, "x": 6, "e": 5, "y": 30}
    known = {"a": 10, "b": 11, "x": 12, "c": 13, "d": 14, "y": 15, "cd": 1, "ab": 30}
    return [
        case("one word, one merge", "ab 1", 1),
        case("two words, two merges", "abc 2 ab 1", 2),
        case("no merge is asked for", "abc 2 ab 1", 0),
        case("a frequent word, and two rare ones", "ab 5 cd 2 cde 2", 2),
        case("more merges than there are pairs", "abc 2 ab 3", 9),
        case("no words", "", 3),
        case("only words of one byte", "a 4 b 2", 2),
        case("low, lower, newest, widest", "low 5 lower 2 widest 3 newest 6", 6),
        case("a merge takes away occurrences of another pair", "abc 5 bc 3 cd 4 bd 1", 4),
        case("equal counts, the pair seen first has the larger id", "ab 2 cd 2", 2, "cdab"),
        case("equal counts, the smaller bytes have the larger id", "ab 2 cd 2", 2, "dcba"),
        case("equal counts and the same first id", "ab 2 ac 2", 2, "acb"),
        case("equal counts of a merged pair and of another", "abx 3 yz 3", 4, "abzyx"),
        case("a a a a a", "aaaaa 2 ab 3", 3),
        case("ids with gaps between them", "ab 3 xc 2 ye 2", 4, gaps),
        case("a merge whose bytes have an id", "ab 4 abx 2 cdy 2", 4, known),
        case("all bytes, from id 1 up", accents, 6, every),
        case("up to five words of three letters", drawn("abc", 5), 6),
        case("up to five others, and as many merges", drawn("abc", 5), 6),
        case("up to eight words of four letters", drawn("abcd", 8), 12),
        case("words of two letters, until no pair is left", drawn("ab", 4), 40),
    ]


# ---------------------------------------------------------------------------------- words to ids


def trained(generator: torch.Generator, merges: int) -> list[Pair]:
    """Merges that are learned from words of a few syllables, with wide spaces between them."""
    text = "   ".join("".join(picked(generator, SYLLABLES, 2, 4)) for _ in range(25))
    return reference.train(reference.count_words(text), merges, reference.byte_ids())


def join_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, word: str, merges: str, step: int = 1) -> Case:
        """Merges in the order of their ranks; with step -1, the table has the last one first."""
        pairs = [pair.split("+") for pair in merges.split()]
        ranks = [(left, right, rank) for rank, (left, right) in enumerate(pairs)]
        return Case(label, {"word": word, "ranks": ranks[::step]})

    def learned(label: str, merges: int) -> Case:
        pairs = [(latin(left), latin(right)) for left, right in trained(generator, merges)]
        word = latin("".join(picked(generator, SYLLABLES, 3, 5)).encode())
        return Case(label, {"word": word, "ranks": [(*pair, i) for i, pair in enumerate(pairs)]})

    return [
        case("one merge", "ab", "a+b"),
        case("a word of one byte", "a", "a+b"),
        case("no bytes", "", "a+b"),
        case("no pair has a rank", "abc", "b+a c+b"),
        case("two merges, one after the other", "abc", "a+b ab+c"),
        case("the second pair has the lower rank", "abc", "b+c a+b"),
        case("the second pair has the lower rank, then all is joined", "abc", "b+c a+b a+bc"),
        case("the first pair has no rank", "xabc", "a+b ab+c"),
        case("a pair in two places", "abxab", "a+b"),
        case("a pair in two places, then both are joined", "abab", "a+b ab+ab"),
        case("a a a", "aaa", "a+a"),
        case("a a a a a", "aaaaa", "a+a aa+a"),
        case("lower", "lower", "l+o lo+w e+r low+er"),
        case("lower, the last rank first in the table", "lower", "l+o lo+w e+r low+er", step=-1),
        case("the longest token begins at the left", "abcd", "c+d b+cd a+b ab+c"),
        case("a character of two bytes", "n\xc3\xa9", "n+\xc3 \xc3+\xa9"),
        learned("30 merges, learned from a text", 30),
        learned("60 merges, learned from a text", 60),
        learned("60 other merges", 60),
    ]


END, LONGER, SEP, EOS = "<|end|>", "<|end|>s", "[SEP]", "EOS"
SPECIAL = {END: 0, LONGER: 1, SEP: 2, EOS: 3}


def encode_cases(generator: torch.Generator) -> list[Case]:
    pairs = trained(generator, 40)
    shared = {
        "alphabet": latin(b"".join(reference.byte_ids())),
        "first": len(SPECIAL),
        "merges": [(latin(left), latin(right)) for left, right in pairs],
    }
    low, other, third = ("".join(picked(generator, SYLLABLES, 2, 4)) for _ in range(3))
    halves = [("a", "b"), ("c", "d")]
    from_the_end = [("c", "d"), ("b", "cd"), ("a", "b"), ("ab", "c")]

    def case(label: str, text: str, *allowed: str, **more: Any) -> Case:
        """If no token is named, it is left to the default which are allowed."""
        lists = {"allowed_special": list(allowed)} if allowed else {}
        return Case(label, {"text": text, **shared, "special": SPECIAL, **lists, **more})

    return [
        case("one word", low),
        case("no text", ""),
        case("three words", f"{low} {other} {third}"),
        case("two merges, side by side", "abcd", merges=halves),
        case("the same word, with other merges", "abcd", merges=from_the_end),
        case("no special tokens at all", f"{low} {other}", special={}),
        case("white space of several kinds", f"{low}  {other}\n\n{third} \t"),
        case("characters of several bytes", f"naïve ½ 👑 {low}"),
        case("a special token that isn't allowed", f"{low}{END}{other}"),
        case("the text is a special token that isn't allowed", END),
        case("a special token between two words", f"{low}{END}{other}", END),
        case("the text is an allowed special token", END, END),
        case("no text, and a token is allowed", "", END),
        case("an allowed token that isn't there", f"{low} {other}", END),
        case("a special token at the end", f"{low}{END}", END),
        case("white space around a special token", f"{low} {END}  {other} {END}\n", END),
        case("the same special token twice in a row", f"{END}{END}{low}", END),
        case("two kinds of special tokens", f"{low}{SEP}{other}{END}{third}", END, SEP),
        case("one is allowed, the other one is there, too", f"{low}{SEP}{other}{END}", END),
        case("one is allowed, the text is the other one", SEP, END),
        case("one begins with another, both are allowed", f"{low}{LONGER}{END}", END, LONGER),
        case("both are allowed, in the other order", f"{low}{LONGER}{END}", LONGER, END),
        case("one begins with another, the short one is allowed", f"{low}{LONGER}", END),
        case("a special token within another", f"<|<|end|>end|>{low}", END),
        case("a special token of letters", f"{low}{EOS}\n{EOS}", EOS),
        case("a token with square brackets", f"S {low} [S] {SEP}E", SEP),
    ]


# ------------------------------------------------------------------------------ a stream of text


def push_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, stream: str, requests: str = "") -> Case:
        """The bytes of the tokens, with / between them; and the request of each."""
        ids, token_bytes = numbered(generator, stream.split("/"))
        tokens = list(zip(map(int, requests or "0" * len(ids)), ids, strict=True))
        return Case(label, {"token_bytes": token_bytes, "tokens": tokens})

    family = latin(FAMILY.encode())
    cuts = sorted(torch.randperm(len(family) - 1, generator=generator)[:6].tolist())
    pieces = "/".join(family[i + 1 : j + 1] for i, j in pairwise([-1, *cuts, len(family) - 1]))
    some = picked(generator, BYTES, 8, 8)
    return [
        case("one token", "the"),
        case("three tokens", "the/ king/."),
        case("a character of two bytes in one token", "caf/\xc3\xa9"),
        case("a character of two bytes in two tokens", "caf\xc3/\xa9 au"),
        case("a character of four bytes in four tokens", "\xf0/\x9f/\x91/\x91/!"),
        case("a character and the beginning of the next", "\xc3\xa9\xc3/\xa8\xe2/\x82\xac"),
        case("an emoji of several characters, in pieces", pieces),
        case("a stream that ends within a character", "a/\xf0\x9f"),
        case("a stream that ends after three bytes of four", "a\xf0/\x9f/\x91"),
        case("a character that is cut off by a letter", "\xe2\x82/a/b"),
        case("a character that is cut off by another", "\xe2\x82/\xc3\xa9/b"),
        case("a byte that never occurs in UTF-8", "a/\xff/b"),
        case("the character U+FFFD itself", "a\xef\xbf\xbd/b/\xef\xbf/\xbd"),
        case("a token without bytes", "\xc3//\xa9/"),
        case("a special token within a character", "\xf0\x9f/<|end|>/\x91"),
        case("a beginning that no byte can complete", "\xe0/\x80/a"),
        # With \xa0 in a token of its own, it could be held and could be shown: both are right.
        case("half of a surrogate pair in UTF-8", "\xed/\xa0\x80/a"),
        case("beyond the last character", "\xf4/\x90/\x80\x80/\xf5"),
        case("two requests that take turns", "\xc3/\xe2/\xa9/\x82/a/\xac", "010101"),
        case("two requests that end within a character", "x\xf0/\xc3/\x9f/\xa8\xe2", "0101"),
        case("eight tokens of a few bytes", "/".join(some)),
        case("the same tokens in reverse order", "/".join(some[::-1])),
    ]


EXERCISES = (
    Exercise("tokenizer.decode", drivers.decode, decode_cases),
    Exercise("tokenizer.pre_tokenize", drivers.pre_tokenize, pre_tokenize_cases),
    Exercise("tokenizer.merge", drivers.merge, merge_cases),
    Exercise("tokenizer.count_pairs", drivers.count_pairs, count_cases),
    Exercise("tokenizer.train", drivers.train, train_cases),
    Exercise("tokenizer.join_by_rank", drivers.join_by_rank, join_cases),
    Exercise("tokenizer.encode", drivers.encode, encode_cases),
    Exercise("tokenizer.StreamDecoder.push", drivers.push, push_cases),
)
