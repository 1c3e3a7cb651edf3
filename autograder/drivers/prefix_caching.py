"""Drivers of lab 8: a manager's books by their texts, a tree node by node, a queue in turn."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import index
from typing import Any, NamedTuple

from autograder.drivers.seen import (
    Attempt,
    Seen,
    Strange,
    is_out_of_blocks,
    kind_of,
    plain,
    things,
    tried,
)
from solutions.paged_attention import BlockManager

Step = tuple[Any, ...]  # the name of a method, and what it is given: ("free", 1)
Text = tuple[list[int], str]  # its tokens, and its salt
Steps = list[Step]
Texts = list[Text]
State = dict[str, Any]

# ----------------------------------------------------------------------------- blocks by their hash


def block_hashes(attempt: Attempt, texts: list[Text], block_size: int) -> list[Seen]:
    """A hash may be whatever a dict can look up; it is told by a number, as new ones come."""
    numbers: dict[Any, int] = {}
    seen = []
    for number, (ids, salt) in enumerate(texts, 1):
        hashes = attempt(ids, block_size, salt.encode())
        if isinstance(hashes, (list, tuple)):
            hashes = f"is {[numbers.setdefault(key, len(numbers)) for key in hashes]}"
        what = f"The list of hashes of text {number}, numbered as new ones come,"
        seen.append(Seen(what, hashes))
    return seen


# Of a manager a case tells its `life` so far, the `state` that this leads to, the `steps` to be
# judged, and all `texts`. In a state each block that is known has its text, up to its end.


def by_hashes(
    attempt: type, life: Steps, state: State, steps: Steps, texts: Texts, **pool: int
) -> list[Seen]:
    """Put a new manager into the state, so that no method is needed but the one in `steps`.

    What blocks hold goes by the hashes of the attempt's notebook.
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
    """The same for a method that makes no hashes: words take their place."""
    names = names_in(state)
    return looked_at(in_state(attempt(**pool), state, names), steps, names)


def admit(
    attempt: type, life: Steps, state: State, steps: Steps, texts: Texts, **pool: int
) -> list[Seen]:
    """The same, with a `match` and a `take_block` that are not the attempt's own."""
    names = names_in(state)
    manager = in_state(type(attempt.__name__, (Prescribed, attempt), {})(**pool), state, names)
    seen = []
    for number, (step, found) in enumerate(zip(steps, state["found"], strict=True), 1):
        manager.text, manager.found, manager.taken = step[2], found, []
        seen += looked_at(manager, [step], names, number)
        where = f"after step {number}"
        seen.append(Seen("What `take_block` has handed out", f"is {manager.taken}", where))
    return seen


