"""Drivers of lab 8: a manager's books with texts for hashes, a tree node by node, a queue."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from operator import index
from typing import Any, NamedTuple
from unittest.mock import patch

from autograder.attempt.lent import sealed
from autograder.attempt.plain import Strange, kind_of, plain
from autograder.attempt.records import Attempt, Seen, things, tried
from solutions.paged_attention import BlockManager

Step = tuple[Any, ...]  # the name of a method, and what it is given: ("free", 1)
Text = tuple[list[int], str]  # its tokens, and its salt
Steps = list[Step]
Texts = list[Text]
State = dict[str, Any]

# ----------------------------------------------------------------------------- blocks by their hash


def block_hashes(attempt: Attempt, texts: list[Text], block_size: int) -> list[Seen]:
    """Each hash is shown as a number, in the order in which new ones come; and of what kind it is.

    The notebook calls `hex` of a hash, so it has to be bytes; which function made them is open.
    """
    numbers: dict[Any, int] = {}
    kinds = set[str]()

    def hashed(ids: list[int], salt: str) -> Any:
        hashes = attempt(ids, block_size, salt.encode())
        if not isinstance(hashes, (list, tuple)):
            return hashes
        kinds.update(f"{len(k)} bytes" if type(k) is bytes else kind_of(k) for k in hashes)
        return f"is {[numbers.setdefault(key, len(numbers)) for key in hashes]}"

    seen = [
        Seen(f"The list of hashes of text {number}, numbered as new ones come,", hashed(*text))
        for number, text in enumerate(texts, 1)
    ]
    seen.append(Seen("Each hash", f"is {' or '.join(sorted(kinds)) or 'missing'}"))
    known = len(numbers)
    with another_process(attempt):
        for text in texts:
            hashed(*text)
    told = "is the same" if len(numbers) == known else "is another one"
    return [*seen, Seen("Each hash, made in another process,", told)]


def another_process(attempt: Attempt) -> AbstractContextManager[Any]:
    """Let Python's `hash` give an attempt other numbers, as it does in another process."""
    names = getattr(attempt, "__globals__", {})
    other = {} if "hash" in names else {"hash": lambda value: hash((value, "elsewhere"))}
    return patch.dict(names, other)


# A case gives a manager's `life` so far, the `state` that this leads to, the `steps` to be judged,
# and all `texts`. In a state, each known block has its text, up to its end.


def by_hashes(
    attempt: type, life: Steps, state: State, steps: Steps, texts: Texts, **pool: int
) -> list[Seen]:
    """Put a new manager into the state, so that only the method in `steps` is needed.

    The contents of blocks are known by the hashes of the attempt's notebook.
    """
    names: dict[Any, str] = {}
    for ids, salt in texts:
        manager = attempt(**pool)
        manager.salts[0] = salt.encode()
        ends = range(pool["block_size"], len(ids) + 1, pool["block_size"])
        for end, key in zip(ends, manager.hashes_of(0, ids), strict=False):
            names[key] = name_of(ids[:end], salt)
    return looked_at(in_state(attempt(**pool), state, names), steps, names)


def by_names(
    attempt: type, life: Steps, state: State, steps: Steps, texts: Texts, **pool: int
) -> list[Seen]:
    """The same for a method that makes no hashes: made-up keys stand for them."""
    names = names_in(state)
    return looked_at(in_state(attempt(**pool), state, names), steps, names)


def admit(
    attempt: type, life: Steps, state: State, steps: Steps, texts: Texts, **pool: int
) -> list[Seen]:
    """The same, with a `match` and a `take_block` that are not the attempt's own."""
    names, prescribed = names_in(state), Prescribed(pool["block_size"])
    own = {"match": sealed(prescribed.match), "take_block": sealed(prescribed.take_block)}
    manager = in_state(type(attempt.__name__, (attempt,), own)(**pool), state, names)
    seen = []
    for number, (step, found) in enumerate(zip(steps, state["found"], strict=True), 1):
        prescribed.text, prescribed.found, prescribed.taken = step[2], found, []
        seen += looked_at(manager, [step], names, number)
        where = f"after step {number}"
        seen.append(Seen("What `take_block` has handed out", f"is {prescribed.taken}", where))
    return seen


