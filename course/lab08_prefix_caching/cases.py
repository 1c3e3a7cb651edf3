"""The exercises of lab 8: blocks found by their hash, the radix tree, the next request."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import accumulate
from string import ascii_lowercase, ascii_uppercase
from typing import Any, NamedTuple

import torch

from autograder.attempt.drivers import prefix_caching as drivers
from autograder.attempt.drivers.prefix_caching import Step, Text
from autograder.judging.draws import draw
from autograder.judging.exercise import Case, Driver, Exercise
from solutions import prefix_caching as reference
from solutions.paged_attention import OutOfBlocks

# ----------------------------------------------------------------------------- blocks by their hash


def hash_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, block_size: int, *texts: list[int], salts: tuple[str, ...] = ()) -> Case:
        """Without salts, or each text with each of them."""
        salted = [(text, salt) for text in texts for salt in salts or ("",)]
        return Case(label, {"texts": salted, "block_size": block_size})

    ids = (10 + torch.randperm(90, generator=generator)).tolist()
    one, other, third = ids[:20], ids[20:40], ids[40:60]
    letters = [1, 2, 3, 12, 23, 123, 257, 258]  # some are others written together, or 256 apart
    written = [[1, 23], [12, 3], [1, 2, 3, 12], [12, 3, 1, 2]]
    ahead = [2, 3], [12, 3]
    picked = [
        [letters[draw(generator, 0, 7)] for _ in range(draw(generator, 0, 9))] for _ in range(12)
    ]
    return [
        case("one block", 4, one[:4]),
        case("three tokens, blocks of four", 4, one[:3]),
        case("no token, and blocks of one", 1, [], one[:1], one[:2]),
        case("two blocks, a token more and a token less", 4, one[:8], one[:9], one[:7]),
        case("the same block twice in a text", 2, [*one[:2], *one[:2]]),
        case(
            "a block after two different ones", 2, [*one[:2], *third[:2]], [*other[:2], *third[:2]]
        ),
        case(
            "blocks after two different ones", 2, [*one[:2], *third[:4]], [*other[:2], *third[:4]]
        ),
        case("a text and its second half", 2, one[:4], one[2:4]),
        case("two blocks in the other order", 2, one[:4], [*one[2:4], *one[:2]]),
        case("the tokens of a block in reverse order", 3, one[:3], one[2::-1]),
        case("a token twice in a block", 2, [one[0], one[0]], [one[0], one[1]], [one[1], one[1]]),
        case("one text with three salts", 2, one[:5], salts=("", "a", "b")),
        case("ids with the same digits", 2, *written),
        case("an id and a salt with the same digits", 2, [1, 2], [1, 23], salts=("", "3")),
        case("a salt and an id with the same digits", 2, *ahead, salts=("", "1")),
        case("no salt, and salts of zero bytes", 2, one[:5], salts=("", "\0", "\0" * 32)),
        case("ids that are 256 apart", 1, [1], [257], [513], [50256], [80]),
        case("ids that are 65,536 apart", 1, [1], [65537], [131073]),
        case("fifty tokens, blocks of sixteen", 16, one + other + third[:10], one + third),
        case("texts of a few tokens", draw(generator, 1, 3), *picked, salts=("", "2")),
    ]


# The steps of a manager, in the drivers' form; but each letter of a text is a token.

ONE = ascii_lowercase + "αβγδεζηθικλμνξ"  # a long text without a token that comes twice
OTHER = ascii_uppercase[:20]


def match(*texts: str, salt: str = "") -> list[Step]:
    return [("match", list(text), salt) for text in texts]


def admit(request: int, *texts: str, drafts: int = 0, salt: str = "") -> list[Step]:
    """drafts: at the end of each text."""
    return [("admit", request, list(text), drafts, salt) for text in texts]


def publish(request: int, text: str, *computed: int) -> list[Step]:
    return [("publish", request, list(text), count) for count in computed]


def free(request: int) -> list[Step]:
    return [("free", request)]


def running(request: int, text: str, salt: str = "") -> list[Step]:
    return admit(request, text, salt=salt) + publish(request, text, len(text))


def served(request: int, text: str, salt: str = "") -> list[Step]:
    return running(request, text, salt) + free(request)


def unknown(request: int, text: str) -> list[Step]:
    """A request that has gone and has computed nothing."""
    return admit(request, text) + free(request)


def in_letters(generator: torch.Generator) -> Callable[..., Case]:
    """Make cases of a pool, its life so far, and the steps to be judged."""
    ids = (10 + torch.randperm(90, generator=generator)).tolist()
    token_of = dict(zip(ONE + ascii_uppercase, ids, strict=False))

    def in_ids(step: Step) -> Step:
        return tuple([token_of[c] for c in p] if isinstance(p, list) else p for p in step)

    def case(
        label: str, num_blocks: int, block_size: int, life: list[Step], steps: list[Step]
    ) -> Case:
        both = ([in_ids(step) for step in part] for part in (life, steps))
        return manager_case(label, num_blocks, block_size, *both)

    return case


def manager_case(
    label: str, num_blocks: int, block_size: int, life: list[Step], steps: list[Step]
) -> Case:
    """A manager's life so far, the state it leads to, and the steps to be judged."""
    manager = reference.PrefixManager(num_blocks, block_size)
    texts: list[Text] = []
    for step in life:
        note(texts, manager, step)
        play(manager, step)
    by_hash = {key: text for text in texts for key, text in ends_of(text, block_size)}
    state: dict[str, Any] = {
        "tables": {request: list(table) for request, table in manager.tables.items()},
        "lengths": dict(manager.lengths),
        "ref_counts": list(manager.ref_counts),
        "free_blocks": list(manager.free_blocks),
        "salts": {request: salt.decode() for request, salt in manager.salts.items()},
        "queried": manager.queried,
        "hits": manager.hits,
        "known": [(block, *by_hash[key]) for block, key in manager.block_hash.items()],
        "found": [],
    }
    for step in steps:
        note(texts, manager, step)
        if step[0] == "admit":
            salts = dict.fromkeys(salt for _, salt in texts)
            found = {salt: manager.match([*step[2], 0], salt.encode()) for salt in salts}
            state["found"].append(found)
        play(manager, step)
    pool = {"num_blocks": num_blocks, "block_size": block_size}
    return Case(label, {**pool, "life": life, "state": state, "steps": steps, "texts": texts})


