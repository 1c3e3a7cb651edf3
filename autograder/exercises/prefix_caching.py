"""The exercises of lab 8: blocks by their hashes, the radix tree, and who is served next."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch

from autograder.draws import draw
from autograder.drivers import prefix_caching as drivers
from autograder.drivers.prefix_caching import Step, Text
from autograder.exercise import Case, Driver, Exercise
from solutions import prefix_caching as reference
from solutions.paged_attention import OutOfBlocks

# ----------------------------------------------------------------------------- blocks by their hash


def tokens(generator: torch.Generator, *lengths: int) -> Iterator[list[int]]:
    """Texts of these lengths; no token comes twice in them."""
    ids = (10 + torch.randperm(90, generator=generator)).tolist()
    for length in lengths:
        yield ids[:length]
        ids = ids[length:]


def hash_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, block_size: int, *texts: list[int], salts: tuple[str, ...] = ()) -> Case:
        """Without salts, or each text with each of them."""
        salted = [(text, salt) for text in texts for salt in salts or ("",)]
        return Case(label, {"texts": salted, "block_size": block_size})

    one, other, third = tokens(generator, 20, 20, 20)
    letters = [1, 2, 3, 12, 23, 123, 257, 258]  # some are others written together, or 256 apart
    written = [[1, 23], [12, 3], [1, 2, 3, 12], [12, 3, 1, 2]]
    picked = [
        [letters[draw(generator, 0, 7)] for _ in range(draw(generator, 0, 9))] for _ in range(12)
    ]
    return [
        case("one block", 4, one[:4]),
        case("three tokens, blocks of four", 4, one[:3]),
        case("no token, and blocks of one", 1, [], one[:1], one[:2]),
        case("two blocks, a token more and a token less", 4, one[:8], one[:9], one[:7]),
        case("the same block twice in a text", 2, [*one[:2], *one[:2]]),
        case("one block behind two others", 2, [*one[:2], *third[:2]], [*other[:2], *third[:2]]),
        case("two blocks behind two others", 2, [*one[:2], *third[:4]], [*other[:2], *third[:4]]),
        case("a text and its second half", 2, one[:4], one[2:4]),
        case("two blocks the other way round", 2, one[:4], [*one[2:4], *one[:2]]),
        case("the tokens of a block the other way round", 3, one[:3], one[2::-1]),
        case("a token twice in a block", 2, [one[0], one[0]], [one[0], one[1]], [one[1], one[1]]),
        case("one text with three salts", 2, one[:5], salts=("", "a", "b")),
        case("ids that read alike, written together", 2, *written),
        case("an id that reads like another and a salt", 2, [1, 2], [1, 23], salts=("", "3")),
        case("ids that are 256 apart", 1, [1], [257], [513], [50256], [80]),
        case("fifty tokens, blocks of sixteen", 16, one + other + third[:10], one + third),
        case("texts of a few tokens", draw(generator, 1, 3), *picked, salts=("", "2")),
    ]


# What is asked of a manager, as the drivers take it.


def admit(request: int, ids: list[int], num_drafts: int = 0, salt: str = "") -> Step:
    return "admit", request, ids, num_drafts, salt


def grow(request: int, num_tokens: int) -> Step:
    return "grow", request, num_tokens


def publish(request: int, ids: list[int], computed: int) -> Step:
    return "publish", request, ids, computed


def free(request: int) -> Step:
    return "free", request


def match(ids: list[int], salt: str = "") -> Step:
    return "match", ids, salt


def take(times: int) -> list[Step]:
    return [("take_block",)] * times


def running(request: int, ids: list[int], salt: str = "") -> list[Step]:
    """A request whose tokens are computed."""
    return [admit(request, ids, salt=salt), publish(request, ids, len(ids))]


def served(request: int, ids: list[int], salt: str = "") -> list[Step]:
    """A request that has come, was computed and has gone."""
    return [*running(request, ids, salt), free(request)]


def unknown(request: int, ids: list[int]) -> list[Step]:
    """One that has gone before anything of it was computed."""
    return [admit(request, ids), free(request)]


def manager_case(
    label: str, num_blocks: int, block_size: int, life: list[Step], steps: list[Step]
) -> Case:
    """A manager's life so far, where that leads to, and the steps to be judged."""
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
    """Take down a step's text, with its salt and without: either may be known, if wrongly."""
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
    """Raises nothing where the pool has too few blocks: nothing has happened then."""
    method, *given = step
    given = [part.encode() if isinstance(part, str) else part for part in given]
    with suppress(OutOfBlocks):
        getattr(manager, method)(*given)


