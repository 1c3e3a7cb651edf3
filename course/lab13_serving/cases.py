"""The exercises of lab 13: arrivals, text, events, a pool, admission, routing, failover."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from autograder.attempt.drivers import serving as drivers
from autograder.judging.draws import draw, until
from autograder.judging.exercise import Case, Exercise, case_of

Generator = torch.Generator
Step = tuple[str, Any]  # of a script, by what happens; an event


def steps_of(what: str) -> Callable[[Any], Step]:
    return lambda value: (what, value)


wait, piece, fault, error = map(steps_of, ("wait", "piece", "fault", "raise"))
HANG = "hang", ""


def some(generator: Generator, count: int) -> list[float]:
    """Numbers between 0 and 1, with four digits: none of them is on the verge of another."""
    return [draw(generator, 1, 9_999) / 10_000 for _ in range(count)]


# ---------------------------------------------------------------------------------------- arrivals


def open_loop_cases(generator: Generator) -> list[Case]:
    """Rates are high, so that an attempt that really sleeps comes to an end."""

    def case(label: str, uniforms: list[float], rate: float, seconds: Any, **more: Any) -> Case:
        count = len(uniforms)
        seconds = seconds if isinstance(seconds, list) else [seconds] * count
        results = torch.randperm(1000, generator=generator)[:count].tolist()
        given = {"uniforms": uniforms, "rate": rate, "seconds": seconds, "results": results}
        return Case(label, given | more)

    def numbers(count: int) -> list[float]:
        return some(generator, count)

    def times(count: int) -> list[float]:
        return [draw(generator, 1, 400) / 10_000 for _ in range(count)]

    busy = [0.0, 0.05, 0.0, 0.0, 0.0, 0.0]
    return [
        case("one request", numbers(1), 100.0, 0.01),
        case("no request", [], 100.0, []),
        case("two requests, the first one takes long", numbers(2), 100.0, [0.5, 0.01]),
        case("two other requests, the first one takes long", numbers(2), 100.0, [0.5, 0.01]),
        case("the answers come in another order", numbers(3), 100.0, [0.5, 0.3, 0.1]),
        case("no gap before some requests", [0.5, 0.0, 0.0, 0.25], 100.0, times(4)),
        case("no gap before the first request", [0.0, *numbers(2)], 50.0, times(3)),
        case("long gaps", [0.999, 0.98, 0.9], 200.0, times(3)),
        case("less than one request per second", [0.02, 0.01], 0.5, [0.5, 0.25]),
        case("the call comes late", numbers(3), 100.0, times(3), start=3.25),
        case("a request takes very long", numbers(4), 80.0, [0.01, 4.0, 0.01, 0.01], start=1.5),
        case(
            "sending a request keeps the whole event loop busy for 50 ms",
            *([0.4, 0.5, 0.6, 0.7, 0.99, 0.5], 100.0, 0.01),
            busy=busy,
        ),
        case("a request fails at once", numbers(4), 100.0, [0.0, 0.01, 0.01, 0.01], fails=[0]),
        case("two requests fail later", numbers(5), 100.0, times(5), fails=[1, 3]),
        case("twelve requests", numbers(12), 120.0, times(12), start=0.75),
        case("150 requests that all take long", numbers(150), 1000.0, 3.0),
    ]


# ------------------------------------------------------------------------------------ text to show


def push_cases(generator: Generator) -> list[Case]:
    def case(label: str, *pieces: str | bytes, stop: tuple[str, ...] = ()) -> Case:
        """Each piece is the bytes of one token; the ids are drawn, so that they mean nothing."""
        own = [p.encode() if isinstance(p, str) else p for p in pieces]
        vocabulary = sorted(set(own) | {b"x", b" never", "\u201c".encode()})
        order = torch.randperm(len(vocabulary), generator=generator).tolist()
        tokens = [list(vocabulary[i]) for i in order]
        ids = [tokens.index(list(piece)) for piece in own]
        return Case(label, {"tokens": tokens, "stop": list(stop), "ids": ids})

    def torn(text: str, *at: int) -> list[bytes]:
        """A text whose bytes are cut at these places."""
        content = text.encode()
        places = [0, *at, len(content)]
        return [content[i:j] for i, j in pairwise(places)]

    def cut(text: str) -> list[bytes]:
        """A text cut into tokens of one to four bytes."""
        sizes: list[int] = []
        while sum(sizes) < len(text.encode()):
            sizes.append(draw(generator, 1, 4))
        return torn(text, *(sum(sizes[: n + 1]) for n in range(len(sizes) - 1)))

    story = "\u201cWell\u201d, said the fox \u2013 \u201cfür mich\u201d.\n\nThe end. The fox slept."
    return [
        case("one token", "Once"),
        case("three tokens", "Once", " upon", " a"),
        case("three other tokens", "Long", " ago", " a"),
        case("the same token twice", " no", " no", "!"),
        case("a token without any text", "a", "", "b"),
        case("a character of two bytes in two tokens", "f", *torn("ü", 1), "r"),
        case("a quote of three bytes in three tokens", "He: ", *torn("\u201c", 1, 2), "Oh"),
        case("a dash whose last byte comes with other text", "a ", *torn("\u2013 b", 2)),
        case("two characters, the second one torn", *torn("é\u201d", 3), b"\x9d"),
        case("torn at the end", "It was", torn(" \u201c", 2)[0]),
        case("a byte that belongs to no character, then text", "a", b"\xe2", "b", "c"),
        case("a stop string in one token", "The", " end.", " More", stop=(" end",)),
        case("a stop string with text before and after it", "a fox\n\nThe", " b", stop=("\n\n",)),
        case("a stop string in three tokens", "So", " be", " it", " then", stop=("e it",)),
        case("the beginning of a stop string that isn't one", "one\n", "two", stop=("\n\n",)),
        case("it begins twice, and then it comes", "ab", "ab", "c", "d", stop=("abc",)),
        case("it begins again inside itself", "aa", "a", "b", "c", stop=("aab",)),
        case("held back until the end", "a fox", " e", stop=(" end",)),
        case("held back at the end, after a torn character", "x", *torn("ü\n", 1), stop=("\n#",)),
        case("a stop string of one character", "a", "b", ".c", "d", stop=(".",)),
        case("a stop string at the very beginning", "#", " Title", stop=("#",)),
        case("a stop string as the whole text", "en", "d", stop=("end",)),
        case("two stop strings, the second one comes first", "a; b.", " c", stop=(".", ";")),
        case("two stop strings, the first one comes first", "a; b.", " c", stop=(";", ".")),
        case("a stop string comes twice in one token", "a;b;c", " d", stop=(";",)),
        case("two stop strings, and both may have begun", "x a", "b", "c", stop=("bcd", "abx")),
        case("a stop string within what another one holds", "a", "b", "c", "d", stop=("abcd", "c")),
        case("stop strings that never come", "a cat", " slept", stop=("dog", "fox")),
        case(
            "a stop string whose last character is torn",
            "a\n",
            *torn("\u201c", 1),
            "b",
            stop=("\n\u201c",),
        ),
        case("a stop string, then a torn character", "a.", *torn("ü", 1), "b", stop=(".",)),
        case("a text in small pieces", *cut(story)),
        case(
            "a text in small pieces, with stop strings", *cut(story), stop=("The moral", "The fox")
        ),
    ]


# ------------------------------------------------------------------------------- events on the wire


tell = steps_of("tell")  # an error whose words a client may read


def choice(text: str, reason: str | None = None, index: int = 0) -> Step:
    return "choice", {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


def sse_cases(generator: Generator) -> list[Case]:
    def case(label: str, *script: Step, usage: bool = False, **how: Any) -> Case:
        number = draw(generator, 100, 999)
        head = {"id": f"cmpl-{number}", "object": "text_completion", "model": "fable"}
        used = {"prompt_tokens": draw(generator, 1, 99), "completion_tokens": number}
        asked = {"usage": used} if usage else {}
        return Case(label, {"script": list(script), "head": head, **asked, **how})

    a, b, quarter = choice("a"), choice("b"), wait(0.25)
    three = wait(0.5), choice("Once"), quarter, choice(" upon"), quarter, choice(" a", "length")
    both = choice("a"), choice("b", None, 1), choice("c", "stop"), choice("d", "length", 1)
    return [
        case("one choice", choice("Once", "stop")),
        case("three choices, one after the other", *three),
        case("three choices, and the usage", *three, usage=True),
        case("two answers at once, and one ends earlier", *both, usage=True),
        case("one choice, and the usage", wait(1.0), choice("Once", "length"), usage=True),
        case("no choice", wait(1.0)),
        case("no choice, and the usage", usage=True),
        case("line breaks in the text", choice("a\n\nb"), choice("\n"), choice("\r\n", "stop")),
        case("quotes in the text", choice('"Oh"'), choice("it's"), choice("\\", "stop")),
        case(
            "letters beyond ASCII",
            choice("für"),
            choice("\u201cja\u201d"),
            choice("\u2028", "stop"),
        ),
        case("a choice without text", choice(""), a, choice("", "stop")),
        case("the text is [DONE]", choice("[DONE]"), choice("a", "stop")),
        case("a fault before the first choice", wait(1.0), error("out of memory in block 7")),
        case("a fault after two choices", a, wait(1.0), b, error("step failed in /srv")),
        case("a fault after two choices, usage asked for", a, b, error("no"), usage=True),
        case("a fault whose words clients may read", a, tell("The server is shutting down.")),
        case("such a fault at once, usage asked for", tell("Try again later."), usage=True),
        case("the client leaves while it waits", *three, usage=True, leaves=0.6),
        case("the client leaves before the first choice", *three, leaves=0.25),
        case("the client closes the stream after one event", *three, closes_after=1),
        case("the client closes it after the last choice", *three, usage=True, closes_after=3),
    ]


# ------------------------------------------------------------------------------ a pool of requests


FAULT = "fault"


def stream_cases(generator: Generator) -> list[Case]:
    def case(label: str, *requests: dict[str, Any], lag: float = 0.5) -> Case:
        return Case(label, {"requests": list(requests), "lag": lag})

    def request(*plan: tuple[Any, ...], **how: Any) -> dict[str, Any]:
        """plan: outputs, see `output`; without any, `submit` raises.

        how: when the request comes, how its client reads.
        """
        steps = [output(*each) for each in plan]
        return {"id": f"r{draw(generator, 100, 9_999)}", "plan": steps, **how}

    def output(after: float, tokens: int | str, reason: str | None = None) -> tuple[Any, ...]:
        """Tokens that come so many seconds after the output before, or FAULT."""
        if tokens == FAULT:
            return float(after), "A step of the engine has failed.", None
        return float(after), [draw(generator, 0, 300) for _ in range(int(tokens))], reason

    long, endless = [*[(1, 1)] * 3, (1, 1, "length")], [(1, 1)] * 7
    mixed = [request((0.5, 1), (1, 2), (0.7, 1, "stop")), request((0.6, 1), (1, FAULT), comes=0.25)]
    return [
        case("one token", request((1, 1, "stop"))),
        case("three outputs", request((1, 1), (0.5, 1), (0.5, 1, "length"))),
        case("three other outputs", request((1, 1), (0.5, 2), (0.5, 1, "stop"))),
        case("an output without a token at the end", request((1, 1), (1, 0, "stop"))),
        case("the engine delivers while it is handed the request", request((0, 1), (0, 1, "stop"))),
        case("the first output comes at once", request((0, 1), (1, 1), (1, 1, "stop"))),
        case("a fault before the first token", request((1, FAULT))),
        case("a fault at once", request((0, FAULT))),
        case("a fault after two tokens", request((1, 1), (1, 1), (1, FAULT))),
        case("`submit` raises", request()),
        case("a time limit passes before the first token", request(*long, leaves=0.5)),
        case("a time limit passes between two tokens", request(*long, leaves=2.5)),
        case("the client leaves after the first output", request(*endless, closes_after=1)),
        case("the client leaves after three outputs", request(*endless, closes_after=3)),
        case(
            "the client leaves after the last output",
            request((1, 1), (1, 1, "stop"), closes_after=2),
        ),
        case("the client leaves while it writes", request(*endless, leaves=2.25, pause=0.5)),
        case("a slow client", request((1, 1), (0.25, 1), (0.25, 1), (0.25, 1, "stop"), pause=2.0)),
        case("a slow client, and a fault", request((1, 1), (0.25, 1), (0.25, FAULT), pause=2.0)),
        case("an output comes after the abort", request(*long, leaves=1.75), lag=1.5),
        case("two requests, one after the other", request(*long), request(*long, comes=9.0)),
        case("two requests side by side", request(*long), request(*long, comes=0.4)),
        case(
            "two requests, and one has a time limit",
            request(*long),
            request(*long, comes=0.4, leaves=1.7),
        ),
        case("two requests, and a fault of one", *mixed),
        case(
            "four requests",
            request(*long),
            request((0.3, 1), (1, 1, "stop"), comes=0.2),
            request(*endless, comes=0.7, leaves=2.6),
            request(*endless, comes=1.1, closes_after=2),
        ),
    ]


# --------------------------------------------------------------------------------------- admission


def admit(*tokens: int) -> list[Step]:
    return [("admit", count) for count in tokens]


def release(*tokens: int) -> list[Step]:
    return [("release", count) for count in tokens]


def admit_cases(generator: Generator) -> list[Case]:
    def case(label: str, *events: Step, target_ttft: float = 0.5, rate: float = 1000.0) -> Case:
        """By default up to 500 prompt tokens wait."""
        about = {"target_ttft": target_ttft, "prefill_rate": rate}
        return Case(label, {**about, "events": list(events)})

    size = [draw(generator, 150, 249) for _ in range(2)]
    many = admit(*(draw(generator, 60, 140) for _ in range(9)))
    return [
        case("one request", *admit(100)),
        case("two requests", *admit(100, 300)),
        case("just as many tokens as are computed in time", *admit(200, 300)),
        case("one token too many", *admit(200, 301)),
        case("one token too few", *admit(200, 299)),
        case("a request is refused", *admit(size[0], 400)),
        case("another request is refused", *admit(size[1], 400)),
        case("smaller requests after one that was refused", *admit(300, 400, 150, 50)),
        case("refused twice, with the same seconds", *admit(300, 400, 400)),
        case(
            "admitted when another has its first token",
            *admit(300, 400),
            *release(300),
            *admit(400),
        ),
        case("the seconds are those until it fits", *admit(200, 200, 150, 300, 500)),
        case("a prompt that is too long, and no other request", *admit(900)),
        case("a prompt that is too long, twice", *admit(900, 900), *release(900), *admit(900)),
        case(
            "a prompt that is too long, after another", *admit(100, 900), *release(100), *admit(900)
        ),
        case(
            "a short one after a prompt that is too long", *admit(900, 1), *release(900), *admit(1)
        ),
        case("thirty short requests", *admit(*[1] * 30)),
        case("all have their first token", *admit(250, 250), *release(250, 250), *admit(500, 1)),
        case("a slower machine", *admit(40, 40), *release(40), rate=100.0),
        case("a shorter target", *admit(200, 200), *release(200), target_ttft=0.25),
        case("nine requests", *many),
    ]


# ----------------------------------------------------------------------------------------- routing


class Replica(NamedTuple):
    """Before the first event. known: a letter for each block that it knows."""

    known: str = ""
    load: int = 0
    served: int = 0
    is_healthy: bool = True


def pick_cases(generator: Generator) -> list[Case]:
    def case(label: str, replicas: list[Replica], *events: Any, slack: int | None = 4) -> Case:
        """Events: "abc" picks for a prompt of three blocks, and ("serve", "abc") begins it, too;
        ("end", 0), ("down", 1), ("up", 1)."""
        own = [[r.load, r.served, r.is_healthy, blocks(r.known)] for r in replicas]
        both = [("pick", event) if isinstance(event, str) else event for event in events]
        steps = [(what, blocks(x) if isinstance(x, str) else x) for what, x in both]
        usual = {} if slack is None else {"slack": slack}
        return Case(label, {"replicas": own, "events": steps, **usual})

    def blocks(letters: str) -> list[str]:
        return [f"block {letter}" for letter in letters]

    def chats(turns: int) -> list[tuple[str, Any]]:
        """Turns of four chats in a random order; each prompt is two blocks longer than the one
        before, which has ended then."""
        names, lengths = ("abcdefgh", "ijklmnop", "qrstuvwx", "ABCDEFGH"), [0] * 4
        running: dict[int, int] = {}
        events: list[tuple[str, Any]] = []
        for number in range(turns):
            chat = until(lambda chat: lengths[chat] < 8, lambda: draw(generator, 0, 3))
            events += [("end", running[chat])] if chat in running else []
            lengths[chat] += 2
            events.append(("serve", names[chat][: lengths[chat]]))
            running[chat] = number
        return [*events, *(("end", number) for number in running.values())]

    idle, busy, ill = Replica(), Replica(load=1), Replica(is_healthy=False)
    new = [("serve", block) for block in "abcdefgh"]
    short = [event for n, block in enumerate("abcdef") for event in (("serve", block), ("end", n))]
    alike = [("serve", f"ab{block}") for block in "cdefghijkl"]
    down = ("serve", "ab"), ("down", 0), ("serve", "abc"), ("serve", "abcd"), ("up", 0), "abcd"
    served_5, served_3 = Replica(load=1, served=5), Replica(load=1, served=3)
    by_hand = [Replica("abc", 4), Replica("ab", 3), Replica("bc", 1), Replica("abc", 0, 0, False)]
    return [
        case("one replica", [idle], "abc"),
        case("nothing is known", [Replica(load=2), busy], "abc"),
        case("the second one knows the beginning", [idle, Replica("ab")], "abc"),
        case("the first one knows more", [Replica("abc"), Replica("ab")], "abcd"),
        case("the second one knows more", [Replica("ab"), Replica("abc")], "abcd"),
        case("the first one knows later blocks only", [Replica("bcd"), Replica("a")], "abcd"),
        case("the first one knows blocks with a gap", [Replica("acd"), Replica("ab")], "abcd"),
        case("the first one knows many other blocks", [Replica("uvwxyz"), Replica("a")], "ab"),
        case("the second one knows more than there is", [idle, Replica("abcde")], "ab"),
        case("a request without a full block", [busy, Replica("ab")], ""),
        case("equal beginnings, less load", [Replica("ab", 2), Replica("ab", 1)], "abc"),
        case("equal loads, fewer requests served", [served_5, served_3], "a"),
        case(
            "less load, more requests served", [Replica(load=1, served=1), Replica(served=9)], "a"
        ),
        case("all are equal", [idle] * 3, "abc"),
        case("equal but for other blocks", [idle, Replica("x")], "a"),
        case("just within the slack", [idle, Replica("a", 4)], "ab"),
        case("just beyond the slack", [idle, Replica("a", 5)], "ab"),
        case(
            "within the slack of the least load",
            [Replica(load=3), Replica("a", 7), Replica(load=9)],
            "ab",
        ),
        case(
            "the replica that knows most is too busy",
            [Replica("a", 2), busy, Replica("abc", 9)],
            "abc",
        ),
        case("the example by hand", by_hand, "abc", slack=2),
        case("no slack", [Replica("a", 1), idle], "ab", slack=0),
        case("no slack, and equal loads", [busy, Replica("a", 1)], "ab", slack=0),
        case("a slack of one", [Replica("a", 1), idle], "ab", slack=1),
        case("the usual slack, just within it", [busy, Replica("a", 5)], "a", slack=None),
        case("the usual slack, just beyond it", [busy, Replica("a", 6)], "a", slack=None),
        case("the first one isn't healthy", [ill, Replica(load=3)], "a"),
        case(
            "the one that knows most isn't healthy", [busy, Replica("abc", is_healthy=False)], "abc"
        ),
        case(
            "the one with the least load isn't healthy",
            [ill, Replica(load=5), Replica("a", 8)],
            "ab",
        ),
        case("no replica is healthy", [ill, ill], "ab"),
        case("no replica at all", [], "ab"),
        case("one after the other gets well", [ill, ill], "a", ("up", 1), "a", ("up", 0), "a"),
        case("one isn't healthy for some time", [idle] * 2, *down),
        case("eight new requests, one after the other", [idle] * 3, *new),
        case("new requests that end at once", [idle] * 3, *short),
        case("requests that begin alike", [idle] * 2, *alike, slack=2),
        case("the turns of four chats", [idle] * 3, *chats(14)),
        case("the turns of four other chats", [idle] * 3, *chats(14), slack=1),
    ]


# ---------------------------------------------------------------------------------------- failover


def failover_cases(generator: Generator) -> list[Case]:
    def case(label: str, *scripts: list[Step], deadline: float = 5.0, **how: Any) -> Case:
        """scripts: what the replicas do that are tried, one after the other."""
        order = torch.randperm(len(scripts) + 2, generator=generator)[: len(scripts)].tolist()
        given: list[Any] = [[] for _ in range(len(scripts) + 2)]
        for replica, script in zip(order, scripts, strict=True):
            given[replica] = script
        return Case(label, {"replicas": order, "deadline": deadline, "scripts": given, **how})

    def words(count: int) -> list[Step]:
        return [piece(f"w{draw(generator, 0, 999)}") for _ in range(count)]

    a, b, c, lost = *map(piece, "abc"), fault("lost")
    well = [wait(1), piece("Once"), piece("upon"), wait(1), a]
    slow, a_little = [wait(3), fault("slow")], [wait(2), fault("slow")]
    return [
        case("one replica, one piece", [*words(1)]),
        case("one replica, three pieces", well),
        case("two replicas, and the first one answers", [wait(1), *words(3)], well),
        case("the first replica fails at once", [lost], [wait(1), *words(2)]),
        case("the first replica fails before its first piece", [wait(2), lost], well),
        case(
            "two replicas fail, and the third one answers",
            [fault("a")],
            [wait(1), fault("b")],
            well,
        ),
        case("the only replica fails", [wait(1), lost]),
        case("all replicas fail", [fault("first")], [wait(1), fault("second")], [fault("third")]),
        case("it fails after the first piece", [wait(1), piece("Once"), wait(1), lost], well),
        case("it fails after three pieces", [a, b, c, lost], well, well),
        case("the second replica fails after a piece", [fault("a")], [a, fault("b")], well),
        case("another error before the first piece", [wait(1), error("too_long")], well),
        case("another error after the first piece", [a, error("full")], well),
        case("a fault, then another error", [lost], [wait(1), error("too_long")], well),
        case("the only replica hangs", [HANG]),
        case("the first of two replicas hangs", [HANG], well),
        case("a fault, and then the second replica hangs", [wait(2), lost], [HANG], well),
        case("two slow replicas", slow, slow, well),
        case("three replicas, and each is a little slow", *[a_little] * 3, well),
        case("the first piece comes just in time", [wait(4.75), a]),
        case("the first piece comes too late", [wait(5.25), a], well),
        case("the second replica answers just in time", slow, [wait(1.75), a]),
        case("the second replica answers too late", slow, [wait(2.25), a], well),
        case("a long answer", [wait(4), a, wait(4), b, wait(40), c]),
        case("a long answer after a fault", slow, [wait(1), a, wait(9), b]),
        case("a fault after the deadline, and after a piece", [a, wait(9), lost], well),
        case("a client that reads slowly", [wait(1), a, b, c], pause=4.0),
        case("a short deadline", [wait(1), a], well, deadline=0.5),
        case("the call comes late", slow, [wait(1), a], start=7.5),
        case("the call comes late, and the replica hangs", [HANG], well, start=7.5),
        case("the client leaves before the first piece", [wait(3), a], well, leaves=1.5),
        case("the client leaves at the second replica", slow, [wait(1), a], well, leaves=3.5),
        case("the client leaves between two pieces", [a, wait(3), b], well, leaves=1.5),
        case("the client closes the stream after one piece", well, well, closes_after=1),
        case("the client closes it after a fault and a piece", [fault("a")], well, closes_after=1),
    ]


# ----------------------------------------------------------------------- what a service is worth


def percentile_cases(generator: Generator) -> list[Case]:
    case = case_of("values", "p")

    def values(count: int) -> list[float]:
        """Different ones, in any order."""
        order = torch.randperm(10_000, generator=generator)[:count]
        return (order / 1000).tolist()

    return [
        case("one value", values(1), 50),
        case("one value, and the highest percentile", values(1), 100),
        case("two values, the median", values(2), 50),
        case("two values, just above the median", values(2), 51),
        case("two values, the highest percentile", values(2), 100),
        case("three values, the median", values(3), 50),
        case("three other values, the median", values(3), 50),
        case("four values, the lowest quarter", values(4), 25),
        case("five values, just above a rank", values(5), 41),
        case("five values, a percentile near 0", values(5), 0.5),
        case("equal values", [2.5, 1.5, 2.5, 1.5, 2.5], 50),
        case("ten values in order", sorted(values(10)), 95),
        case("ten values backwards", sorted(values(10), reverse=True), 95),
        case("twenty values, the 90th percentile", values(20), 90),
        case("whole numbers", [7, 3, 9, 5], 75),
        case("numbers below 0", [-1.5, 2.5, -3.5], 50),
        case("50 values, the 99th percentile", values(50), 99),
        case("150 values, the 99th percentile", values(150), 99),
        case("1,500 values, the 99.9th percentile", values(1500), 99.9),
        case("33 values", values(33), draw(generator, 20, 80)),
    ]


WHOLE, BROKEN = True, False


def goodput_cases(generator: Generator) -> list[Case]:
    """Times are multiples of 1/64, so that sums and differences of them are exact."""

    def case(
        label: str, *served: list[Any], ttft: float = 1.0, tpot: float = 0.25, seconds: float = 4.0
    ) -> Case:
        return Case(label, {"served": list(served), "slo": [ttft, tpot], "seconds": seconds})

    def one(ttft: float, tpot: float = 0.125, tokens: int = 5, is_whole: bool = WHOLE) -> list[Any]:
        due = draw(generator, 0, 640) / 64
        first = due + ttft
        return [due, first, first + tpot * (tokens - 1), tokens, is_whole]

    refused = [1.5, None, None, 0, BROKEN]
    at_once = [0.0, 0.0, 0.5, 5, WHOLE]

    def drawn() -> list[Any]:
        if draw(generator, 0, 6) == 0:
            return refused
        ttft, tpot = draw(generator, 8, 96) / 64, draw(generator, 1, 24) / 64
        return one(ttft, tpot, draw(generator, 1, 9), draw(generator, 0, 5) > 0)

    return [
        case("one request that meets the SLO", one(0.5)),
        case("no request"),
        case("its first token comes too late", one(1.25)),
        case("its tokens come too slowly", one(0.5, 0.5)),
        case("just within both", one(1.0, 0.25)),
        case("its first token comes just too late", one(1.015625)),
        case("its tokens come just too slowly", one(0.5, 0.265625)),
        case(
            "one misses the TTFT, another the TPOT, a third neither",
            one(1.5),
            one(0.5, 0.5),
            one(0.5),
        ),
        case("an answer of one token", one(0.5, tokens=1)),
        case("an answer of one token, too late", one(1.5, tokens=1)),
        case("an answer of two tokens", one(0.5, 0.25, 2)),
        case("an answer of two tokens, the second one too late", one(0.5, 0.375, 2)),
        case("an answer that broke off", one(0.5, is_whole=BROKEN), one(0.5)),
        case("an answer of one token that broke off", one(0.5, tokens=1, is_whole=BROKEN)),
        case("a request that was refused", refused, one(0.5)),
        case("all were refused", refused, refused),
        case("a first token at 0 s", at_once, one(0.5)),
        case("a first token at once", [2.0, 2.0, 2.5, 5, WHOLE], seconds=2.0),
        case("another length of time", one(0.5), one(0.75), seconds=8.0),
        case("a strict SLO", one(0.5), one(0.25, 0.0625), ttft=0.25, tpot=0.0625),
        case("three requests that meet it", one(0.5), one(0.75), one(0.25)),
        case("three requests of which one meets it", one(0.5), one(1.75), one(0.25, 0.5)),
        case("twelve requests", *(drawn() for _ in range(12)), seconds=6.0),
        case("forty requests", *(drawn() for _ in range(40)), seconds=10.0),
    ]


EXERCISES = (
    Exercise("serving.TextStream.push", drivers.push, push_cases),
    Exercise("serving.sse", drivers.sse, sse_cases),
    Exercise("serving.RequestPool.stream", drivers.stream, stream_cases),
    Exercise("serving.percentile", drivers.percentile, percentile_cases),
    Exercise("serving.goodput", drivers.goodput, goodput_cases),
    Exercise("serving.open_loop", drivers.open_loop, open_loop_cases),
    Exercise("serving.Admission.admit", drivers.admit, admit_cases),
    Exercise("serving.Router.pick", drivers.pick, pick_cases),
    Exercise("serving.with_failover", drivers.with_failover, failover_cases),
)