@dataclass
class Prescribed:
    """A fixed `match` and `take_block` for the `admit` of a manager, which they are given first.

    text: the new request's. found: by salt, the blocks in which its beginning is known. taken: the
    blocks that `take_block` has handed out; their old contents stay in the books.
    """

    block_size: int
    text: list[int] = field(default_factory=list)
    found: dict[str, list[int]] = field(default_factory=dict)
    taken: list[int] = field(default_factory=list)

    def match(self, manager: Any, token_ids: Iterable[int], salt: bytes = b"") -> list[int]:
        asked = list(token_ids)
        blocks = self.found.get(salt.decode(), []) if asked == self.text[: len(asked)] else []
        return blocks[: max(len(asked) - 1, 0) // self.block_size]

    def take_block(self, manager: Any) -> int:
        self.taken.append(BlockManager.take_block(manager))
        return self.taken[-1]


def as_built(
    attempt: type, life: Steps, state: State, steps: Steps, texts: Texts, **pool: int
) -> list[Seen]:
    """Let a new manager live by its own methods, whatever else it keeps, and ask what it finds.

    One more token after each text lets its last block be found, too. The two books are read by
    given code, so they must agree; one that keeps a book of its own may leave both empty.
    """
    manager = attempt(**pool)
    seen = []
    for number, step in enumerate([*life, *steps], 1):
        seen += [called(manager, step, number), *books(manager, number)]
        found = [manager.match([*ids, 0], salt.encode()) for ids, salt in texts]
        seen.append(Seen("What is found of each text", f"is {told(found)}", f"after step {number}"))
        inverse = {block: key for key, block in manager.cached.items()}
        agree = "agree" if inverse == manager.block_hash else "don't agree"
        seen.append(Seen("`cached` and `block_hash`", agree, f"after step {number}"))
    return seen


def name_of(ids: list[int], salt: str) -> str:
    return f"{ids} with the salt {salt}" if salt else str(ids)


def names_in(state: dict[str, Any]) -> dict[Any, str]:
    """A made-up key in place of each hash, and what it stands for."""
    names = [name_of(ids, salt) for _, ids, salt in state["known"]]
    return {name.encode(): name for name in names}


def in_state(manager: Any, state: dict[str, Any], names: dict[Any, str]) -> Any:
    """Put a manager into a state; return it."""
    manager.tables.update({request: list(table) for request, table in state["tables"].items()})
    manager.lengths.update(state["lengths"])
    manager.ref_counts[:] = state["ref_counts"]
    manager.free_blocks.clear()
    manager.free_blocks.extend(state["free_blocks"])
    manager.salts.update({request: salt.encode() for request, salt in state["salts"].items()})
    manager.queried, manager.hits = state["queried"], state["hits"]
    keys = {name: key for key, name in names.items()}
    for block, ids, salt in state["known"]:
        key = keys[name_of(ids, salt)]
        manager.cached[key], manager.block_hash[block] = block, key
    return manager


def looked_at(manager: Any, steps: list[Step], names: dict[Any, str], first: int = 1) -> list[Seen]:
    """The result of each step, the books after it, and what they list as known."""
    seen: list[Seen] = []
    for number, step in enumerate(steps, first):
        seen += [called(manager, step, number), *books(manager, number)]
        seen += known(manager, names, number)
    return seen


def known(manager: Any, names: dict[Any, str], number: int) -> Iterator[Seen]:
    """A manager's two books of hashes. names: the text that each hash stands for."""

    def listed(book: str, entries: list[str]) -> Seen:
        what = f"`{book}`, with texts in place of hashes,"
        return Seen(what, f"has {', '.join(sorted(entries)) or 'nothing'}", f"after step {number}")

    def text(key: Any) -> str:
        return names.get(key, "something else")

    pairs = manager.cached.items(), manager.block_hash.items()
    yield listed("cached", [f"{text(key)} in block {told(block)}" for key, block in pairs[0]])
    yield listed("block_hash", [f"block {told(block)} for {text(key)}" for block, key in pairs[1]])


def called(manager: Any, step: Step, number: int) -> Seen:
    """The result of a call."""
    method, *given = step
    given = [part.encode() if isinstance(part, str) else part for part in given]
    call, where = f"`{method}({', '.join(map(repr, given))})`", f"in step {number}"
    returned, how = tried(getattr(manager, method), *given, error="OutOfBlocks")
    if method in ("match", "take_block", "admit") and how == "went through":
        return Seen(call, None if returned is None else f"is {told(returned)}", where)
    return Seen(call, how, where)  # the others have nothing to return


def books(manager: Any, number: int) -> Iterator[Seen]:
    """A manager's books about its requests and blocks."""
    where, free = f"after step {number}", manager.free_blocks
    yield Seen("`tables`", f"is {told(manager.tables)}", where)
    yield Seen("`lengths`", f"is {told(manager.lengths)}", where)
    yield Seen("`ref_counts`", f"is {told(manager.ref_counts)}", where)
    usable = hasattr(free, "popleft")  # given code calls it
    yield Seen("`free_blocks`", f"is {told(list(free)) if usable else kind_of(free)}", where)
    salts = {request: str(salt) for request, salt in manager.salts.items()}
    yield Seen("`salts`", f"is {told(salts)}", where)
    yield Seen("`queried` and `hits`", f"is {told([manager.queried, manager.hits])}", where)


def told(value: Any) -> str:
    """A value for the end of a sentence; a dict is sorted by its keys."""
    match plain(value):
        case Strange(kind):
            return kind
        case Mapping() as items:
            pairs = sorted(items.items(), key=lambda item: (isinstance(item[0], str), item[0]))
            return "{" + ", ".join(f"{key}: {told(item)}" for key, item in pairs) + "}"
        case list() | tuple() as items:
            return f"[{', '.join(map(told, items))}]"
        case None | bool() | int() | float() | str() as known:
            return str(known)
    return kind_of(value)


# ------------------------------------------------------------------------------------ a radix tree


class Placed(NamedTuple):
    """A node, the text of its path, and the parent under which it was found.

    Anything among the children that isn't a node gets a place too.
    """

    path: list[int]
    node: Any
    parent: Any


MOST_READ = 2000  # times; the texts have some ten tokens


def watched(ids: list[int]) -> list[int]:
    """Return a text that notices when a walk reads it for ever."""
    read = count(1)

    def get(text: list[int], place: Any) -> Any:
        if next(read) > MOST_READ:
            raise RuntimeError(
                f"the walk has read the text {MOST_READ:,} times and does not end. Does `length` "
                "grow in every turn of the loop?"
            )
        return list.__getitem__(text, place)

    return type("Text", (list,), {"__getitem__": sealed(get)})(ids)


def walk(attempt: type, steps: list[list[Any]]) -> list[Seen]:
    """A new tree, into which texts are inserted, and in which others are walked to.

    A step is "insert", ids and blocks, or "walk" and ids.
    """
    tree, seen = attempt(), list[Seen]()
    before: list[Placed] = []
    for number, (method, ids, *blocks) in enumerate(steps, 1):
        call = f"`{method}({ids})`{f' (step {number})' if len(steps) > 1 else ''}"
        returned = getattr(tree, method)(watched(ids), *blocks)
        placed = nodes_of(tree)
        if method == "insert":
            seen.append(Seen("The number of known tokens", returned, f"that {call} returned"))
        else:
            node, length = things(2, returned, "walk returns two things, a node and a length")
            seen.append(Seen("The length", length, f"that {call} returned"))
            seen.append(Seen("The node", where_it_stands(node, placed), f"that {call} returned"))
        seen += told_of(placed, f"after {call}")
        seen.append(Seen("An earlier node", moved(before, placed), f"after {call}"))
        before = placed
    return seen


def moved(before: list[Placed], now: list[Placed]) -> str:
    """Whether each node still ends the text that it ended before."""
    paths = {id(here.node): here.path for here in now}
    for here in before:
        path = paths.get(id(here.node))
        if path != here.path:
            became = "is gone" if path is None else f"is at {shown(path)}"
            return f"has changed its path: it was at {shown(here.path)} and {became}"
    return "keeps its path"


def evict(
    attempt: type, walks: int, nodes: list[list[Any]], calls: list[dict[str, Any]]
) -> list[Seen]:
    """A tree of these nodes, so that no walk is needed. A call has `needed` and blocks `held`.

    The returned blocks may come in any order; the tree after each call shows which leaves went.
    """
    tree, seen = planted(attempt, walks, nodes), list[Seen]()
    for number, call in enumerate(calls, 1):
        evicted = tree.evict(call["needed"], sealed(partial(is_unused, call["held"])))
        told = f"`evict({call['needed']}, …)`{f' (call {number})' if len(calls) > 1 else ''}"
        blocks = f"is {in_order(evicted)}" if isinstance(evicted, list) else evicted
        seen.append(Seen("The list of blocks", blocks, f"that {told} returned"))
        seen += told_of(nodes_of(tree), f"after {told}")
    return seen


def planted(attempt: type, walks: int, nodes: list[list[Any]]) -> Any:
    """A tree of nodes, each given as [the place of its parent, ids, blocks, stamp].

    The root has place 0, the first node place 1. Every walk begins at the root, so its stamp is the
    last walk's number.
    """
    tree: Any = attempt()
    made = [tree.root]
    tree.walks = tree.root.stamp = walks
    for place, ids, blocks, stamp in nodes:
        node = type(tree.root)(list(ids), list(blocks), made[place], {}, stamp)
        made[place].children[ids[0]] = node
        made.append(node)
    return tree


def is_unused(held: list[int], block: int) -> bool:
    return block not in held


def nodes_of(tree: Any) -> list[Placed]:
    """Everything that can be reached from the root. The children of a node that is reached twice
    are visited once, so this ends even in a circle."""
    placed, been = list[Placed](), set[int]()
    todo = [Placed(ids_in(tree.root), tree.root, None)]
    while todo:
        here = todo.pop()
        placed.append(here)
        children = getattr(here.node, "children", None)
        if id(here.node) in been or not isinstance(children, dict):
            continue
        been.add(id(here.node))
        for child in children.values():
            todo.append(Placed(here.path + ids_in(child), child, here.node))
    return placed


def ids_in(node: Any) -> list[Any]:
    """The ids of a node; none for anything that isn't one."""
    ids = getattr(node, "ids", None)
    return list(ids) if isinstance(ids, (list, tuple)) else []


def told_of(placed: list[Placed], where: str) -> Iterator[Seen]:
    """All about each node; its ids are the end of its path.

    A second node at the same path is named so: its edge may be empty.
    """
    paths = set[str]()
    for here in placed:
        path = shown(here.path)
        at = f"at {path}{', once more,' if path in paths else ''}"
        paths.add(path)
        yield Seen(f"The node {at}", links_of(here), where)
        if hasattr(here.node, "children"):
            yield Seen(f"The list of blocks {at}", f"is {shown(here.node.blocks)}", where)
            yield Seen(f"The stamp {at}", here.node.stamp, where)


def links_of(here: Placed) -> str:
    """A node's children, and its parent where that is wrong."""
    if not hasattr(here.node, "children"):
        return f"is {kind_of(here.node)}"
    children = here.node.children
    links = in_order(list(children)) if isinstance(children, dict) else children
    wrong = "" if here.node.parent is here.parent else ", and another parent"
    return f"has children under {shown(links)}{wrong}"


def where_it_stands(node: Any, placed: list[Placed]) -> Any:
    """The path of a node; anything else is handed on."""
    paths = [here.path for here in placed if here.node is node]
    if paths:
        return f"is at {shown(paths[0])}"
    return "is not in the tree" if hasattr(node, "children") else node


def in_order(numbers: list[Any]) -> list[Any]:
    """Sorted numbers; a list with anything else in it stays in its order."""
    are_numbers = all(isinstance(number, int) for number in numbers)
    return sorted(numbers) if are_numbers else plain(numbers)


def shown(value: Any) -> str:
    """A value for the middle of a sentence. Tuples count as lists."""
    value = plain(value)
    if isinstance(value, Strange):
        return value.kind
    return str(list(value) if isinstance(value, tuple) else value)


# ---------------------------------------------------------------------- which request is next


def choose_next(
    attempt: Attempt, choices: list[list[Any]], queue: dict[str, Any] | None
) -> list[Seen]:
    """Single choices, each [matched, waited, patience]; then a queue, if there is one."""
    seen = []
    for choice in choices:
        call = f"`choose_next({', '.join(map(str, choice))})`"
        chosen, became = tried(attempt, *choice)
        seen += [Seen(call, became), Seen("The place", told_place(chosen), f"from {call}")]
    return seen if queue is None else [*seen, *served(attempt, **queue)]


def place_of(chosen: Any) -> int | None:
    """The returned value as a place in a list; None if it can't be one."""
    try:
        return index(plain(chosen))
    except TypeError:
        return None


def told_place(chosen: Any) -> Any:
    place = place_of(chosen)
    if place is None and not isinstance(chosen, float):
        return chosen
    return f"is {chosen if place is None else place}"


class Beginnings:
    """Stands for a manager: which beginnings are known, without any blocks.

    Each is known by its text up to its end; the one used longest ago comes first.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.known: dict[tuple[int, ...], None] = {}

    def of(self, text: Sequence[int]) -> list[tuple[int, ...]]:
        ends = range(self.block_size, len(text) + 1, self.block_size)
        return [tuple(text[:end]) for end in ends]

    def match(self, text: Sequence[int]) -> int:
        """Count the tokens that are found; the last one never is."""
        found = 0
        for beginning in self.of(text[:-1]):
            if beginning not in self.known:
                break
            found = len(beginning)
        return found

    def serve(self, text: Sequence[int]) -> None:
        """Compute a text. Its last block will be evicted first."""
        for beginning in reversed(self.of(text)):
            self.known.pop(beginning, None)
            self.known[beginning] = None
        while len(self.known) > self.num_blocks:
            del self.known[next(iter(self.known))]


def served(
    attempt: Attempt, texts: list[list[int]], at_once: int, patience: int, **pool: int
) -> list[Seen]:
    """Serve the texts one by one. `at_once` of them wait; whenever one is served, another comes."""
    cache, coming = Beginnings(**pool), deque(range(len(texts)))
    waiting = [coming.popleft() for _ in range(at_once)]
    times = [0] * len(texts)
    order, computed = list[int](), 0
    while waiting:
        matched = [cache.match(texts[number]) for number in waiting]
        place = place_of(attempt(matched, [times[number] for number in waiting], patience))
        if place is None or not 0 <= place < len(waiting):
            break
        chosen = waiting.pop(place)
        order.append(chosen)
        computed += len(texts[chosen]) - cache.match(texts[chosen])
        cache.serve(texts[chosen])
        for number in waiting:
            times[number] += 1
        waiting += [coming.popleft()] if coming else []
    return [
        Seen("The number of tokens computed", computed, "for the whole queue"),
        Seen("The longest wait", max(times), "in the whole queue"),
        Seen("The order in which the queue is served", order),
    ]


# -------------------------------------------------------------------- what a kept prefix costs


def bill(
    attempt: type, least: int, lifetime: int, prompts: list[tuple[int, list[int], list[int]]]
) -> list[Seen]:
    """Bill the prompts one after the other: when each comes, its ids, and its marks."""
    cache, seen = attempt(least, lifetime), list[Seen]()
    rule = "bill returns three numbers: the tokens that are read, written and plain"
    for number, (now, ids, marks) in enumerate(prompts, 1):
        where = f"in call {number}, bill({now}, {len(ids)} ids, {marks}),"
        found = things(3, cache.bill(now, ids, marks), rule)
        kinds = zip(("read", "written", "plain"), found, strict=True)
        seen += [Seen(f"The number of tokens {kind}", tokens, where) for kind, tokens in kinds]
    return seen