def ends_of(text: Text, block_size: int) -> Iterator[tuple[bytes, Text]]:
    """For each full block of a text its hash, and the text up to its end."""
    ids, salt = text
    hashes = reference.block_hashes(ids, block_size, salt.encode())
    for number, key in enumerate(hashes, 1):
        yield key, (ids[: number * block_size], salt)


# Random lives: texts of two different tokens, so that many begin alike.


def few_tokens(generator: torch.Generator, most: int) -> list[int]:
    return [draw(generator, 11, 12) for _ in range(draw(generator, 1, most))]


def some_salt(generator: torch.Generator) -> str:
    return "a" if draw(generator, 0, 4) == 0 else ""


def a_life(
    generator: torch.Generator, num_blocks: int, block_size: int, length: int
) -> tuple[list[Step], dict[int, list[int]]]:
    """What happens in a pool, and the texts of those who hold blocks at last."""
    manager = reference.PrefixManager(num_blocks, block_size)
    life: list[Step] = []
    texts: dict[int, list[int]] = {}
    for _ in range(length):
        who, what = draw(generator, 0, 3), draw(generator, 0, 4)
        if who not in manager.tables:
            texts[who] = few_tokens(generator, 3 * block_size + 1)
            life.append(admit(who, texts[who], salt=some_salt(generator)))
        elif what == 0:
            life.append(free(who))
        elif what == 1 and manager.free_blocks:
            texts[who] = texts[who] + [draw(generator, 11, 12)]
            life.append(grow(who, len(texts[who])))
        else:
            life.append(publish(who, texts[who], draw(generator, 1, len(texts[who]))))
        play(manager, life[-1])
    return life, {who: texts[who] for who in manager.tables}


Asked = Callable[[torch.Generator, dict[int, list[int]], int], list[Step]]


def random_cases(generator: torch.Generator, asked: Asked) -> Iterator[Case]:
    """asked: the steps, of the texts that are held, and of the size of a block."""
    for number in range(1, 4):
        num_blocks, block_size = draw(generator, 4, 12), draw(generator, 1, 3)
        life, texts = a_life(generator, num_blocks, block_size, 30)
        steps = asked(generator, texts, block_size)
        yield manager_case(f"random life {number}", num_blocks, block_size, life, steps)


# ----------------------------------------------------------------------------- the block manager