class Prescribed:
    """Stands before an attempt's class while its `admit` is looked at.

    text: the newcomer's. found: by salt, the blocks in which that is known, as far as it is. taken:
    what `take_block` has handed out; what such a block held stays in the books.
    """

    text: list[int]
    found: dict[str, list[int]]
    taken: list[int]

    def match(self: Any, token_ids: Iterable[int], salt: bytes = b"") -> list[int]:
        asked = list(token_ids)
        blocks = self.found.get(salt.decode(), []) if asked == self.text[: len(asked)] else []
        return blocks[: max(len(asked) - 1, 0) // self.block_size]

    def take_block(self: Any) -> int:
        self.taken.append(BlockManager.take_block(self))
        return self.taken[-1]


def as_built(
    attempt: type, life: Steps, state: State, steps: Steps, texts: Texts, **pool: int
) -> list[Seen]:
    """Let a new manager live by its own methods, whatever else it keeps, and ask it what it finds.

    A token behind each text lets its last block be found, too.
    """
    manager = attempt(**pool)
    seen = []
    for number, step in enumerate([*life, *steps], 1):
        seen += [called(manager, step, number), *books(manager, number)]
        found = [manager.match([*ids, 0], salt.encode()) for ids, salt in texts]
        seen.append(Seen("What is found of each text", f"is {told(found)}", f"after step {number}"))
    return seen


def name_of(ids: list[int], salt: str) -> str:
    return f"{ids} with the salt {salt}" if salt else str(ids)


def names_in(state: dict[str, Any]) -> dict[Any, str]:
    """In the place of each hash: bytes that nothing is made of."""
    names = [name_of(ids, salt) for _, ids, salt in state["known"]]
    return {name.encode(): name for name in names}


def in_state(manager: Any, state: dict[str, Any], names: dict[Any, str]) -> Any:
    """A manager, put into a state."""
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
    """What becomes of each step, the books after it, and what they say to be known."""
    seen: list[Seen] = []
    for number, step in enumerate(steps, first):
        seen += [called(manager, step, number), *books(manager, number)]
        seen += known(manager, names, number)
    return seen


def known(manager: Any, names: dict[Any, str], number: int) -> Iterator[Seen]:
    """A manager's two books of hashes; names: what each hash stands for."""

    def listed(book: str, entries: list[str]) -> Seen:
        what = f"`{book}`, with texts in the place of hashes,"
        return Seen(what, f"has {', '.join(sorted(entries)) or 'nothing'}", f"after step {number}")

    def text(key: Any) -> str:
        return names.get(key, "something else")

    pairs = manager.cached.items(), manager.block_hash.items()
    yield listed("cached", [f"{text(key)} in block {told(block)}" for key, block in pairs[0]])
    yield listed("block_hash", [f"block {told(block)} for {text(key)}" for block, key in pairs[1]])


def called(manager: Any, step: Step, number: int) -> Seen:
    """What became of a call."""
    method, *given = step
    given = [part.encode() if isinstance(part, str) else part for part in given]
    call, where = f"`{method}({', '.join(map(repr, given))})`", f"in step {number}"
    try:
        returned = getattr(manager, method)(*given)
    except Exception as error:
        if is_out_of_blocks(error):
            return Seen(call, "is refused with OutOfBlocks", where)
        raise
    if method in ("match", "take_block", "admit"):
        return Seen(call, None if returned is None else f"is {told(returned)}", where)
    return Seen(call, "goes through", where)  # the others have nothing to return


def books(manager: Any, number: int) -> Iterator[Seen]:
    """What a manager says of its requests and blocks."""
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
    """A value as it ends a sentence; a dict by its keys, in whatever order it was made."""
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
    """A node, the text of its path, and the parent below which it was found.

    What stands among the children and is no node has a place too.
    """

    path: list[int]
    node: Any
    parent: Any


def walk(attempt: type, steps: list[list[Any]]) -> list[Seen]:
    """A new tree, into which texts are inserted, and in which others are walked to.

    A step is "insert", ids and blocks, or "walk" and ids.
    """
    tree, seen = attempt(), list[Seen]()
    for number, (method, *given) in enumerate(steps, 1):
        call = f"`{method}({given[0]})`{f' (step {number})' if len(steps) > 1 else ''}"
        returned = getattr(tree, method)(*given)
        placed = nodes_of(tree)
        if method == "insert":
            seen.append(Seen("The number of known tokens", returned, f"that {call} returned"))
        else:
            node, length = things(2, returned, "walk returns two things, a node and a length")
            seen.append(Seen("The length", length, f"that {call} returned"))
            seen.append(Seen("The node", where_it_stands(node, placed), f"that {call} returned"))
        seen += told_of(placed, f"after {call}")
    return seen


def evict(
    attempt: type, walks: int, nodes: list[list[Any]], calls: list[dict[str, Any]]
) -> list[Seen]:
    """A tree of these nodes, so that no walk is needed. A call has `needed` and blocks `held`.

    The order of the blocks that are returned is left open: what is gone after a call tells it.
    """
    tree, seen = planted(attempt, walks, nodes), list[Seen]()
    for number, call in enumerate(calls, 1):
        evicted = tree.evict(call["needed"], partial(is_unused, call["held"]))
        told = f"`evict({call['needed']}, …)`{f' (call {number})' if len(calls) > 1 else ''}"
        blocks = f"is {in_order(evicted)}" if isinstance(evicted, list) else evicted
        seen.append(Seen("The list of blocks", blocks, f"that {told} returned"))
        seen += told_of(nodes_of(tree), f"after {told}")
    return seen


def planted(attempt: type, walks: int, nodes: list[list[Any]]) -> Any:
    """A node is [the place of its parent, ids, blocks, stamp]; the root has place 0, the first
    node 1. The root is where every walk begins, so its stamp is that of the last one."""
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
    """All that can be reached from the root. What is reached twice is gone through once, so that
    this ends in a circle too."""
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
    """The ids of a node; of what can't have any, none."""
    ids = getattr(node, "ids", None)
    return list(ids) if isinstance(ids, (list, tuple)) else []


def told_of(placed: list[Placed], where: str) -> Iterator[Seen]:
    """What there is to know of each node; its ids are the end of its path.

    The next one at a path is told apart: its edge may be empty.
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
    """How a node hangs together with its children; and with its parent, where that is wrong."""
    if not hasattr(here.node, "children"):
        return f"is {kind_of(here.node)}"
    children = here.node.children
    links = in_order(list(children)) if isinstance(children, dict) else children
    wrong = "" if here.node.parent is here.parent else ", and another parent"
    return f"has children under {shown(links)}{wrong}"


def where_it_stands(node: Any, placed: list[Placed]) -> Any:
    """The path of a node; what is none is handed on."""
    paths = [here.path for here in placed if here.node is node]
    if paths:
        return f"is at {shown(paths[0])}"
    return "is not in the tree" if hasattr(node, "children") else node


def in_order(numbers: list[Any]) -> list[Any]:
    """Numbers in their order; whatever else may be among them stays as it is."""
    are_numbers = all(isinstance(number, int) for number in numbers)
    return sorted(numbers) if are_numbers else plain(numbers)


def shown(value: Any) -> str:
    """A value in the middle of a sentence. Tuples are as good as lists."""
    value = plain(value)
    if isinstance(value, Strange):
        return value.kind
    return str(list(value) if isinstance(value, tuple) else value)


# ------------------------------------------------------------------------------- who is served next


def choose_next(
    attempt: Attempt, choices: list[list[Any]], queue: dict[str, Any] | None
) -> list[Seen]:
    """Single choices, each [matched, waited, patience]; then a queue, where there is one."""
    seen = []
    for choice in choices:
        call = f"`choose_next({', '.join(map(str, choice))})`"
        chosen, became = tried(attempt, *choice)
        seen += [Seen(call, became), Seen("The place", told_place(chosen), f"from {call}")]
    return seen if queue is None else [*seen, *served(attempt, **queue)]


def place_of(chosen: Any) -> int | None:
    """What was returned, as a place in a list; None where it can't be one."""
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
    """Stands for a manager: the blocks that are known, without the blocks.

    Each is known by its text up to its end; whose turn came longest ago stands first.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.known: dict[tuple[int, ...], None] = {}

    def of(self, text: Sequence[int]) -> list[tuple[int, ...]]:
        ends = range(self.block_size, len(text) + 1, self.block_size)
        return [tuple(text[:end]) for end in ends]

    def match(self, text: Sequence[int]) -> int:
        """How many tokens are found; the last one never is."""
        found = 0
        for beginning in self.of(text[:-1]):
            if beginning not in self.known:
                break
            found = len(beginning)
        return found

    def serve(self, text: Sequence[int]) -> None:
        """Compute a text. Of its own blocks the last one goes first."""
        for beginning in reversed(self.of(text)):
            self.known.pop(beginning, None)
            self.known[beginning] = None
        while len(self.known) > self.num_blocks:
            del self.known[next(iter(self.known))]


def served(
    attempt: Attempt, texts: list[list[int]], at_once: int, patience: int, **pool: int
) -> list[Seen]:
    """Serve them one by one. So many wait at once: with each that is served another one comes."""
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
