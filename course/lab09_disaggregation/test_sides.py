"""Two sides in one process: whatever is late, lost or cut, each request gets its own text, once.

`World` is the two sides, a router, and queues between them, with a clock that the test winds.
"""

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, target
from hypothesis import strategies as st

from solutions.decoding import GREEDY, SamplingParams, stream
from solutions.disaggregation import (
    Leases,
    PrefillFirst,
    RequestLevel,
    StallFree,
    adopt,
    pack_kv,
    unpack_kv,
)
from solutions.engine.engine import Output
from solutions.engine.integrity import check_integrity
from solutions.engine.scheduler import Scheduler
from solutions.kv_cache import CachedLMHead
from solutions.paged_attention import BlockManager, OutOfBlocks
from solutions.prefix_caching import PrefixManager
from solutions.two_processes.messages import (
    Ask,
    Confirmed,
    Forget,
    Granted,
    Last,
    Lost,
    Piece,
    fingerprint,
)
from solutions.two_processes.router import Router
from solutions.two_processes.sides import DecodeSide, Pieces, PrefillSide, Room, reserve
from tests.common.engines import CONFIGS, model_of
from tests.common.serving import Load, hold_often, loads

pytestmark = pytest.mark.usefixtures("short_stretches")

CONFIG = CONFIGS[1]  # a context of 16
PIECES = Pieces(StallFree, pack_kv, unpack_kv, adopt, Leases)
AMPLE = Room(num_blocks=64, block_size=4, token_budget=64, max_running=8)
LONG = 10**6  # ticks that no test lasts
SAMPLED = SamplingParams(temperature=4.0, top_k=5)


def assert_is_empty(side: Any) -> None:
    """No request is left, and every block is free."""
    manager, scheduler = side.manager, side.engine.scheduler
    assert not any([side.numbers, side.engine.sequences, scheduler.running, scheduler.waiting])
    assert not any([manager.tables, side.leases.ends])
    noted = "outgoing", "asking", "incoming", "adopted"
    assert not any(getattr(side, name, None) for name in noted)
    check_integrity(manager)