def match_cases(generator: torch.Generator) -> list[Case]:
    case = manager_case
    one, other, third = tokens(generator, 40, 20, 20)

    def any_texts(gen: torch.Generator, _: Any, block_size: int) -> list[Step]:
        return [match(few_tokens(gen, 4 * block_size), some_salt(gen)) for _ in range(8)]

    ahead = [publish(0, one[:5], 2), publish(1, one[:5], 4)]
    aside = [admit(0, one[:5]), admit(1, one[:5]), *ahead, free(0), admit(2, other[:5])]
    shared = [*running(0, one[:8]), *running(1, one[:4] + other[:3]), free(0)]
    tenants = [*served(0, one[:4], "a"), *served(1, one[:4]), *running(2, other[:4], "b")]
    return [
        case("nothing is known", 4, 2, [], [match(one[:3])]),
        case("one block is known, and held", 4, 2, running(0, one[:2]), [match(one[:3])]),
        case("one block is known, and free", 4, 2, served(0, one[:2]), [match(one[:3])]),
        case("no token, and one", 4, 1, served(0, one[:2]), [match([]), match(one[:1])]),
        case("a text that is known to its end", 4, 4, served(0, one[:8]), [match(one[:8])]),
        case(
            "a known text, a token less and a token more",
            5,
            4,
            served(0, one[:8]),
            [match(one[:7]), match([*one[:8], other[0]])],
        ),
        case(
            "blocks of one token",
            8,
            1,
            served(0, one[:4]),
            [match(one[:4]), match(one[:5]), match([*one[:2], *other[:3]]), match(one[1:4])],
        ),
        case("another text after two blocks", 8, 2, served(0, one[:8]), [match(one[:5] + other)]),
        case(
            "a known block behind another one", 8, 2, served(0, one[:4]), [match(third[:2] + one)]
        ),
        case(
            "a request that has computed nothing yet", 6, 2, [admit(0, one[:9])], [match(one[:9])]
        ),
        case("a shared beginning that is held, and a free end", 8, 2, shared, [match(one[:9])]),
        case(
            "the end of a text has been taken",
            3,
            2,
            [*served(0, one[:6]), admit(1, other[:1])],
            [match(one[:7]), match(one[:4])],
        ),
        case("the first block is known no more, the second is", 6, 2, aside, [match(one[:5])]),
        case(
            "texts with salts",
            9,
            2,
            tenants,
            [match(one[:5], "a"), match(one[:5]), match(one[:5], "b"), match(other[:5], "b")],
        ),
        case(
            "another's salt", 9, 2, served(0, one[:4], "a"), [match(one[:5]), match(one[:5], "b")]
        ),
        case("blocks of sixteen", 5, 16, served(0, one), [match(one), match(one[:33])]),
        *random_cases(generator, any_texts),
    ]


def take_block_cases(generator: torch.Generator) -> list[Case]:
    case = manager_case
    one, other, third = tokens(generator, 20, 20, 20)
    # A second text takes the first one's block and gives it back; the first is elsewhere by then.
    in_turn = [*served(0, one[:3]), *unknown(1, other[:5]), admit(2, third[:1])]
    in_turn += [*running(3, one[:3]), free(2)]
    held = [*running(0, one[:4]), *running(1, other[:4]), free(1)]

    def until_none_is_left(*_: Any) -> list[Step]:
        return take(12)

    return [
        case("nothing is known", 3, 2, [], take(2)),
        case("no block is free", 1, 2, [admit(0, one[:1])], take(1)),
        case("one block, which is known", 1, 2, served(0, one[:2]), take(2)),
        case("all free blocks are known", 3, 2, served(0, one[:6]), take(4)),
        case("known blocks behind others", 4, 2, served(0, one[:4]), take(4)),
        case(
            "known blocks before others",
            4,
            2,
            [*served(0, one[:4]), *unknown(1, other[:3])],
            take(3),
        ),
        case("known blocks, some of them held", 6, 2, held, take(4)),
        case("blocks of one token", 4, 1, served(0, one[:3]), take(2)),
        case("a block that has held two texts in turn", 3, 2, in_turn, take(1)),
        case("two texts with salts", 4, 2, served(0, one[:4], "a") + served(1, one[:4]), take(3)),
        *random_cases(generator, until_none_is_left),
    ]