def note(texts: list[Text], manager: reference.PrefixManager, step: Step) -> None:
    """Note a step's text, with its salt and without: an attempt may confuse the two."""
    method, *given = step
    if method == "match":
        ids, salt = given
    elif method == "admit":
        ids, salt = given[1], given[3]
    elif method == "publish":
        ids, salt = given[1], manager.salts[given[0]].decode()
    else:
        return
    texts += [text for text in ((ids, salt), (ids, "")) if text not in texts]


def play(manager: reference.PrefixManager, step: Step) -> None:
    """Make a step; without effect, and without an error, if the pool has too few blocks."""
    method, *given = step
    given = [part.encode() if isinstance(part, str) else part for part in given]
    with suppress(OutOfBlocks):
        getattr(manager, method)(*given)


def ends_of(text: Text, block_size: int) -> Iterator[tuple[bytes, Text]]:
    """For each full block of a text, its hash and the text up to its end."""
    ids, salt = text
    hashes = reference.block_hashes(ids, block_size, salt.encode())
    for number, key in enumerate(hashes, 1):
        yield key, (ids[: number * block_size], salt)


# Random lives: texts made of two different tokens, so that many begin alike.


def few_tokens(generator: torch.Generator, most: int) -> list[int]:
    return [draw(generator, 11, 12) for _ in range(draw(generator, 1, most))]


def some_salt(generator: torch.Generator) -> str:
    return "a" if draw(generator, 0, 4) == 0 else ""


def a_life(
    generator: torch.Generator, num_blocks: int, block_size: int, length: int
) -> tuple[list[Step], dict[int, list[int]]]:
    """Random steps of a pool, and the texts of the requests that hold blocks at the end."""
    manager = reference.PrefixManager(num_blocks, block_size)
    life: list[Step] = []
    texts: dict[int, list[int]] = {}
    for _ in range(length):
        who, what = draw(generator, 0, 3), draw(generator, 0, 4)
        if who not in manager.tables:
            texts[who] = few_tokens(generator, 3 * block_size + 1)
            life.append(("admit", who, texts[who], 0, some_salt(generator)))
        elif what == 0:
            life.append(("free", who))
        elif what == 1 and manager.free_blocks:
            texts[who] = texts[who] + [draw(generator, 11, 12)]
            life.append(("grow", who, len(texts[who])))
        else:
            life.append(("publish", who, texts[who], draw(generator, 1, len(texts[who]))))
        play(manager, life[-1])
    return life, {who: texts[who] for who in manager.tables}


