"""The exercises of lab 25: a budget of thoughts, two kinds of deltas, votes, prompts, history."""

from typing import Any

import torch

from autograder.attempt.drivers import thinking as drivers
from autograder.judging.draws import draw
from autograder.judging.exercise import Case, Exercise, case_of
from solutions import thinking as reference
from solutions.constrained import Automaton
from solutions.grammars.regex import parse

# ------------------------------------------------------------------------------------- a budget


def packed(automaton: Automaton) -> list[tuple[bytes, list[int]]]:
    """Return the edges as they are sent, of each state its bytes and the state after each."""
    return [(bytes(out), list(out.values())) for out in automaton.edges]


def closing_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, pattern: str, end: bytes) -> Case:
        whole = reference.thoughtful(parse(pattern), end)
        data = {"edges": packed(whole), "accepting": sorted(whole.accepting), "end": end}
        return Case(label, data)

    letters = "".join(chr(97 + draw(generator, 0, 3)) for _ in range(4))
    return [
        case("a mark of one byte", "a", b"<"),
        case("a mark of two bytes", "a", b"<>"),
        case("a mark that begins again within itself", "[0-9]", b"aab"),
        case("an answer that may be empty", "x*", b"ab"),
        case("an answer that may be repeated", "(ab)+", b"</t>"),
        case("an answer that begins as the mark does", "<|aa", b"aa<"),
        case("a long mark", "yes|no", b"</think>"),
        case("another mark", "[a-c]d?", letters.encode()),
    ]


WORDS = [b"a", b"<", b">", b"a<", b"<>", b">1", b"<>1", b"1", b"2", b""]  # the last is EOS
A, LESS, MORE, A_LESS, MARK, MORE_1, MARK_1, ONE, TWO, EOS = range(10)


def budget_data(most: int, pattern: str = "1|12") -> dict[str, Any]:
    whole = reference.thoughtful(parse(pattern), b"<>")
    shut = reference.closing(whole, b"<>")
    accepting = sorted(whole.accepting)
    return {
        "free": packed(whole),
        "shut": packed(shut),
        "accepting": accepting,
        "words": WORDS,
        "most": most,
    }


def allowed_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, most: int, *states: tuple[int, int], pattern: str = "1|12") -> Case:
        return Case(label, {"states": list(states), **budget_data(most, pattern)})

    inside = reference.thoughtful(parse("1|12"), b"<>")
    answer = inside.edges[1][ord(">")]  # where the answer begins
    after = inside.edges[answer][ord("1")]
    some = draw(generator, 5, 9)
    return [
        case("at the beginning, with a budget of 3", 3, (0, 0)),
        case("at the beginning, with a budget of 0", 0, (0, 0)),
        case("one token is left", 3, (0, 2)),
        case("two tokens are left", 3, (0, 1)),
        case("the budget is spent", 3, (0, 3)),
        case("more is spent, as the mark takes two tokens", 3, (1, 4)),
        case("the budget is spent within the mark", 2, (1, 2)),
        case("the mark has begun, and some is left", 2, (1, 1)),
        case("the answer, before the budget is spent", 9, (answer, 4)),
        case("the answer, after it", 2, (answer, 3)),
        case("the answer may end, after the budget is spent", 1, (after, 2)),
        case("a budget of 0, after a token", 0, (1, 1)),
        case("a budget of 1", 1, (0, 0), (0, 1)),
        case("all states", some, *((s, n) for s in (0, 1, answer, after) for n in (0, some))),
        case("another answer", 2, (0, 1), (1, 2), (answer, 2), pattern="2+"),
    ]


def advance_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, most: int, *tokens: int, pattern: str = "1|12") -> Case:
        return Case(label, {"tokens": list(tokens), **budget_data(most, pattern)})

    some = [A if draw(generator, 0, 1) else A_LESS for _ in range(5)]
    return [
        case("one token", 5, A),
        case("two tokens of thoughts", 5, A, A),
        case("the mark at once", 5, MARK),
        case("the mark, then the answer", 5, MARK, ONE),
        case("thoughts, the mark, the answer", 5, A, A, MARK, ONE, TWO),
        case("the mark in two tokens", 5, A, LESS, MORE, ONE),
        case("a token that begins the mark", 5, A_LESS, MORE, ONE),
        case("a token that ends the mark and goes on", 5, LESS, MORE_1, TWO),
        case("a token with all of the mark", 5, A, MARK_1, TWO),
        case("the mark isn't completed", 5, LESS, A, MARK, ONE),
        case("after the budget", 1, A, LESS, MORE, ONE),
        case("EOS", 3, MARK, ONE, EOS),
        case("another text", 9, *some, MARK, TWO, TWO, EOS, pattern="2+"),
    ]


# ------------------------------------------------------------------------- thoughts and the answer