class World:
    """Two sides and a router. now: the time, which `tick` moves on by one.

    sent: every message that one side has sent to the other, in order. computed: how many tokens
    each side has. rng: with it a tick passes on some of what has been sent, in order, and lets a
    side step or not; loss: how probably a message between the sides is lost then.
    """

    def __init__(
        self,
        model: Any,
        prefill: Room = AMPLE,
        decode: Room = AMPLE,
        seconds: float = LONG,
        rng: random.Random | None = None,
        loss: float = 0.0,
        pieces: Pieces = PIECES,
    ) -> None:
        self.model, self.seconds, self.pieces = model, seconds, pieces
        self.rooms = {"prefill": prefill, "decode": decode}
        self.rng, self.loss, self.now = rng, loss, 0
        self.asked: dict[int, tuple[Any, ...]] = {}
        self.outputs: list[Output] = []
        self.sent: list[Any] = []
        self.jobs: deque[Any] = deque()
        self.orders: deque[Any] = deque()
        self.told: dict[str, deque[Any]] = {"prefill": deque(), "decode": deque()}
        self.router = Router(self.jobs.append, self.orders.append, self.outputs.append)
        self.there: deque[Any] = deque()
        self.back: deque[Any] = deque()
        self.prefill: Any = self.new_side("prefill")
        self.decode: Any = self.new_side("decode")
        self.computed = [0, 0]
        self.meet()

    def new_side(self, name: str) -> PrefillSide | DecodeSide:
        kind, queue = (PrefillSide, self.there) if name == "prefill" else (DecodeSide, self.back)
        tell = self.told[name].append
        return kind(self.model, self.rooms[name], self.pieces, self.seconds, self.by(queue), tell)

    def meet(self) -> None:
        self.prefill.receive(self.decode.hello)
        self.decode.receive(self.prefill.hello)

    def by(self, queue: deque[Any]) -> Callable[[Any], None]:
        def send(message: Any) -> None:
            self.sent.append(message)
            if self.rng is None or self.rng.random() >= self.loss:
                queue.append(message)

        return send

    def submit(
        self,
        prompt: list[int],
        limit: int,
        eos: int | None = None,
        params: SamplingParams = GREEDY,
        seed: int = 0,
    ) -> int:
        end = min(len(prompt) + limit, self.model.config.n_positions)
        number = self.router.submit(prompt, end, eos, params, seed)
        self.asked[number] = prompt, limit, params, seed, eos
        return number

    def pass_on(self, queue: deque[Any], receive: Callable[[Any], None]) -> None:
        count = len(queue) if self.rng is None else self.rng.randint(0, len(queue))
        for _ in range(count):
            receive(queue.popleft())

    def tick(self) -> None:
        self.now += 1
        self.pass_on(self.jobs, self.prefill.receive)
        self.pass_on(self.orders, self.decode.receive)
        self.pass_on(self.back, self.prefill.receive)
        self.step(0)
        self.pass_on(self.there, self.decode.receive)
        self.step(1)
        for told in self.told.values():
            self.pass_on(told, self.router.receive)
        scheduler = self.decode.engine.scheduler
        have_room = len(scheduler.running) + len(scheduler.waiting) + len(self.decode.incoming)
        assert have_room <= scheduler.max_running

    def step(self, which: int) -> None:
        side: Any = (self.prefill, self.decode)[which]
        if self.rng is None or self.rng.random() < 0.8:
            self.computed[which] += side.step(self.now)

    def run(self, ticks: int = 20_000) -> None:
        """Until all requests have ended, in a given number of ticks, each with its own text."""
        while self.router.stories:
            self.tick()
            ticks -= 1
            assert ticks, "somebody waits for ever"
        self.settle()
        for number in self.asked:
            self.assert_text(number)

    def settle(self) -> None:
        """Nothing is lost any more, and all leases end: then both sides must be empty."""
        self.rng = None
        for _ in range(3):
            self.tick()
        self.now += 2 * int(self.seconds)
        for _ in range(3):
            self.tick()
        while self.decode.engine.has_work:  # whatever nobody waits for
            self.tick()
        self.tick()
        assert_is_empty(self.prefill)
        assert_is_empty(self.decode)
        assert not self.router.requests

    def kill(self, name: str) -> None:
        """A side dies and is replaced. What it said before is heard."""
        for queue in (self.there, self.back, self.jobs if name == "prefill" else self.orders):
            queue.clear()
        while self.told[name]:
            self.router.receive(self.told[name].popleft())
        if name == "decode":
            self.router.decode_has_died()
            while self.jobs:
                self.prefill.receive(self.jobs.popleft())
        setattr(self, name, self.new_side(name))
        self.meet()
        (self.decode if name == "prefill" else self.prefill).reconnected()

    def text(self, request: int) -> list[int]:
        return [token for output in self.own(request) for token in output.new_ids]

    def own(self, request: int) -> list[Output]:
        return [output for output in self.outputs if output.request == request]

    def assert_text(self, request: int) -> None:
        """Its outputs are the text that it gets alone, and it has ended once, at its end."""
        prompt, limit, params, seed, eos = self.asked[request]
        generator = torch.Generator().manual_seed(seed)
        text = list(stream(self.model, prompt, limit, params, generator, eos))
        *others, last = self.own(request)
        assert all(o.finish_reason is None and o.new_ids for o in others)
        if last.finish_reason in ("abort", "error"):
            assert self.text(request) == text[: len(self.text(request))]
        else:
            assert last.finish_reason == ("stop" if text and text[-1] == eos else "length")
            assert self.text(request) == text

    @property
    def pieces_sent(self) -> list[Piece]:
        return [message for message in self.sent if isinstance(message, Piece)]


def tokens_of(pieces: list[Piece]) -> float:
    """How many were sent, each in as many pieces as there are layers."""
    return sum(piece.kv.shape[2] for piece in pieces) / CONFIG.n_layer


def world(**given: Any) -> World:
    return World(model_of(CachedLMHead, CONFIG, 0), **given)


# ------------------------------------------------------------------------------------- any load


@dataclass(frozen=True)
class Tale:
    """A load, the room of each side, and what goes wrong meanwhile."""

    load: Load
    prefill: Room
    decode: Room
    seconds: int
    loss: float
    deaths: list[tuple[int, str]]
    scheduler: Any
    rng: int
    params: SamplingParams = GREEDY