class Life(NamedTuple):
    """A pool, what has happened in it, and the texts of the requests that hold blocks."""

    number: int
    num_blocks: int
    block_size: int
    steps: list[Step]
    texts: dict[int, list[int]]

    def case(self, steps: list[Step]) -> Case:
        label = f"random life {self.number}"
        return manager_case(label, self.num_blocks, self.block_size, self.steps, steps)


def lives(generator: torch.Generator) -> Iterator[Life]:
    """Each is drawn when the one before has its case."""
    for number in range(1, 4):
        num_blocks, block_size = draw(generator, 4, 12), draw(generator, 1, 3)
        yield Life(number, num_blocks, block_size, *a_life(generator, num_blocks, block_size, 30))


# ----------------------------------------------------------------------------- the block manager


def match_cases(generator: torch.Generator) -> list[Case]:
    case = in_letters(generator)

    def some_text(life: Life) -> Step:
        return "match", few_tokens(generator, 4 * life.block_size), some_salt(generator)

    ahead = publish(0, "abcde", 2) + publish(1, "abcde", 4) + free(0)
    aside = admit(0, "abcde") + admit(1, "abcde") + ahead + admit(2, "ABCDE")
    eight, nine = served(0, "abcdefgh"), match("abcdefghi")
    taken = served(0, "abcdef") + admit(1, "A")
    one, theirs = match("abcde"), match("abcde", salt="b")
    around, four = match("abcdefg", "abcdefghA"), match("abcd", "abcde", "abABC", "bcd")
    shared = running(0, "abcdefgh") + running(1, "abcdABC") + free(0)
    tenants = served(0, "abcd", salt="a") + served(1, "abcd") + running(2, "ABCD", salt="b")
    salted = match("abcde", salt="a") + match("abcde") + match("abcde", "ABCDE", salt="b")
    falling = unknown(0, "abcdef") + running(1, "ABCDEF")  # in blocks 3, 2, 1
    return [
        case("nothing is known", 4, 2, [], match("abc")),
        case("one block is known, and held", 4, 2, running(0, "ab"), match("abc")),
        case("one block is known, and free", 4, 2, served(0, "ab"), match("abc")),
        case("no token, and one", 4, 1, served(0, "ab"), match("", "a")),
        case("a text that is known to its end", 4, 4, eight, match("abcdefgh")),
        case("a known text, a token less and a token more", 5, 4, eight, around),
        case("blocks of one token", 8, 1, served(0, "abcd"), four),
        case("another text after two blocks", 8, 2, eight, match(f"abcde{OTHER}")),
        case("known blocks after an unknown one", 8, 2, served(0, "abcd"), match(f"UV{ONE}")),
        case("a request that has computed nothing yet", 6, 2, admit(0, "abcdefghi"), nine),
        case("a shared beginning that is held, and a free end", 8, 2, shared, nine),
        case("the end of a text has been taken", 3, 2, taken, match("abcdefg", "abcd")),
        case("the first block is no longer known, the second still is", 6, 2, aside, one),
        case("known blocks in descending order", 4, 2, falling, match("ABCDEFG")),
        case("texts with salts", 9, 2, tenants, salted),
        case("a salt of another owner", 9, 2, served(0, "abcd", salt="a"), one + theirs),
        case("blocks of sixteen", 5, 16, served(0, ONE), match(ONE, ONE[:33])),
        *(life.case([some_text(life) for _ in range(8)]) for life in lives(generator)),
    ]