def admit_cases(generator: torch.Generator) -> list[Case]:
    case = manager_case
    one, other, third = tokens(generator, 40, 20, 20)

    def newcomers(gen: torch.Generator, _: Any, block_size: int) -> list[Step]:
        texts = [few_tokens(gen, 4 * block_size) for _ in range(6)]
        drafts = [draw(gen, 0, min(2, len(text) - 1)) for text in texts]
        return [
            admit(10 + number, text, drafts[number], some_salt(gen))
            for number, text in enumerate(texts)
        ]

    first_in_line = [*served(0, one[:4]), *unknown(1, other[:3])]
    big, small = [*one[:4], *third[:5]], [*one[:4], *third[:4]]
    in_part = [*running(0, one[:8]), *running(1, one[:4]), free(0)]
    return [
        case("one token", 3, 4, [], [admit(0, one[:1])]),
        case("five tokens, blocks of four", 3, 4, [], [admit(0, one[:5])]),
        case("a beginning that another holds", 6, 2, running(0, one[:4]), [admit(1, one[:5])]),
        case("a beginning that is free", 6, 2, served(0, one[:4]), [admit(1, one[:5])]),
        case("a beginning, held in part", 9, 2, in_part, [admit(2, one[:8] + other[:3])]),
        case("a text that is known to its end", 4, 2, served(0, one[:6]), [admit(1, one[:6])]),
        case(
            "a token less, a token more",
            6,
            4,
            served(0, one[:8]),
            [admit(1, one[:7]), admit(2, one[:9])],
        ),
        case(
            "blocks of one token", 8, 1, served(0, one[:4]), [admit(1, one[:4]), admit(2, one[:5])]
        ),
        case(
            "four who share",
            9,
            2,
            running(0, one[:4]),
            [admit(number, [*one[:4], other[number]]) for number in (1, 2, 3)],
        ),
        case("two alike at once", 6, 2, [], [admit(0, one[:5]), admit(1, one[:5])]),
        case("as many blocks as there are", 3, 2, served(0, one[:3]), [admit(1, other[:6])]),
        case(
            "one block more than there are",
            3,
            2,
            [admit(0, one[:1])],
            [admit(1, other[:5]), admit(1, other[:4])],
        ),
        case("what is found is the next to be taken", 4, 2, first_in_line, [admit(2, small)]),
        case(
            "what is found is free, and one block is missing",
            4,
            2,
            first_in_line,
            [admit(2, big), admit(2, big), admit(2, small)],
        ),
        case(
            "what is found is held, and just enough is free",
            4,
            2,
            running(0, one[:4]),
            [admit(1, small), admit(2, [*one[:4], third[0]])],
        ),
        case("drafts", 5, 2, [], [admit(0, one[:6], 2)]),
        case(
            "drafts that are known",
            9,
            1,
            served(0, one[:6]),
            [admit(1, one[:5], 2), admit(2, one[:6], 1), admit(3, one[:3], 2)],
        ),
        case(
            "drafts that need a block",
            4,
            2,
            served(0, one[:4]),
            [admit(1, [*one[:4], *third[:3]], 2), admit(2, [*one[:2], *third[:3]], 1)],
        ),
        case(
            "salts",
            12,
            2,
            served(0, one[:4], "a") + running(1, other[:4]),
            [
                admit(2, one[:5]),
                admit(3, one[:5], 0, "a"),
                admit(4, other[:5], 0, "b"),
                admit(5, other[:5]),
            ],
        ),
        case("blocks of sixteen", 6, 16, served(0, one[:36]), [admit(1, one[:33] + other)]),
        *random_cases(generator, newcomers),
    ]