@st.composite
def tales(draw: st.DrawFn) -> Tale:
    load = draw(loads(st.none()))
    longest = max(load.end(visit) for visit in load.visits) - 1

    def room(manager: Any, least: int) -> Room:
        size = draw(st.sampled_from([1, 2, 3, 4, 17]))
        blocks = max(1, -(-longest // size)) + draw(st.sampled_from([0, 0, 1, 3, 9]))
        budget = draw(st.sampled_from([24, 9, 5, 3, 2, 1]))
        return Room(blocks, size, budget, draw(st.sampled_from([6, 3, 2, 1])), manager)

    managers = st.sampled_from([BlockManager, BlockManager, PrefixManager])
    prefill, decode = (room(draw(managers), longest) for _ in range(2))
    death = st.tuples(st.integers(1, 15), st.sampled_from(["prefill", "decode"]))
    many = draw(st.sampled_from([0, 1, 0, 2, 3]))
    return Tale(
        load,
        prefill,
        decode,
        draw(st.sampled_from([LONG, 200, 60])),
        draw(st.sampled_from([0.0, 0.1, 0.0, 0.03])),
        draw(st.lists(death, min_size=many, max_size=many)),
        draw(st.sampled_from([StallFree, StallFree, Scheduler, PrefillFirst, RequestLevel])),
        draw(st.integers(0, 10**6)),
    )


def lived(tale: Tale) -> World:
    load, seconds = tale.load, tale.seconds if not tale.loss else min(tale.seconds, 200)
    both = World(
        load.model,
        tale.prefill,
        tale.decode,
        seconds,
        random.Random(tale.rng),
        tale.loss,
        replace(PIECES, scheduler=tale.scheduler),
    )
    leaves = {  # later than in one engine: much goes to and fro before the first token
        number: visit.comes + 3 * (visit.leaves - visit.comes)
        for number, visit in enumerate(load.visits)
        if visit.leaves is not None
    }
    last = max([40, *leaves.values(), *(visit.comes for visit in load.visits)])
    for tick in range(last + 1):
        for number, visit in enumerate(load.visits):
            if visit.comes == tick:
                given = visit.prompt, visit.limit, visit.eos, tale.params, number
                assert both.submit(*given) == number
            if leaves.get(number) == tick:
                both.router.abort(number)
                both.router.abort(number)
        for when, which in tale.deaths:
            if when == tick:
                both.kill(which)
        both.tick()
    both.run()
    return both


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_any_load_gets_the_texts_of_one_engine(params: SamplingParams) -> None:
    def is_lived(tale: Tale) -> dict[str, bool]:
        both = lived(replace(tale, params=params))
        preemptions = both.decode.engine.scheduler.preemptions
        target(float(preemptions + sum(isinstance(message, Lost) for message in both.sent)))
        reasons = {output.finish_reason for output in both.outputs}
        assert "error" not in reasons
        return {
            "deaths": bool(tale.deaths),
            "preempted": preemptions > 0,
            "aborted": "abort" in reasons,
            "forgotten": any(isinstance(message, Forget) for message in both.sent),
            "again": next(both.router.attempts) > len(tale.load.visits),
        }

    hold_often(0.1, is_lived, tales())


# ----------------------------------------------------------------------------- what it costs


def test_nothing_is_computed_or_sent_twice() -> None:
    """Where nothing is lost: the prompt here, the new tokens but the last there."""

    @given(tales())
    def each_tale(tale: Tale) -> None:
        load, visits = tale.load, [replace(visit, leaves=None) for visit in tale.load.visits]
        quiet = replace(
            tale,
            load=replace(load, visits=visits),
            prefill=replace(tale.prefill, block_manager=BlockManager),
            decode=replace(tale.decode, block_manager=BlockManager),
            seconds=LONG,
            loss=0,
            deaths=[],
        )
        both = lived(quiet)
        full = load.config.n_positions
        served = [n for n, visit in enumerate(visits) if len(visit.prompt) < full]
        prompts = sum(len(visits[number].prompt) for number in served)
        again = sum(len(both.text(number)) - 1 for number in served)
        a_token = 2 * load.config.n_layer * load.config.n_embd * 8  # float64
        assert both.computed[0] == prompts
        assert sum(piece.kv.nbytes for piece in both.pieces_sent) == prompts * a_token
        if not both.decode.engine.scheduler.preemptions:
            assert both.computed[1] == again
        controls = Counter(type(m) for m in both.sent if not isinstance(m, Piece))
        assert controls == Counter(dict.fromkeys([Ask, Granted, Last, Confirmed], len(served)))

    each_tale()


def test_chunks_are_sent_layer_by_layer() -> None:
    """Each layer before the next one is computed, once there is room."""
    model, log = model_of(CachedLMHead, CONFIG, 0), list[Any]()
    both = World(model, replace(AMPLE, token_budget=4))
    kv_cache: Any = both.prefill.engine.runner.kv_cache
    attend, send = kv_cache.kv_cache.attend, both.prefill.send

    def noted_attend(layer: int, *packed: Any) -> Any:
        log.append(("computed", layer))
        return attend(layer, *packed)

    def noted_send(message: Any) -> None:
        if isinstance(message, Piece):
            log.append(("sent", message.layer, message.start, message.kv.shape[2]))
        send(message)

    kv_cache.kv_cache.attend, both.prefill.send = noted_attend, noted_send
    both.submit(list(range(10)), 3)
    both.run()
    computed = [("computed", layer) for layer in range(CONFIG.n_layer)]
    assert log[: CONFIG.n_layer] == computed  # nobody has granted room yet
    first = [("sent", layer, 0, 4) for layer in range(CONFIG.n_layer)]
    assert log[CONFIG.n_layer :] == [
        *first,  # what was there when room was granted
        *[part for n, c in enumerate(computed) for part in (c, ("sent", n, 4, 4))],
        *[part for n, c in enumerate(computed) for part in (c, ("sent", n, 8, 2))],
    ]


def test_known_blocks_are_not_sent() -> None:
    """A second turn begins with the first, which lies there in whole blocks of 4."""
    both = world(decode=replace(AMPLE, block_manager=PrefixManager))
    first = [3, 14, 15, 9, 2]
    both.submit(first, 5)
    both.run()
    turn = [*first, *both.text(0), 7]  # 11 tokens, of which 9 are known: two blocks
    before = len(both.pieces_sent)
    both.submit(turn, 3)
    both.run()
    new = both.pieces_sent[before:]
    assert {piece.start for piece in new} == {8}
    assert tokens_of(new) == 3


def test_prefix_cache_at_prefill_saves_no_bytes() -> None:
    both = world(prefill=replace(AMPLE, block_manager=PrefixManager))
    prompt = [3, 14, 15, 9, 2]
    for _ in range(2):
        both.submit(prompt, 3)
        both.run()
    assert both.computed[0] == 5 + 1
    assert tokens_of(both.pieces_sent) == 2 * 5


def test_preempted_prefill_sends_only_the_rest() -> None:
    both = world(prefill=replace(AMPLE, token_budget=3))
    prompt = list(range(10))
    both.submit(prompt, 4)
    for _ in range(3):
        both.tick()
    scheduler = both.prefill.engine.scheduler
    [sequence] = scheduler.running
    assert sequence.num_computed_tokens == 9
    scheduler.preempt(sequence)
    both.run()
    assert both.computed[0] == 9 + 10
    for layer in range(CONFIG.n_layer):
        pieces = [piece for piece in both.pieces_sent if piece.layer == layer]
        sent = [n for piece in pieces for n in range(piece.start, piece.start + piece.kv.shape[2])]
        assert sent == list(range(10))


def test_prefill_is_not_read_after_arrival() -> None:
    both = world()
    requests = [both.submit([n, 3, 14, 15], 9) for n in range(6)]
    while not all(map(both.text, requests)):
        both.tick()
    both.tick()
    assert_is_empty(both.prefill)
    both.prefill.pool.fill_(torch.nan)
    both.run()


# ------------------------------------------------------------------------------- who has to wait


def test_room_is_granted_in_order() -> None:
    """A short prompt behind a long one waits, though there would be room for it."""
    both = world(decode=Room(num_blocks=4, block_size=4, token_budget=16, max_running=8))
    prompts = [list(range(9)), list(range(9)), [7]]
    for prompt in prompts:
        both.submit(prompt, 4)
    both.run()
    granted = [message.key for message in both.sent if isinstance(message, Granted)]
    assert granted == [0, 1, 2]
    assert next(both.router.attempts) == 3  # nobody began again


def test_late_decode_side_ends_the_lease() -> None:
    both = world(seconds=10)
    both.submit([3, 14, 15], 6)
    for _ in range(30):  # it is stopped: nothing that it is sent is read
        both.now += 1
        both.pass_on(both.jobs, both.prefill.receive)
        both.prefill.step(both.now)
        both.pass_on(both.told["prefill"], both.router.receive)
        assert len(both.prefill.manager.tables) <= 1
    asked = [message.key for message in both.sent if isinstance(message, Ask)]
    assert asked == [0, 1, 2]
    assert [message.key for message in both.sent if isinstance(message, Forget)] == [0, 1]
    both.run()


def test_reservation_ends_when_nothing_comes() -> None:
    """The transfer is cut in the middle; whatever comes too late is refused."""
    both = world(prefill=replace(AMPLE, token_budget=2), seconds=10)
    both.submit(list(range(8)), 5)
    while not both.pieces_sent:
        both.tick()
    assert both.decode.incoming
    for _ in range(11):
        both.now += 1
        both.decode.step(both.now)
    assert_is_empty(both.decode)
    assert both.sent[-1] == Forget(0)
    late = both.pieces_sent[-1]
    both.sent.clear()
    both.decode.receive(late)
    assert both.sent == [Forget(0)]
    assert_is_empty(both.decode)
    both.run()


def test_reservation_lasts_while_pieces_come() -> None:
    """A prompt that takes much longer than a lease, in many chunks."""
    both = world(prefill=replace(AMPLE, token_budget=1), seconds=4)
    both.submit(list(range(12)), 3)
    both.run()
    assert not [message for message in both.sent if isinstance(message, Forget)]


# ------------------------------------------------------------------------------ what is refused


def test_other_models_are_refused() -> None:
    both = world()
    other = DecodeSide(model_of(CachedLMHead, CONFIG, 1), AMPLE, PIECES, LONG, print, print)
    larger = DecodeSide(model_of(CachedLMHead, CONFIGS[2], 0), AMPLE, PIECES, LONG, print, print)
    both.submit([3, 14, 15], 6)
    for stranger in (other, larger):
        with pytest.raises(ValueError, match=r"have different models.*from the same"):
            both.prefill.receive(stranger.hello)
        with pytest.raises(ValueError, match="have different models"):
            stranger.receive(both.prefill.hello)
        assert_is_empty(stranger)
    both.run()


def test_fingerprint_covers_weights_and_shape() -> None:
    def model() -> Any:
        torch.manual_seed(0)
        return CachedLMHead(CONFIG)

    assert fingerprint(model()) == fingerprint(model())
    names = list(model().state_dict())
    fingerprints = {fingerprint(model())}
    for name in names:
        changed = model()
        changed.state_dict()[name].view(-1)[-1] += 1e-3
        fingerprints.add(fingerprint(changed))
    heads = CachedLMHead(replace(CONFIG, n_head=2))
    heads.load_state_dict(model().state_dict())
    assert len({*fingerprints, fingerprint(heads)}) == len(names) + 2


@pytest.mark.parametrize("small", ["prefill", "decode"])
def test_oversized_texts_are_refused(small: str) -> None:
    little = Room(num_blocks=2, block_size=4, token_budget=16, max_running=8)
    both = world(**{small: little})
    for prompt, limit in (([9], 3), (list(range(10)), 5), ([8, 9], 4)):
        both.submit(prompt, limit)
    both.run()
    assert both.own(1) == [Output(1, [], "error")]
    assert "the pool has 2" in both.router.refusals[1]


class OopsError(Exception):
    pass


@pytest.mark.parametrize("after", [0, 3])
def test_error_ends_its_request_alone(after: int) -> None:
    """At the prefill, or, with its fourth new token, at the decode side."""
    both = world()
    for side in (both.prefill, both.decode):
        engine = side.engine
        probs = engine.parts.next_token_probs

        def raising(logits: Any, texts: Any, params: Any, probs: Any = probs) -> Any:
            if len(texts[0]) >= 3 + after:
                raise OopsError
            return probs(logits, texts, params)

        engine.parts = replace(engine.parts, next_token_probs=raising)
    failing = both.submit([3, 14, 15], 6, None, SAMPLED)
    for prompt in ([8, 9], [9]):
        both.submit(prompt, 6)
    both.run()
    assert both.own(failing)[-1] == Output(failing, [], "error")
    assert (Forget(failing) in both.sent) == (after == 0)  # nobody keeps room for it
    assert len(both.text(failing)) == after


def test_other_errors_are_not_hidden() -> None:
    both = world()

    def forward(batch: Any) -> Any:
        raise OopsError

    both.prefill.engine.runner.forward = forward
    both.submit([3], 3)
    with pytest.raises(OopsError):
        both.run()


# ------------------------------------------------------------------------------------- deaths


@pytest.mark.parametrize("which", ["prefill", "decode"])
def test_death_at_any_time_changes_no_text(which: str) -> None:
    for when in range(25):
        both = world(prefill=replace(AMPLE, token_budget=2))
        for seed, prompt in enumerate([[3, 14, 15], [9, 2, 6, 5, 35], [8]]):
            both.submit(prompt, 9, None, SAMPLED, seed)
        for _ in range(when):
            both.tick()
        both.kill(which)
        both.run()


def test_asking_twice_confirms_nothing_that_is_arriving() -> None:
    """Otherwise the prefill side would free what the decode side may still give up."""
    both = world()
    both.submit([3, 14, 15], 4)
    both.prefill.receive(both.jobs.popleft())
    for now in range(2):
        both.decode.receive(both.there[0])
        both.decode.step(now)
    assert [type(message) for message in both.back] == [Granted]


def test_prefill_keeps_what_it_computed() -> None:
    """Nobody has room at first, and then all who could have had some are dead."""
    both = world(decode=replace(AMPLE, max_running=1))
    prompts = [[3, 14, 15], [9, 2], [8]]
    for prompt in prompts:
        both.submit(prompt, 6)
    for _ in range(3):
        both.tick()
    new_tokens = len(both.text(0))
    assert new_tokens
    both.kill("decode")
    both.run()
    assert both.computed[0] == 6 + (3 + new_tokens)  # the first one, from where it was


def test_new_decode_side_gets_all_pieces() -> None:
    both = world(prefill=replace(AMPLE, token_budget=2))
    both.submit(list(range(8)), 5)
    while not both.pieces_sent:
        both.tick()
    both.kill("decode")
    both.sent.clear()
    both.run()
    assert both.computed[0] == 8
    assert tokens_of(both.pieces_sent) == 8


def test_arrival_untold_before_death_is_not_lost() -> None:
    """All was confirmed, then the decode side died with its first token."""
    both = world()
    both.decode.tell = lambda message: None
    both.submit([3, 14, 15], 6)
    while not any(isinstance(message, Confirmed) for message in both.back):
        both.tick()
    both.prefill.receive(both.back.pop())
    both.step(0)
    assert_is_empty(both.prefill)
    both.kill("decode")
    both.run()


def test_room_for_the_forgotten_is_given_back() -> None:
    both = world()
    both.prefill.receive(Granted(99, 0))
    assert both.sent == [Forget(99)]


def test_abort_while_decoding_frees_blocks() -> None:
    both = world()
    both.submit([3, 14, 15], 9)
    while not both.text(0):
        both.tick()
    both.router.abort(0)
    both.tick()
    assert not both.decode.numbers
    assert both.decode.manager.used_blocks == 0


def test_decoding_outlives_the_prefill_side() -> None:
    both = world(decode=replace(AMPLE, max_running=1))
    for prompt in ([3, 14], [9, 2]):
        both.submit(prompt, 9)
    while not both.text(0):
        both.tick()
    assert both.decode.asking
    both.kill("prefill")
    assert not both.decode.asking
    both.run()
    assert both.computed == [4 + 2, 8 + 8]


# -------------------------------------------------------------------------------------- reserve


def test_refused_reservations_leave_nothing() -> None:
    side = DecodeSide(
        model_of(CachedLMHead, CONFIG, 0), Room(4, 4, 16, 2), PIECES, LONG, print, print
    )
    first, start = reserve(side.engine, list(range(9)), 12)
    assert (first, start) == (0, 0)
    for prompt, end, error, why in (
        (list(range(5)), 9, OutOfBlocks, "2 blocks are needed; 1 are free"),
        (list(range(5)), 18, ValueError, "takes 5 blocks; the pool has 4"),
    ):
        with pytest.raises(error, match=why):
            reserve(side.engine, prompt, end)
        assert len(side.manager.tables) == 1
    second, _ = reserve(side.engine, [1], 2)
    assert second != first
    side.manager.free(first)
    reserve(side.engine, [1], 2)
    with pytest.raises(OutOfBlocks, match="2 requests hold blocks, and no more may run"):
        reserve(side.engine, [1], 2)