def take_block_cases(generator: torch.Generator) -> list[Case]:
    case = in_letters(generator)

    def take(times: int) -> list[Step]:
        return [("take_block",)] * times

    # A second text takes the first one's block and frees it; the first text is elsewhere by then.
    in_turn = served(0, "abc") + unknown(1, "uvwxy") + admit(2, "A") + running(3, "abc") + free(2)
    ahead, tenants = served(0, "abcd") + unknown(1, "uvw"), served(0, "abcd", salt="a")
    tenants += served(1, "abcd")
    held = running(0, "abcd") + running(1, "uvwx") + free(1)
    return [
        case("nothing is known", 3, 2, [], take(2)),
        case("no block is free", 1, 2, admit(0, "a"), take(1)),
        case("one block, which is known", 1, 2, served(0, "ab"), take(2)),
        case("all free blocks are known", 3, 2, served(0, "abcdef"), take(4)),
        case("known blocks at the tail of the queue", 4, 2, served(0, "abcd"), take(4)),
        case("known blocks at the head of the queue", 4, 2, ahead, take(3)),
        case("known blocks, some of them held", 6, 2, held, take(4)),
        case("blocks of one token", 4, 1, served(0, "abc"), take(2)),
        case("a block that has held two texts in turn", 3, 2, in_turn, take(1)),
        case("two texts with salts", 4, 2, tenants, take(3)),
        *(life.case(take(12)) for life in lives(generator)),
    ]


def admit_cases(generator: torch.Generator) -> list[Case]:
    case = in_letters(generator)

    def newcomers(life: Life) -> list[Step]:
        texts = [few_tokens(generator, 4 * life.block_size) for _ in range(6)]
        drafts = [draw(generator, 0, min(2, len(text) - 1)) for text in texts]
        both = enumerate(zip(texts, drafts, strict=True), 10)
        return [("admit", number, *about, some_salt(generator)) for number, about in both]

    new = admit(2, "abcdUVWX")
    first_in_line = served(0, "abcd") + unknown(1, "ABC")
    falling = unknown(0, "abcdef") + running(1, "ABCDEF")  # in blocks 3, 2, 1
    in_part = running(0, "abcdefgh") + running(1, "abcd") + free(0)
    big_big_small = admit(2, "abcdUVWXY", "abcdUVWXY", "abcdUVWX")
    less_and_more = admit(1, "abcdefg") + admit(2, "abcdefghi")
    both = admit(1, "abcdUVWX") + admit(2, "abcdU")
    known = admit(1, "abcde", drafts=2) + admit(2, "abcdef", drafts=1) + admit(3, "abc", drafts=2)
    needy = admit(1, "abcdUVW", drafts=2) + admit(2, "abUVW", drafts=1)
    four = admit(1, "abcdB") + admit(2, "abcdC") + admit(3, "abcdD")
    salted = admit(2, "abcde") + admit(3, "abcde", salt="a")
    salted += admit(4, "ABCDE", salt="b") + admit(5, "ABCDE")
    return [
        case("one token", 3, 4, [], admit(0, "a")),
        case("five tokens, blocks of four", 3, 4, [], admit(0, "abcde")),
        case("a beginning that another request holds", 6, 2, running(0, "abcd"), admit(1, "abcde")),
        case("a beginning that is free", 6, 2, served(0, "abcd"), admit(1, "abcde")),
        case("a beginning that is partly held", 9, 2, in_part, admit(2, "abcdefghABC")),
        case("found blocks in descending order", 4, 2, falling, admit(2, "ABCDEFG")),
        case("a text that is known to its end", 4, 2, served(0, "abcdef"), admit(1, "abcdef")),
        case("a token less, a token more", 6, 4, served(0, "abcdefgh"), less_and_more),
        case("blocks of one token", 8, 1, served(0, "abcd"), admit(1, "abcd") + admit(2, "abcde")),
        case("four requests that share", 9, 2, running(0, "abcd"), four),
        case("two equal texts at once", 6, 2, [], admit(0, "abcde") + admit(1, "abcde")),
        case("as many blocks as there are", 3, 2, served(0, "abc"), admit(1, "ABCDEF")),
        case("one block more than there are", 3, 2, admit(0, "a"), admit(1, "ABCDE", "ABCD")),
        case("the found blocks are the next to be taken", 4, 2, first_in_line, new),
        case("the found blocks are free, one is missing", 4, 2, first_in_line, big_big_small),
        case("the found blocks are held, just enough others free", 4, 2, running(0, "abcd"), both),
        case("drafts", 5, 2, [], admit(0, "abcdef", drafts=2)),
        case("drafts that are known", 9, 1, served(0, "abcdef"), known),
        case("drafts that need a block", 4, 2, served(0, "abcd"), needy),
        case("salts", 12, 2, served(0, "abcd", salt="a") + running(1, "ABCD"), salted),
        case("blocks of sixteen", 6, 16, served(0, ONE[:36]), admit(1, ONE[:33] + OTHER)),
        *(life.case(newcomers(life)) for life in lives(generator)),
    ]