def push_cases(generator: torch.Generator) -> list[Case]:
    case = case_of("end", "pieces")
    end = "</think>"
    text = f"2 and 3 < 6, </b>, </t{end}5</think> or so"
    cuts, rest = list[str](), text
    while rest:
        size = draw(generator, 1, 5)
        cuts.append(rest[:size])
        rest = rest[size:]
    return [
        case("only thoughts", end, ["so", " be it"]),
        case("the mark alone", end, [end]),
        case("thoughts, the mark and an answer in one piece", end, [f"so{end}5"]),
        case("in three pieces", end, ["so", end, "5"]),
        case("no thoughts", end, [f"{end}5", "6"]),
        case("the mark in two pieces", end, ["so</th", "ink>5"]),
        case("the mark letter by letter", end, list(f"a{end}b")),
        case("the beginning of a mark that isn't one", end, ["a</th", "at", end, "b"]),
        case("a beginning within a beginning", end, ["<</th", "<", "/think", ">1"]),
        case("a second mark, in the answer", end, [f"a{end}b", end, "c</th", "d"]),
        case("two marks in one piece", end, [f"a{end}b{end}c"]),
        case("empty pieces", end, ["", "a", "", end, "", "b", ""]),
        case("the answer in the piece that ends the mark", end, ["a<", "/think>b"]),
        case("spaces at the mark", end, [f"so {end} 5", " "]),
        case("another mark", "aab", ["caa", "ab", "aab"]),
        case("a long text", end, cuts),
        case("the same, letter by letter", end, list(text)),
    ]


# ------------------------------------------------------------------------------ one of many answers


def majority_cases(generator: torch.Generator) -> list[Case]:
    case = case_of("answers", "logprobs")
    three = draw(generator, -9, -6)
    names: list[str | None] = ["a", "b", "c", None]
    some = [names[draw(generator, 0, 3)] for _ in range(9)]
    their = [-draw(generator, 1, 50) / 10 for _ in some]
    return [
        case("one sample", ["7"], [-1.0]),
        case("no sample", [], []),
        case("one sample without an answer", [None], [-1.0]),
        case("two against one", ["7", "8", "8"], [-0.1, -3.0, -3.0]),
        case("the first has most", ["8", "7", "8"], [-2.0, -0.5, -2.0]),
        case("most have no answer", [None, None, "7"], [-0.1, -0.1, -5.0]),
        case("most have an empty answer", ["", "7", ""], [-2.0, -0.5, -2.0]),
        case("a tie", ["7", "8"], [-2.0, -1.0]),
        case("a tie, the other way", ["7", "8"], [-1.0, -2.0]),
        case("a tie of two pairs", ["7", "8", "7", "8"], [-0.5, -1.0, -3.0, -1.0]),
        case(
            "a tie, and sums of the logarithms the other way",
            ["7", "8", "7", "8"],
            [-0.1, -1.5, -9.0, -1.5],
        ),
        case("a tie, very unlikely", ["7", "8"], [-5001.0, -5000.0]),
        case("weighted, two small ones", ["7", "8", "8"], [-1.0, -2.0, -2.0], weighted=True),
        case("the same, weighted", ["7", "8", "8"], [-0.1, -3.0, -3.0], weighted=True),
        case(
            "weighted, three small ones",
            ["7", "8", "8", "8"],
            [-1.0, -1.9, -1.9, -1.9],
            weighted=True,
        ),
        case(
            "weighted, with one that has no answer",
            [None, "7", "8"],
            [-0.1, three - 1, three],
            weighted=True,
        ),
        case("weighted, very unlikely", ["7", "8", None], [-4001.0, -4000.0, -1.0], weighted=True),
        case("weighted, no answer", [None, None], [-1.0, -2.0], weighted=True),
        case("votes, not weighted", ["7", "8", "8"], [-0.1, -3.0, -3.0], weighted=False),
        case("nine more", some, their),
        case("nine more, weighted", some, their, weighted=True),
    ]


def best_of_cases(generator: torch.Generator) -> list[Case]:
    case = case_of("texts", "logprobs", "by")
    short = ["no", "it is so"], [[-1.0], [-0.4, -0.4, -0.4]]
    words = ["it was", "unbelievable"], [[-0.3, -0.4], [-0.6]]
    accents = ["é", "ab"], [[-1.0], [-1.0]]
    texts = ["x" * draw(generator, 1, 9) for _ in range(6)]
    logprobs = [[-draw(generator, 1, 40) / 10 for _ in range(draw(generator, 1, 5))] for _ in texts]
    kinds = "sum", "mean", "bytes"
    return [
        *(case(f"one text, by {by}", ["a"], [[-1.0]], by) for by in kinds),
        *(case(f"a short one and a long one, by {by}", *short, by) for by in kinds),
        *(case(f"long words, by {by}", *words, by) for by in kinds),
        *(case(f"equal ones, by {by}", ["ab", "ba"], [[-1.0], [-1.0]], by) for by in kinds),
        *(case(f"a letter of two bytes, by {by}", *accents, by) for by in kinds),
        *(
            case(
                f"a sure and an unsure token, by {by}",
                ["abc", "bcd"],
                [[-0.1, -4.0], [-1.5, -1.5]],
                by,
            )
            for by in kinds
        ),
        case("many tokens, by bytes", ["abcd", "dcba"], [[-1.0], [-0.4] * 4], "bytes"),
        case("very unlikely, by sum", ["ab", "ba"], [[-400.0, -500.0], [-400.0, -400.0]], "sum"),
        case("the last is the best", ["a", "b", "c"], [[-3.0], [-2.0], [-1.0]], "sum"),
        *(case(f"six more, by {by}", texts, logprobs, by) for by in kinds),
    ]