def publish_cases(generator: torch.Generator) -> list[Case]:
    case = manager_case
    one, other = tokens(generator, 40, 20)

    def all_who_run(gen: torch.Generator, texts: dict[int, list[int]], _: int) -> list[Step]:
        parts = [publish(who, ids, draw(gen, 1, len(ids))) for who, ids in texts.items()]
        return parts + [publish(who, ids, len(ids)) for who, ids in texts.items()]

    alike = [admit(0, one[:5]), admit(1, one[:5])]
    text = [*one[:4], *other[:5]]
    tenants = [admit(0, one[:4], salt="a"), admit(1, one[:4]), admit(2, one[:4], salt="b")]
    taken = [*served(0, one[:4]), *running(1, other[:6]), free(1), admit(2, one[:5])]
    return [
        case("a block", 3, 4, [admit(0, one[:4])], [publish(0, one[:4], 4)]),
        case("three tokens, blocks of four", 3, 4, [admit(0, one[:3])], [publish(0, one[:3], 3)]),
        case("two blocks and a token", 4, 4, [admit(0, one[:9])], [publish(0, one[:9], 9)]),
        case("not all is computed", 4, 4, [admit(0, one[:10])], [publish(0, one[:10], 6)]),
        case(
            "in chunks",
            4,
            4,
            [admit(0, one[:10])],
            [publish(0, one[:10], computed) for computed in (3, 6, 9, 10)],
        ),
        case(
            "token by token",
            4,
            3,
            [admit(0, one[:2]), grow(0, 8)],
            [publish(0, one[: computed + 1], computed) for computed in range(2, 9)],
        ),
        case(
            "blocks of one token",
            4,
            1,
            [admit(0, one[:4])],
            [publish(0, one[:4], computed) for computed in (1, 2, 4)],
        ),
        case(
            "drafts behind the tokens",
            4,
            2,
            [admit(0, one[:8], 3)],
            [publish(0, one[:5], 8), publish(0, [*one[:5], *other[:3]], 8)],
        ),
        case("the same once more", 4, 2, [admit(0, one[:5])], [publish(0, one[:5], 5)] * 2),
        case("two equal texts", 8, 2, alike, [publish(0, one[:5], 5), publish(1, one[:5], 5)]),
        case(
            "two equal texts, one ahead of the other",
            8,
            2,
            alike,
            [publish(0, one[:5], 2), publish(1, one[:5], 5), publish(0, one[:5], 5)],
        ),
        case(
            "behind a known beginning",
            8,
            2,
            [*served(0, one[:4]), admit(1, text)],
            [publish(1, text, 6), publish(1, text, 9)],
        ),
        case("salts", 9, 2, tenants, [publish(number, one[:4], 4) for number in (0, 1, 2)]),
        case("of blocks that held other texts", 4, 2, taken, [publish(2, one[:5], 5)]),
        case(
            "blocks of sixteen",
            5,
            16,
            [admit(0, one)],
            [publish(0, one, computed) for computed in (15, 33)],
        ),
        *random_cases(generator, all_who_run),
    ]


def of_the_manager(
    method: str, driver: Driver, cases: Callable[[torch.Generator], list[Case]]
) -> Exercise:
    name = f"prefix_caching.PrefixManager.{method}"
    return Exercise(name, driver, cases, as_built=drivers.as_built)


# ------------------------------------------------------------------------------------ a radix tree

Steps = list[list[Any]]