def publish_cases(generator: torch.Generator) -> list[Case]:
    case = in_letters(generator)

    def all_who_run(life: Life) -> list[Step]:
        texts = life.texts.items()
        parts = [("publish", who, ids, draw(generator, 1, len(ids))) for who, ids in texts]
        return [*parts, *(("publish", who, ids, len(ids)) for who, ids in texts)]

    alike = admit(0, "abcde") + admit(1, "abcde")
    ahead = publish(0, "abcde", 2) + publish(1, "abcde", 5) + publish(0, "abcde", 5)
    ten = admit(0, "abcdefghij")
    growing = [publish(0, ONE[: computed + 1], computed)[0] for computed in range(2, 9)]
    tenants = admit(0, "abcd", salt="a") + admit(1, "abcd") + admit(2, "abcd", salt="b")
    for_all = publish(0, "abcd", 4) + publish(1, "abcd", 4) + publish(2, "abcd", 4)
    taken = served(0, "abcd") + running(1, "ABCDEF") + free(1) + admit(2, "abcde")
    behind = served(0, "abcd") + admit(1, "abcdABCDE")
    drafts = publish(0, "abcde", 8) + publish(0, "abcdeABC", 8)
    return [
        case("a block", 3, 4, admit(0, "abcd"), publish(0, "abcd", 4)),
        case("three tokens, blocks of four", 3, 4, admit(0, "abc"), publish(0, "abc", 3)),
        case("two blocks and a token", 4, 4, admit(0, "abcdefghi"), publish(0, "abcdefghi", 9)),
        case("not everything is computed", 4, 4, ten, publish(0, "abcdefghij", 6)),
        case("in chunks", 4, 4, ten, publish(0, "abcdefghij", 3, 6, 9, 10)),
        case("token by token", 4, 3, [*admit(0, "ab"), ("grow", 0, 8)], growing),
        case("blocks of one token", 4, 1, admit(0, "abcd"), publish(0, "abcd", 1, 2, 4)),
        case("drafts after the tokens", 4, 2, admit(0, "abcdefgh", drafts=3), drafts),
        case("the same call twice", 4, 2, admit(0, "abcde"), publish(0, "abcde", 5, 5)),
        case("two equal texts", 8, 2, alike, publish(0, "abcde", 5) + publish(1, "abcde", 5)),
        case("two equal texts, one ahead of the other", 8, 2, alike, ahead),
        case("after a known beginning", 8, 2, behind, publish(1, "abcdABCDE", 6, 9)),
        case("salts", 9, 2, tenants, for_all),
        case("blocks that held other texts", 4, 2, taken, publish(2, "abcde", 5)),
        case("blocks of sixteen", 5, 16, admit(0, ONE), publish(0, ONE, 15, 33)),
        *(life.case(all_who_run(life)) for life in lives(generator)),
    ]


def of_the_manager(
    method: str, driver: Driver, cases: Callable[[torch.Generator], list[Case]]
) -> Exercise:
    name = f"prefix_caching.PrefixManager.{method}"
    return Exercise(name, driver, cases, as_built=drivers.as_built)


# ------------------------------------------------------------------------------------ a radix tree

Steps = list[list[Any]]


def steps_of(generator: torch.Generator) -> Callable[..., Steps]:
    """Makes steps from words like "+abc", a text to be inserted, or "abc", one to walk to.

    Each letter is a token, the same one in all words. Every text has blocks of its own.
    """
    tokens = dict(zip("abcdefghijklmnopqrstuvwxyz", numbers(generator, 26), strict=True))
    blocks = iter(numbers(generator, 900))

    def steps(*words: str) -> Steps:
        made: Steps = []
        for word in words:
            ids = [tokens[letter] for letter in word.removeprefix("+")]
            is_new = word.startswith("+")
            made.append(["insert", ids, [next(blocks) for _ in ids]] if is_new else ["walk", ids])
        return made

    return steps


