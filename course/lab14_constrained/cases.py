"""The exercises of lab 14: choices, masks, derivatives, an index, generation, jumps, regions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from autograder.attempt.drivers import constrained as drivers
from autograder.judging.draws import draw, normal, until
from autograder.judging.exercise import Case, Exercise
from solutions import constrained as reference
from solutions.grammars.regex import parse

Generator = torch.Generator


def letters(generator: Generator) -> Callable[[str], str]:
    """Replace a, b, c and d by four other letters, so that none of them means anything."""
    drawn = (torch.randperm(26, generator=generator)[:4] + ord("a")).tolist()
    table = dict(zip(map(ord, "abcd"), map(chr, drawn), strict=True))
    return lambda text: text.translate(table)


def tokens_of(words: str) -> list[bytes]:
    """The tokens in a text, with spaces between them; _ is a space, and ~ a token without bytes.

    It has one character for each byte. \\u00c3 and \\u00a9 are the two bytes of an é.
    """
    return [word.replace("_", " ").replace("~", "").encode("latin-1") for word in words.split()]


def machine(pattern: str) -> dict[str, Any]:
    automaton = reference.automaton_of(parse(pattern))
    return {"edges": automaton.edges, "accepting": sorted(automaton.accepting)}


def machine_after(pattern: str, text: str) -> dict[str, Any]:
    """A machine, and its state after a text with one character for each byte."""
    given, state = machine(pattern), 0
    for byte in text.encode("latin-1"):
        state = given["edges"][state][byte]
    return {**given, "state": state}


def random_machine(generator: Generator, states: int) -> dict[str, Any]:
    """States with edges to any others, in no order; about a third of all edges are missing."""
    ends = torch.randint(-states // 2, states, (states, 3), generator=generator).tolist()
    edges = [{byte: end for byte, end in zip(b"abc", row, strict=True) if end >= 0} for row in ends]
    accepting = torch.randperm(states, generator=generator)[: states // 3]
    return {"edges": edges, "accepting": sorted(accepting.tolist())}


def automaton_in(data: Mapping[str, Any]) -> reference.Automaton:
    return reference.Automaton(data["edges"], frozenset(data["accepting"]))


def some_words(generator: Generator, count: int, longest: int = 3) -> list[bytes]:
    """Drawn ones, then each letter, and a token without bytes."""
    sizes = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    drawn = [bytes(b"abc"[draw(generator, 0, 2)] for _ in range(size)) for size in sizes]
    return [*drawn, b"a", b"b", b"c", b""]


# ------------------------------------------------------------------------- choices, and the mask


def choice_cases(generator: Generator) -> list[Case]:
    drawn = (torch.randperm(999, generator=generator)[:9] + 1).tolist()
    ids = dict(zip("abcdefghE", drawn, strict=True)) | {"0": 0}

    def case(label: str, choices: str, generated: str, eos: str = "E", kind: Any = list) -> Case:
        """Choices as "ab ac": each letter is a token; a dot is a choice without tokens."""
        own = [kind(tokens(choice)) for choice in choices.split()]
        return Case(label, {"choices": own, "generated": tokens(generated), "eos": ids[eos]})

    def tokens(text: str) -> list[int]:
        return [ids[letter] for letter in text if letter != "."]

    return [
        case("one choice, no token so far", "a", ""),
        case("one choice, which is complete", "a", "a"),
        case("one choice, in its middle", "abc", "a"),
        case("two choices that begin alike", "ab ac", "a"),
        case("one choice begins another", "a ab", "a"),
        case("one choice begins another, and the longer one is complete", "a ab", "ab"),
        case("two choices go on with the same token", "abc abd", "a"),
        case("the text begins no choice", "ab ac", "d"),
        case("the text's tokens in another order", "abc", "ba"),
        case("choices that share a token with the text", "abc dbe aef", "ab"),
        case("the text is longer, and another choice goes on", "a abc", "ab"),
        case("EOS is in the text already", "a ab", "aE"),
        case("no choices", "", ""),
        case("choices that are tuples", "ab ac", "a", kind=tuple),
        case("a choice without tokens", ". a", ""),
        case("another token after one that comes twice", "abac", "aba"),
        case("token 0 comes next", "a0 b0", "a"),
        case("EOS is token 0", "ab a", "a", eos="0"),
        case("six choices", "abc abd ab bcd aecd f", "ab"),
    ]


def constrain_cases(generator: Generator) -> list[Case]:
    def case(
        label: str,
        rows: str,
        padding: int = 0,
        shift: float = 0.0,
        best: int | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> Case:
        """Rows as "110 010": 1 is allowed. padding: further columns. best: the likeliest one."""
        allowed = torch.tensor([[flag == "1" for flag in row] for row in rows.split()])
        batch, n = allowed.shape
        logits = 2.0 * normal(generator, batch, n + padding) + shift
        if best is not None:
            logits[:, best] = 9.0
        return Case(label, {"logits": logits.to(dtype), "allowed": allowed})

    return [
        case("one row, two of three tokens", "110"),
        case("one row, one token", "00010"),
        case("two rows", "11010 01011"),
        case("two other rows", "00110 10001"),
        case("two rows in bfloat16", "11010 01011", dtype=torch.bfloat16),
        case("the likeliest token isn't allowed", "10110 10011", best=1),
        case("all logits below 0", "11010 01011", shift=-20.0),
        case("three columns that belong to no token", "1101 0111", padding=3),
        case("the largest logits are in such a column", "10110 10011", padding=2, best=-1),
    ]


# ------------------------------------------------------------------------------------ derivatives


def derivative_cases(generator: Generator) -> list[Case]:
    other = letters(generator)

    def case(label: str, pattern: str, alphabet: str = "abc", longest: int = 3) -> Case:
        own, bytes_read = other(pattern), [*other(alphabet).encode("latin-1")]
        fewest = len(drivers.reached(reference.derivative, parse(own), bytes_read, 100))
        known = {"pattern": own, "alphabet": bytes_read}
        return Case(label, {**known, "longest": longest, "most": fewest + fewest // 3})

    return [
        case("one byte", "a", "ab"),
        case("two bytes", "ab", "ab"),
        case("two other bytes", "cd", "cd"),
        case("all bytes but one", "[^a]", "ab", 2),
        case("either of two texts that begin alike", "ab|ac"),
        case("the first part may be empty", "a?b", "ab"),
        case("both parts may be empty", "a?b?", "ab", 4),
        case("two bytes any number of times", "(ab)*", "ab", 5),
        case("a byte once or several times", "a+", "ab", 4),
        case("two loops, one after the other", "a*b*", "ab", 5),
        case("a loop of loops", "(a*b*)*", "ab", 4),
        case("a loop of two texts", "(a|ba)*", "ab", 5),
        case("a loop, then an ending", "(a|b)*abb", "ab", 5),
        case("a loop whose body may be empty", "(a?b?)*c", longest=4),
        case("an option within another", "(a(b|c?)|b)c", longest=4),
        case("only the empty text", "", "a", 2),
        case("characters of two bytes", "[é-ü]a|è*", "\u00c3\u00a8\u00a9a", 3),
    ]


# ------------------------------------------------------------------------- from bytes to tokens


def index_cases(generator: Generator) -> list[Case]:
    other = letters(generator)

    def case(label: str, pattern: str, words: str) -> Case:
        order = tokens_of(other(words))
        return Case(label, {**machine(other(pattern)), "vocabulary": order})

    def wild(label: str, states: int) -> Case:
        given = random_machine(generator, states)
        return Case(label, {**given, "vocabulary": some_words(generator, 8)})

    json = r'\[\{"a": "[bc]*"\}(, \{"a": "[bc]*"\})?\]'
    return [
        case("one token of one byte", "a", "a"),
        case("a token of two bytes", "ab", "a b ab"),
        case("a token that ends in the middle", "abcd", "ab cd bc c"),
        case("a token whose last byte doesn't fit", "abc", "abd ab c abc"),
        case("one byte any number of times", "a*b", "a aa aaa ab aab b ba"),
        case("a token without bytes", "ab", "~ a b ab"),
        case("two tokens with the same bytes", "ab", "a a b ab ab"),
        case("two texts that begin alike", "ab|ac", "ab ac a b c"),
        case("the empty text, and nothing else", "", "a ~"),
        case("a state in which no token fits", "abc", "a ab ca"),
        case("no tokens", "ab", ""),
        case("halves of a character", "aé", "a \u00c3 \u00a9 \u00c3\u00a9 a\u00c3 \u00a9a"),
        case("quotes and brackets", json, '[{" a ": _" bc "} "}] }] " ", }, {" [ b'),
        case("the end of a text, and a token that goes beyond it", "a|ab", "a ab abb b"),
        wild("five states in no order", 5),
        wild("five other states in no order", 5),
    ]


# ---------------------------------------------------------------------- generating under a mask


def generation_cases(generator: Generator) -> list[Case]:
    def vocabulary_of(
        words: str = "a b c d ab cd", eos: int | None = None, padding: int = 0
    ) -> tuple[list[bytes], int, int]:
        """Return tokens in any order, the place of EOS among them, the columns of logits."""
        known = tokens_of(words)
        order = [known[i] for i in torch.randperm(len(known), generator=generator).tolist()]
        place = draw(generator, 0, len(known)) if eos is None else eos
        return [*order[:place], b"", *order[place:]], place, len(known) + 1 + padding

    def case(
        label: str,
        pattern: str,
        ranks: list[list[int]] | None,
        new: int = 4,
        ends: Sequence[int] = (),
        prompts: Sequence[int] = (),
        **tokens: Any,
    ) -> Case:
        """ranks: as a Chooser has them. prompts: the length of each. tokens: see vocabulary_of.

        ends: after how many tokens each row has EOS; 0 for those that haven't.
        """
        lengths = prompts or [2] * len(ranks or [])

        def drawn() -> dict[str, Any]:
            vocabulary, place, columns = vocabulary_of(**tokens)
            automaton = machine(pattern)
            index = reference.token_index(automaton_in(automaton), vocabulary)
            return {
                "prompts": [[draw(generator, 0, columns - 1) for _ in range(n)] for n in lengths],
                "embedding": normal(generator, max(lengths) + new, columns, 4),
                "head": normal(generator, 4, columns),
                **automaton,
                "index": index,
                "max_new_tokens": new,
                "eos": place,
                **({} if ranks is None else {"ranks": ranks}),
            }

        def fits(data: Mapping[str, Any]) -> bool:
            seen = drivers.generate_constrained(reference.generate_constrained, **data)
            texts = [record.value for record in seen if record.what == "The list of new tokens"]
            found = [len(text) if text[-1:] == [data["eos"]] else 0 for text in texts]
            return not ends or found == [*ends]

        return Case(label, until(fits, drawn))

    loop, four = "(a|b|cd)+", [[0, 0, 0, -1], [0, -1], [1, 1, 1, 1, -1], [1, 0, -1]]
    return [
        case("one row, one text of one token", "a", [[0]], 3, words="a b"),
        case("one row, two texts", "ab|ac", [[0]], 3),
        case("two rows in different states", "ab|cdcd", [[0], [1]], 5, [3, 5], words="a b c d"),
        case(
            "two other rows in different states", "ab|cdcd", [[0], [1]], 5, [3, 5], words="a b c d"
        ),
        case("one row, and only one new token", loop, [[0]], 1),
        case("no new tokens", loop, [[0], [0]], 0),
        case("EOS comes as the last of the new tokens", loop, [[0, 0, 0, -1]], 4, [4]),
        case("EOS comes first", "a*", [[-1]], 3, [1]),
        case("nothing but EOS may come after the text", "ab|cd", [[1], [0]], 5, words="ab c d"),
        case("the middle row of three ends", loop, [[1], [0, -1], [0]], 4, [0, 2, 0]),
        case("the last of three rows ends", loop, [[0], [1], [0, 0, -1]], 4, [0, 0, 3]),
        case("four rows end one after the other", loop, four, 6, [4, 2, 5, 3]),
        case("the limit ends a row in the middle of a text", "abcdab", [[0]], 3, words="a b c d"),
        case("prompts of different lengths", loop, [[0], [1], [0]], 3, prompts=[1, 4, 2]),
        case("columns that belong to no token", loop, [[0], [1]], 3, padding=5),
        case("token 0 is EOS", loop, [[0, 0, -1], [1]], 4, [3, 0], eos=0),
        case("a token of several bytes", "(ab)+c", [[0], [1]], 4, words="a b c ab abc ba bab"),
        case("without `choose`, two rows, and one ends", loop, None, 5, [3, 0], prompts=[2, 2]),
    ]


# ------------------------------------------------------------------------------ jumping forward


def forced_cases(generator: Generator) -> list[Case]:
    other = letters(generator)

    def case(label: str, pattern: str, after: str = "") -> Case:
        return Case(label, machine_after(other(pattern), other(after)))

    def drawn(label: str, edges: list[dict[str, int]], *accepting: int) -> Case:
        own = [{ord(other(byte)): end for byte, end in out.items()} for out in edges]
        return Case(label, {"edges": own, "accepting": [*accepting], "state": 0})

    return [
        case("one byte", "a"),
        case("three bytes", "abc"),
        case("the end of the text", "ab", "ab"),
        case("two bytes may come", "ab|cd"),
        case("two bytes may come, and lead to the same state", "[ab]c"),
        case("three bytes, then two may come", "abc(a|b)"),
        case("the text may end in the first state", "(ab)?"),
        case("the text may end after two bytes", "ab(cd)?"),
        case("the text may end, and one byte may repeat", "ab*"),
        case("the bytes of a character", "é"),
        case("half a character is forced", "[é-ü]"),
        case("the opening of an object", r'\{"name": "[ab]*"\}'),
        drawn("a loop of one state", [{"a": 0}]),
        drawn("a loop after one byte", [{"a": 1}, {"b": 2}, {"c": 1}]),
        drawn("a loop that doesn't reach all states", [{"a": 1}, {"b": 0}, {"c": 3}, {}], 3),
        drawn("a state without edges, in which the text may not end", [{"a": 1}, {}]),
        drawn("a loop through an accepting state", [{"a": 1}, {"b": 2}, {"c": 0}], 2),
        drawn("states in another order", [{"d": 3}, {}, {"b": 1}, {"a": 2}], 1),
    ]


def held_cases(generator: Generator) -> list[Case]:
    other = letters(generator)

    def case(label: str, pattern: str, text: str, words: str) -> Case:
        """The forced text as tokens, with a bar between them. words: all further tokens."""
        own = [part for part in tokens_of(other(text).replace("|", " ")) if part]
        known = [*dict.fromkeys([*own, *tokens_of(other(words))])]
        vocabulary = [known[i] for i in torch.randperm(len(known), generator=generator).tolist()]
        given = machine(other(pattern))
        index = reference.token_index(automaton_in(given), vocabulary)
        tokens = [vocabulary.index(part) for part in own]
        both = {"tokens": tokens, "vocabulary": vocabulary}
        return Case(label, {**both, "edges": given["edges"], "index": index})

    return [
        case("one token, and none is longer", "a(b|c)", "a", "b c"),
        case("one token, and a longer one may come", "a(b|c)", "a", "b c ab"),
        case("two tokens, and the last may be longer", "ab(c|d)", "a|b", "c d bc"),
        case("two other tokens, and the last may be longer", "dc(a|b)", "d|c", "a b ca"),
        case("a longer token covers both", "ab(c|d)", "a|b", "c d abd"),
        case("longer tokens at two places", "abc(a|d)", "a|b|c", "d bcd ca"),
        case("a longer token that may not come", "ab(c|d)", "a|b", "c d ba bb"),
        case("a longer token that may come elsewhere only", "aba(c|d)|ca", "c|a", "ab ad"),
        case("a longer token that may come after the text only", "ab(bc|d)", "a|b", "c d bc"),
        case("a token that covers exactly the rest", "abc(a|d)", "a|b|c", "bc d"),
        case("a longer token that ends before the end", "abcd(a|b)", "a|b|c|d", "ab bc abc"),
        case(
            "the king, or the knight", "_the_k(ing|night)".replace("_", " "), "_the|_k", "_king i n"
        ),
        case("no tokens", "[ab]c", "", "a b ac bc"),
        case("quotes and brackets", r'"\}(, |\])', '"|}', '"} }] "}, ,'),
        case("half a character", "a[é-ü]", "a|\u00c3", "\u00c3\u00a9 \u00a9"),
    ]


# -------------------------------------------------------------------------- a stack of brackets


def region_cases(generator: Generator) -> list[Case]:
    other = letters(generator)

    def case(label: str, region: str, words: str, after: str = "") -> Case:
        given = machine_after(other(region), other(after))
        return Case(label, {**given, "vocabulary": tokens_of(other(words))})

    def wild(label: str, states: int) -> Case:
        given = random_machine(generator, states)
        vocabulary = some_words(generator, 12, longest=4)
        return Case(
            label, {**given, "state": draw(generator, 0, states - 1), "vocabulary": vocabulary}
        )

    value = r'"[ab]*"|[1-9][0-9]*(\.[0-9]+)?|true|\[|\{'
    pieces = '" "} "}] ", }] } , ] a ab a" a"} "a" 1 12 1} 1, 12.5 .5 .5} 1.} [ [[ [1 {" tr ~'
    return [
        case("one byte", "a", "a b"),
        case("a token that goes beyond the end", "a", "a ab b"),
        case("a token without bytes", "a", "~ a"),
        case("in a state where the region may be left", "ab?", "b c bc ~ cb", "a"),
        case("where it may be left, and goes on", "a+", "a aa ab b ba aab", "a"),
        case("it could have been left before", "a(bc)?", "ab abd abc abcd a", ""),
        case("from the middle", "abc", "bc b bcd bd c", "a"),
        case("halves of a character", "é", "\u00c3 \u00a9 \u00c3\u00a9 \u00c3\u00a9a \u00c3a"),
        case("a value of JSON, at its beginning", value, pieces),
        case("in a string", value, pieces, '"a'),
        case("in a number", value, pieces, "12"),
        case("no tokens", "a", ""),
        wild("five states in no order", 5),
        wild("five other states in no order", 5),
    ]


EXERCISES: tuple[Exercise, ...] = (
    Exercise("constrained.allowed_choices", drivers.allowed_choices, choice_cases),
    Exercise("constrained.constrain", drivers.constrain, constrain_cases),
    Exercise("constrained.derivative", drivers.derivative, derivative_cases),
    Exercise("constrained.token_index", drivers.token_index, index_cases),
    Exercise("constrained.generate_constrained", drivers.generate_constrained, generation_cases),
    Exercise("constrained.forced", drivers.forced, forced_cases),
    Exercise("constrained.hold_back", drivers.hold_back, held_cases),
    Exercise("constrained.classify", drivers.classify, region_cases),
)