def forked_cases(generator: torch.Generator) -> list[Case]:
    case = case_of("n", "first", "waits", "steps", "others")
    number = draw(generator, 5, 30)
    return [
        case("two, and a prompt of one step", 2, 0, 0, 1, []),
        case("three, and a prompt of one step", 3, 0, 0, 1, []),
        case("a prompt of three steps", 2, 0, 0, 3, []),
        case("another request runs", 2, 1, 0, 2, [0]),
        case("two others run", 4, 7, 0, 4, [2, 6]),
        case("the first one waits for two steps", 3, 4, 2, 2, [1, 3]),
        case("later numbers", 5, number, 1, draw(generator, 2, 5), [number - 2]),
    ]


def agreed_cases(generator: torch.Generator) -> list[Case]:
    case = case_of("votes", "left")
    most = draw(generator, 5, 9)
    return [
        case("no votes yet", {}, 4),
        case("one vote, and one left", {"7": 1}, 1),
        case("two votes, and one left", {"7": 2}, 1),
        case("one vote ahead, and one left", {"7": 2, "8": 1}, 1),
        case("one vote ahead, and four left", {"7": 2, "8": 1}, 4),
        case("two votes ahead, and one left", {"7": 3, "8": 1}, 1),
        case("the first in second place", {"8": 1, "7": 4}, 2),
        case("a tie, and none left", {"7": 2, "8": 2}, 0),
        case("one vote ahead, and none left", {"7": 3, "8": 2}, 0),
        case("no votes, and none left", {}, 0),
        case("three answers", {"7": 4, "8": 1, "9": 2}, 1),
        case("more than half, but not enough for the rest", {"7": 3, "8": 1}, 2),
        case("most votes, less than half", {"7": 4, "8": 2, "9": 2, "6": 2}, 1),
        case("as many ahead as left", {"a": most, "b": 2}, most - 2),
        case("one more", {"a": most, "b": 2}, most - 3),
    ]


# ---------------------------------------------------------------------------------- the next turn


def says(role: str, content: str | None, thoughts: str = "", **more: Any) -> dict[str, Any]:
    return {
        "role": role,
        "content": content,
        **({"reasoning_content": thoughts} if thoughts else {}),
        **more,
    }


def without_thoughts_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, *messages: dict[str, Any]) -> Case:
        return Case(label, {"messages": list(messages)})

    user, thinks = says("user", "27="), says("assistant", "13", "0213")
    plain, system = says("assistant", "13"), says("system", "Add.")
    calls = says("assistant", None, "I ask", tool_calls=[{"id": "a"}])
    result = says("tool", "5", tool_call_id="a")
    number = str(draw(generator, 10, 99))
    return [
        case("a question", user),
        case("no messages"),
        case("a question and its answer", user, thinks),
        case("a second question", user, thinks, user),
        case("without thoughts", user, plain, user),
        case("three turns", user, thinks, user, thinks, user),
        case("three turns and an answer", user, thinks, user, thinks, user, thinks),
        case("a call in this turn", system, user, calls, result),
        case(
            "a call in this turn, and one before", user, calls, result, thinks, user, calls, result
        ),
        case("two answers after a call", user, calls, result, thinks, plain),
        case("thoughts before the first question", thinks, user, thinks, user),
        case("no message of a user", system, thinks),
        case("no message of a user, thoughts first", thinks, plain),
        case("an empty thought", user, says("assistant", "1") | {"reasoning_content": ""}, user),
        case(
            "thoughts that are None",
            user,
            says("assistant", "1") | {"reasoning_content": None},
            user,
        ),
        case("other fields", user, says("assistant", number, "so", name="a"), user),
    ]


EXERCISES = (
    Exercise("thinking.closing", drivers.closing, closing_cases),
    Exercise("thinking.Budget.allowed", drivers.allowed, allowed_cases),
    Exercise("thinking.Budget.advance", drivers.advance, advance_cases),
    Exercise("thinking.ThoughtStream.push", drivers.push, push_cases),
    Exercise("thinking.majority", drivers.majority, majority_cases),
    Exercise("thinking.best_of", drivers.best_of, best_of_cases),
    Exercise("thinking.forked", drivers.forked, forked_cases),
    Exercise("thinking.agreed", drivers.agreed, agreed_cases),
    Exercise("thinking.without_thoughts", drivers.without_thoughts, without_thoughts_cases),
)