def numbers(generator: torch.Generator, count: int) -> list[int]:
    """Different numbers of three digits."""
    return (torch.randperm(900, generator=generator)[:count] + 100).tolist()


def words_of(generator: torch.Generator, count: int, longest: int) -> list[str]:
    """Words for steps: most are new texts, and many begin alike."""

    def letter() -> str:
        return "aaabbc"[draw(generator, 0, 5)]

    return [
        "+" * (draw(generator, 0, 3) > 0)
        + "".join(letter() for _ in range(draw(generator, 1, longest)))
        for _ in range(count)
    ]


def walk_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, *words: str) -> Case:
        return Case(label, {"steps": steps_of(generator)(*words)})

    return [
        case("nothing in an empty tree", ""),
        case("a text in an empty tree", "ab"),
        case("a text of one token, twice", "+a", "a"),
        case("a whole text", "+abc", "abc"),
        case("another text", "+abc", "xyz"),
        case("a text ends in the middle of an edge", "+abcde", "ab"),
        case("two texts part in the middle of an edge", "+abcde", "+abxyz"),
        case("two texts have their first token in common", "+abc", "axyz"),
        case("all but the last token in common", "+abcd", "abcx"),
        case("a text continues after a leaf", "+ab", "abcd"),
        case("an empty text in a tree with one", "+abc", ""),
        case("the same text comes again", "+abc", "+abc"),
        case("a longer text after a shorter one", "+ab", "+abcd", "abcdef"),
        case("two edges, the second one left in its middle", "+ab", "+abcdef", "abcdx"),
        case("a text ends where others part", "+abcd", "+abxy", "ab"),
        case("an edge above others is split", "+abcd", "+abcdef", "+abcdxy", "abz"),
        case("one edge is split three times", "+abcdefgh", "abcdef", "abcd", "ab"),
        case("one edge is split three times, from above", "+abcdefgh", "ab", "abcd", "abcdef"),
        case("texts with nothing in common", "+ab", "+cd", "+ef", "cd", "x"),
        case("a text that repeats itself", "+ab", "+ababcd", "ababcx", "abab"),
        case("one token again and again", "+aaaa", "+aaaaaaaa", "aa", "aaaaa", "aaaaaaaaa"),
        case("a beginning that is in the middle of another text", "+abcd", "+cdab", "cdx"),
        case("three edges down", "+ab", "+abcd", "+abcdef", "+abxy", "abcdefgh", "abcde", "abxz"),
        case("texts of one token", "+a", "+b", "+ab", "b", "ab", "+a"),
        case("many short texts", *words_of(generator, 14, 4)),
        case("many long texts", *words_of(generator, 14, 9)),
    ]


def evict_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, words: str, *needed: int, held: str = "") -> Case:
        """held: texts; the block of each one's last token is held, in all calls."""
        steps, tree = steps_of(generator), reference.RadixTree()
        for method, *given in steps(*words.split()):
            getattr(tree, method)(*given)
        walks, nodes = tree.walks, nodes_of(tree)
        blocks = [tree.match(ids)[-1] for _, ids in steps(*held.split())]
        calls = [{"needed": count, "held": blocks} for count in needed]
        return Case(label, {"walks": walks, "nodes": nodes, "calls": calls})

    family = "+ab +abcd +abef +xyz +xyzuv"
    chain = "+abcdefgh abcdefg abcdef abcde abcd abc ab a"
    some = " ".join(words_of(generator, 12, 6))
    return [
        case("an empty tree", "", 1),
        case("one leaf of one block", "+a", 1),
        case("nothing is needed", "+ab", 0),
        case("a leaf of three blocks, of which one is needed", "+abc", 1),
        case("the older of two leaves", "+abc +xyz", 1),
        case("the leaf that was inserted first was used last", "+abc +xyz abc", 1),
        case("exactly as many blocks as the oldest leaf has", "+abc +xyz", 3),
        case("one block more than the oldest leaf has", "+abc +xyz", 4),
        case("more than there is", "+abc +xyz", 7),
        case("more than there is, then one more call", "+abc", 9, 1),
        case("an older leaf is held", "+abc +xyz", 1, held="abc"),
        case("the end of the only leaf is held", "+abc", 1, held="abc"),
        case("everything is held", "+abc +xyz +abuv", 2, held="abc xyz abuv"),
        case("one block of the older leaf is held, its first one", "+abc +xyz", 1, held="a"),
        case("one block of the older leaf is held, its last one", "+abc +xyz", 1, held="abc"),
        case("a parent becomes a leaf", "+abcd +abxy +z", 2, 2, 2, 2),
        case("a parent becomes a leaf in the same call", "+abcd +abxy +z", 5),
        case("a parent becomes a leaf, and is newer than another", "+abcd +abxy +z ab", 5),
        case("a parent that is held stays", "+abcd +abxy +z", 9, held="ab"),
        case("a held leaf keeps the beginning before it", "+abcd +abxy", 9, held="abxy"),
        case("the older leaf is held, its parent isn't", "+abcd +abxy +z", 3, held="abcd"),
        case("nodes one below the other", chain, 1, 2, 1),
        case("nodes one below the other, all in one call", chain, 7),
        case("nodes one below the other, one of them held", chain, 9, held="abcd"),
        case("call by call, until nothing is left", family, *[1] * 8),
        case("several calls, some blocks held", family, 1, 3, 4, 9, held="xyz"),
        case("many texts", some, *(draw(generator, 1, 5) for _ in range(6))),
        case("many texts, all at once", some, 99),
    ]