def steps_of(generator: torch.Generator) -> Callable[..., Steps]:
    """What makes steps of words like "+abc", a text to be inserted, or "abc", one to walk to.

    Each letter is a token, the same one in all words. The blocks of a text are its own.
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
    """Different ones of three digits."""
    return (torch.randperm(900, generator=generator)[:count] + 100).tolist()


def words_of(generator: torch.Generator, count: int, longest: int) -> list[str]:
    """Most are new texts, and many begin alike."""

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
        case("a text goes on behind a leaf", "+ab", "abcd"),
        case("an empty text in a tree with one", "+abc", ""),
        case("the same text comes again", "+abc", "+abc"),
        case("a longer text behind a shorter one", "+ab", "+abcd", "abcdef"),
        case("two edges, the second one left in its middle", "+ab", "+abcdef", "abcdx"),
        case("a text ends where others part", "+abcd", "+abxy", "ab"),
        case("an edge above others is split", "+abcd", "+abcdef", "+abcdxy", "abz"),
        case("one edge is split three times", "+abcdefgh", "abcdef", "abcd", "ab"),
        case("one edge is split three times, from above", "+abcdefgh", "ab", "abcd", "abcdef"),
        case("texts with nothing in common", "+ab", "+cd", "+ef", "cd", "x"),
        case("a text that says the same twice", "+ab", "+ababcd", "ababcx", "abab"),
        case("one token again and again", "+aaaa", "+aaaaaaaa", "aa", "aaaaa", "aaaaaaaaa"),
        case("a beginning that stands in the middle of another text", "+abcd", "+cdab", "cdx"),
        case("three edges down", "+ab", "+abcd", "+abcdef", "+abxy", "abcdefgh", "abcde", "abxz"),
        case("texts of one token", "+a", "+b", "+ab", "b", "ab", "+a"),
        case("many short texts", *words_of(generator, 14, 4)),
        case("many long texts", *words_of(generator, 14, 9)),
    ]


def evict_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, words: str, *needed: int, held: str = "") -> Case:
        """held: texts whose last tokens' blocks are held, in all calls alike."""
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
        case("the older of two leaves came last", "+abc +xyz abc", 1),
        case("exactly as many blocks as the oldest leaf has", "+abc +xyz", 3),
        case("one block more than the oldest leaf has", "+abc +xyz", 4),
        case("more than there is", "+abc +xyz", 7),
        case("more than there is, and nothing later", "+abc", 9, 1),
        case("an older leaf is held", "+abc +xyz", 1, held="abc"),
        case("the end of the only leaf is held", "+abc", 1, held="abc"),
        case("all is held", "+abc +xyz +abuv", 2, held="abc xyz abuv"),
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
    """As the driver takes them: each behind its parent, which it names by its place."""
    nodes, todo = [], [(0, child) for child in tree.root.children.values()]
    for parent, node in todo:
        nodes.append([parent, list(node.ids), list(node.blocks), node.stamp])
        todo += [(len(nodes), child) for child in node.children.values()]
    return nodes


# ------------------------------------------------------------------------------- who is served next


def choose_next_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, matched: list[int], waited: list[int], patience: int) -> Case:
        return Case(label, {"choices": [[matched, waited, patience]], "queue": None})

    def queue(label: str, order: str, at_once: int, patience: int, num_blocks: int = 3) -> Case:
        """Texts of three blocks; two of them are those of its group, which is a letter."""
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
    return [
        case("one waits", [few], [0], times),
        case("two wait, and the second finds more", [few, most], [1, 0], times),
        case("two wait, and the first finds more", [most, few], [1, 0], times),
        case("nobody finds anything", [0, 0, 0], [2, 1, 0], times),
        case("two of three find most", [few, most, most], [2, 1, 0], times),
        case("all have waited just as often as they may", [few, most, some], [times] * 3, times),
        case("one has waited too often", [few, most, some], [times + 1, times, 0], times),
        case("one has waited too often, and finds nothing", [0, most], [times + 4, 1], times),
        case(
            "three have waited too often",
            [few, some, most],
            [times + 3, times + 2, times + 1],
            times,
        ),
        case(
            "who has waited longest came second",
            [most, few, some, most],
            [times + 1, times + 5, times + 2, 0],
            times,
        ),
        case(
            "two have waited longest",
            [most, few, some, few],
            [0, times + 2, times + 2, times + 1],
            times,
        ),
        case(
            "who came first was preempted, and has waited for nobody",
            [few, some, most],
            [0, times + 1, times],
            times,
        ),
        case("no patience, and nobody has waited yet", [few, most, some], [0, 0, 0], 0),
        case("no patience", [few, some, most], [2, 1, 0], 0),
        Case(
            "one waits; then nobody, and lists that don't fit", {"choices": refused, "queue": None}
        ),
        queue("a queue of two groups in turn", "abababab", 8, 99),
        queue("a queue of two groups, and a stranger in front", "abxaaaabbbb", 4, 5),
        queue("a queue of two groups, and a stranger who comes second", "axaabaaaaaabbb", 3, 7),
        queue("a queue without patience", "abcabcabcabc", 4, 0),
        queue("a long queue, room for one text", groups, 6, 3),
        queue("a long queue, room for two texts", groups, 6, 8, num_blocks=6),
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
)