def nodes_of(tree: reference.RadixTree) -> list[list[Any]]:
    """In the driver's form: each node after its parent, which it names by its place."""
    nodes, todo = [], [(0, child) for child in tree.root.children.values()]
    for parent, node in todo:
        nodes.append([parent, list(node.ids), list(node.blocks), node.stamp])
        todo += [(len(nodes), child) for child in node.children.values()]
    return nodes


# ---------------------------------------------------------------------- which request is next


def choose_next_cases(generator: torch.Generator) -> list[Case]:
    def queue(label: str, order: str, at_once: int, patience: int, num_blocks: int = 3) -> Case:
        """Texts of three blocks each; the first two belong to its group, which is a letter."""
        groups = {letter: text_of(8) for letter in sorted({*order})}
        texts = [groups[letter] + text_of(4) for letter in order]
        room = {"num_blocks": num_blocks, "block_size": 4}
        about = {"texts": texts, "at_once": at_once, "patience": patience, **room}
        return Case(label, {"choices": [], "queue": about})

    def text_of(length: int) -> list[int]:
        return torch.randint(10**4, (length,), generator=generator).tolist()

    blocks = sorted(torch.randperm(60, generator=generator)[:3].tolist())
    few, some, most = (16 * (1 + count) for count in blocks)
    times = draw(generator, 4, 9)
    refused = [[[few], [1], times], [[], [], times], [[few], [], times], [[few, most], [0], times]]
    groups = "".join("abcd"[draw(generator, 0, 3)] for _ in range(20))

    def case(label: str, matched: list[int], waited: list[int], patience: int = times) -> Case:
        return Case(label, {"choices": [[matched, waited, patience]], "queue": None})

    second, first = [times + 1, times + 5, times + 2, 0], [0, times + 1, times]
    two = [0, times + 2, times + 2, times + 1]
    return [
        case("one request waits", [few], [0]),
        case("two wait, and the second finds more", [few, most], [1, 0]),
        case("two wait, and the first finds more", [most, few], [1, 0]),
        case("no request finds anything", [0, 0, 0], [2, 1, 0]),
        case("two of three find most", [few, most, most], [2, 1, 0]),
        case("two find the same, and the second has waited longer", [most, most], [0, 1]),
        case("a negative patience", [0, most], [0, 0], -1),
        case("all have waited exactly `patience` times", [few, most, some], [times] * 3),
        case("one has waited too long", [few, most, some], [times + 1, times, 0]),
        case("one has waited too long, and finds nothing", [0, most], [times + 4, 1]),
        case("three have waited too long", [few, some, most], [times + 3, times + 2, times + 1]),
        case("the request that has waited longest came second", [most, few, some, most], second),
        case("two have waited equally long", [most, few, some, few], two),
        case("the first request was preempted, and has waited less", [few, some, most], first),
        case("patience 0, and no request has waited yet", [few, most, some], [0, 0, 0], 0),
        case("patience 0", [few, some, most], [2, 1, 0], 0),
        Case(
            "one waits, then none, then lists of unequal length",
            {"choices": refused, "queue": None},
        ),
        queue("a queue of two groups in turn", "abababab", 8, 99),
        queue("two groups, and an unrelated request in front", "abxaaaabbbb", 4, 5),
        queue("two groups, and an unrelated request second", "axaabaaaaaabbb", 3, 7),
        queue("a queue with patience 0", "abcabcabcabc", 4, 0),
        queue("a long queue, room for one text", groups, 6, 3),
        queue("a long queue, room for two texts", groups, 6, 8, num_blocks=6),
    ]


# -------------------------------------------------------------------- what a kept prefix costs


def bill_cases(generator: torch.Generator) -> list[Case]:
    ids = (10 + torch.randperm(90, generator=generator)).tolist()
    texts = {"a": ids[:12], "b": ids[12:24], "c": [*ids[:7], *ids[24:29]]}  # c begins like a

    def case(label: str, *prompts: str, least: int = 3, lifetime: int = 10) -> Case:
        """A prompt "4 a8 3 8" comes at time 4: text a's first 8 tokens, with marks 3 and 8."""
        drawn = []
        for prompt in prompts:
            now, text, *marks = prompt.split()
            drawn.append((int(now), texts[text[0]][: int(text[1:])], [int(mark) for mark in marks]))
        return Case(label, {"least": least, "lifetime": lifetime, "prompts": drawn})

    texts_of = "abc"
    times = accumulate(draw(generator, 1, 7) for _ in range(12))
    some = [
        f"{now} {texts_of[draw(generator, 0, 2)]}12 2 5 7 {draw(generator, 8, 12)}" for now in times
    ]
    return [
        case("a prompt without a mark", "0 a4"),
        case("a prompt, marked at its end", "0 a4 4"),
        case("two different prompts of one length", "0 a4 4", "1 b4 4"),
        case("two prompts with a common beginning", "0 a9 4 9", "1 c9 4 9"),
        case("a common beginning that neither has marked", "0 a9 9", "1 c9 9"),
        case("a beginning that only the second one marks", "0 a9 9", "1 c9 5 9", "2 a9 5 9"),
        case("a mark below the minimum", "0 a8 2", "1 a8 2", "2 a8 2 6", "3 a8 2 6"),
        case("a prompt shorter than the minimum", "0 a2 2", "1 a2 2"),
        case("a mark at the minimum", "0 a8 3", "1 a8 3"),
        case("a chat that grows", "0 a4 4", "2 a7 4 7", "4 a10 7 10", "6 a12 10 12"),
        case("four marks", "0 a12 3 5 8 11", "1 a12 3 5 8", "2 c12 3 5 7 12"),
        case("just before the lifetime is over", "5 a8 6", "14 a8 6"),
        case("as the lifetime is over", "5 a8 6", "15 a8 6", "24 a8 6"),
        case("a read makes it live on", "0 a8 6", "9 a8 6", "18 a8 6", "27 a8 6"),
        case("a shorter prefix lives on as well", "0 a9 5 9", "8 a9 5 9", "12 a9 5"),
        case("the longer prefix has been forgotten", "0 a9 5 9", "8 a9 5", "11 a9 5 9"),
        case("twelve prompts in turn", *some),
        case("a lifetime of 0, and no minimum", "0 a3 1", "0 a3 1", least=0, lifetime=0),
    ]


EXERCISES = (
    Exercise("prefix_caching.block_hashes", drivers.block_hashes, hash_cases),
    of_the_manager("match", drivers.by_hashes, match_cases),
    of_the_manager("take_block", drivers.by_names, take_block_cases),
    of_the_manager("admit", drivers.admit, admit_cases),
    of_the_manager("publish", drivers.by_hashes, publish_cases),
    Exercise("prefix_caching.RadixTree.walk", drivers.walk, walk_cases),
    Exercise("prefix_caching.RadixTree.evict", drivers.evict, evict_cases),
    Exercise("prefix_caching.choose_next", drivers.choose_next, choose_next_cases),
    Exercise("prefix_caching.PromptCache.bill", drivers.bill, bill_cases),
)
