"""The reference solution of lab 14: every text is one of the language, and none is left out.

Languages are those of `re.fullmatch` and `json.loads`. What is allowed, forced, held back or
uncertain is compared with the slow way to find it, and generation with the naive loop.
"""

import copy
import json
import pickle
import random
import re
from collections.abc import Sequence
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gpt import load_tokenizer
from solutions import constrained as lab_14
from solutions.constrained import Automaton, IndexGuide, NestedGuide, automaton_of, token_index
from solutions.decoding import NEVER
from solutions.grammars.regex import LAST, Either, Then, characters, complement, literal, parse
from solutions.kv_cache import CachedLMHead
from tests.common.engines import CONFIGS, assert_same, model_of, naive_logits, shapes_of_forwards
from tests.common.expressions import random_text

DATE = r"(19|20)\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
EOS = 0
PIECES = ('"}', "}]", '",', '": ', '{"', '["', "]]", "}}", '"a', "12", ", ", "true", "null", "é")
VOCABULARY = [b"", *(bytes([b]) for b in range(32, 127)), *(p.encode() for p in PIECES), b"\xc3"]
seeds = st.integers(0, 9999)


def after(automaton: Automaton, text: bytes, state: int | None = 0) -> int | None:
    for byte in text:
        state = None if state is None else automaton.edges[state].get(byte)
    return state


def fits(automaton: Automaton, text: bytes) -> bool:
    return after(automaton, text) in automaton.accepting


def text_of(tokens: Sequence[int], vocabulary: Sequence[bytes] = VOCABULARY) -> bytes:
    return b"".join(vocabulary[token] for token in tokens)


def distances(automaton: Automaton) -> dict[int, int]:
    """For each state from which an accepting one can be reached: after how many bytes."""
    far, steps = dict.fromkeys(automaton.accepting, 0), 0
    while near := [
        state
        for state, out in enumerate(automaton.edges)
        if state not in far and not far.keys().isdisjoint(out.values())
    ]:
        steps += 1
        far |= dict.fromkeys(near, steps)
    return far


# ------------------------------------------------------------------------ choices, and the mask

words = st.lists(st.integers(1, 3), max_size=4)


@given(st.lists(words, max_size=6), words)
def test_a_choice_goes_on_with_its_next_token_or_ends(choices, generated):
    whole = [[*choice, EOS] for choice in choices]
    going = {c[len(generated)] for c in whole if c[: len(generated)] == generated}
    assert lab_14.allowed_choices(choices, generated, EOS) == going


@given(seeds, st.integers(0, 3), st.sampled_from([0.5, 1.0, 3.0]))
def test_a_mask_renormalizes_and_closes_the_padding(seed, padding, temperature):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(3, 6 + padding, generator=generator, dtype=torch.float64)
    allowed = torch.rand(3, 6, generator=generator) < 0.5
    allowed[:, seed % 6] = True
    before = logits.clone()
    found = lab_14.constrain(logits, allowed)
    assert torch.equal(logits, before)
    assert torch.equal(found[:, :6][allowed], logits[:, :6][allowed])
    powers = (logits.softmax(-1) ** (1 / temperature))[:, :6] * allowed
    assert_same((found / temperature).softmax(-1)[:, :6], powers / powers.sum(-1, keepdim=True))
    assert (found[:, 6:] == NEVER).all()
    allowed[1] = False
    with pytest.raises(ValueError, match=r"^Row 1 allows no token\."):
        lab_14.constrain(logits, allowed)


# ------------------------------------------------------------------------------------- patterns

patterns = st.recursive(
    st.sampled_from(["a", "b", "c", ".", "[ab]", "[^a]", "", r"\w", "é"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"({two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{2,}"])).map(
            lambda both: f"(?:{both[0]}){both[1]}"
        ),
    ),
    max_leaves=6,
)


@given(patterns)
def test_a_pattern_has_the_texts_of_fullmatch(pattern):
    automaton = automaton_of(parse(pattern))
    for text in map("".join, (t for n in range(5) for t in product("abé", repeat=n))):
        assert fits(automaton, text.encode()) == bool(re.fullmatch(pattern, text, re.ASCII))


@pytest.mark.parametrize(
    "pattern",
    [r"\d+\.\d\d", r"[^\s]+", r"[à-ü☺-😀]{2}", r"[^a-z]", r"\S\W\D", "^ab$",
     r"\x41\u00e9", "(a|)(?P<n>b)", r"[\]\-a]*", "a.c", DATE],
)  # fmt: skip
def test_classes_escapes_and_anchors_at_the_ends(pattern):
    regex = parse(pattern)
    automaton = automaton_of(regex)
    draw = random.Random(pattern)
    letters = "ab019 .-]Aé☺😀\n\té_zà\u0800\uffff\U00010000"
    texts = ["".join(draw.choices(letters, k=draw.randint(0, 4))) for _ in range(300)]
    texts += [random_text(regex, seed) for seed in range(20)]
    for text in texts:
        assert fits(automaton, text.encode()) == bool(re.fullmatch(pattern, text, re.ASCII)), text


code_points = st.one_of(st.integers(0, 0x2FF), st.integers(0, LAST))


@given(code_points, code_points, st.lists(code_points, max_size=9))
def test_a_range_of_characters_has_their_bytes(one, other, others):
    low, high = sorted([one, other])
    both = [(low, high)], complement([(low, high)])  # one of them may have no character
    within, outside = (
        automaton_of(lab_14.either(characters(ranges), literal("long"))) for ranges in both
    )
    for point in {low, high, *others, max(low - 1, 0), min(high + 1, LAST)}:
        text = chr(point).encode(errors="surrogatepass")
        is_character = not 0xD800 <= point <= 0xDFFF
        assert fits(within, text) == (is_character and low <= point <= high)
        assert fits(outside, text) == (is_character and not low <= point <= high)
        assert not any(fits(within, text[:n]) for n in range(len(text)))


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("a^b", "an anchor"),
        ("(^a)b", "an anchor"),
        (r"\bword", "a word boundary"),
        (r"(a)\1", "a reference to a group"),
        ("a(?=b)", "a lookahead"),
        ("a*?", "a lazy repetition"),
        ("(?i)a", "a flag"),
        (r"a\p{L}", r"has \\p, which"),
        (r"a\z", r"has \\z, which"),
        ("[[:alpha:]]", r"\[\[:alpha:\]\]"),
        ("(?<n>a)", "a group such as"),
        ("(?u)a", "a flag"),
        ("(" * 250 + "a" + ")" * 250, "more than 50 groups"),
        ("(a", "malformed"),
        ("((a{900}b){900})", "has 810,900 characters when its repetitions are written out"),
        ("(a|b)*a(a|b){11}", "more than 2,000 states"),
        ("a?" * 200 + "b", "is nested too deeply"),
        (r"[^\s\S]", "No text at all"),
    ],
)
def test_what_is_no_regular_expression_or_too_large_is_refused(pattern, told):
    with pytest.raises(ValueError, match=told):
        automaton_of(parse(pattern))


@pytest.mark.parametrize(
    ("pattern", "states"),
    [("x" * 350, 351), ("[0-9]{1,300}x[0-9]{1,300}", 602), ("(true|false){20}", 141)],
)
def test_the_size_of_an_automaton_is_no_depth(pattern, states):
    assert len(automaton_of(parse(pattern)).edges) == states


def test_a_double_sign_in_a_class_is_read_without_a_warning(recwarn):
    assert fits(automaton_of(parse("[a&&b]")), b"&")
    assert not recwarn


@given(patterns)
def test_equal_expressions_are_one_object_also_as_copies(pattern):
    regex = parse(pattern)
    assert parse(f"(?:{pattern})") is regex
    assert copy.deepcopy(regex) is regex
    assert pickle.loads(pickle.dumps(regex)) is regex


def test_a_derivative_that_never_simplifies_ends_with_a_sentence(monkeypatch):
    monkeypatch.setattr(lab_14, "MOST_STATES", 20)
    monkeypatch.setattr(lab_14, "then", Then)
    monkeypatch.setattr(lab_14, "either", lambda *options: Either(frozenset(options)))
    with pytest.raises(ValueError, match="if `derivative` is yours"):
        automaton_of(parse("a*a*"))


@given(patterns)
def test_every_text_that_has_begun_can_be_finished(pattern):
    automaton = automaton_of(parse(pattern))
    assert set(distances(automaton)) == set(range(len(automaton.edges)))


# ------------------------------------------------------------------------- from bytes to tokens


@given(patterns, st.lists(st.text("abé", max_size=3), max_size=8))
def test_the_index_has_each_token_that_fits_and_the_state_after_it(pattern, texts):
    automaton = automaton_of(parse(pattern))
    vocabulary = [b"", b"\xc3", b"\xa9", *(text.encode() for text in texts)]
    for state, ends in enumerate(token_index(automaton, vocabulary)):
        walked = {t: after(automaton, text, state) for t, text in enumerate(vocabulary) if text}
        assert ends == {token: end for token, end in walked.items() if end is not None}


def test_a_date_in_the_shipped_vocabulary():
    tokenizer = load_tokenizer("fable")
    vocabulary = lab_14.vocabulary_bytes(tokenizer)
    for text in ("Once upon a time, é ☺\n", '{"name": "Hänsel"}'):
        assert text_of(tokenizer(text).input_ids, vocabulary) == text.encode()
    assert [token for token, text in enumerate(vocabulary) if not text] == [tokenizer.eos_token_id]
    index = token_index(automaton_of(parse(DATE)), vocabulary)
    assert (len(index), sum(map(len, index))) == (15, 65)


# ------------------------------------------------------------------------------------ generation

SMALL = CONFIGS[2]  # a vocabulary of 40: EOS, letters and syllables, and columns without a token
SYLLABLES = [b"", *(bytes([b]) for b in b"abcdefgh0123456789-"), b"ab", b"abc", b"ba", b"-0", b"19"]
LANGUAGES = ["(ab|c)*d?", "(abc|bad|cab)+", "abcabc", "a*", "abc-(0|19)+-ab(c|d)", "19-0|ba"]
prompts = st.lists(st.lists(st.integers(0, 39), min_size=1, max_size=8), min_size=1, max_size=4)


def choose(logits: Tensor, numbers: Sequence[int]) -> list[int]:
    """Greedy, but every other request ends as soon as it may."""
    return [
        EOS if number % 2 and row[EOS] > NEVER else int(row.argmax())
        for number, row in zip(numbers, logits, strict=True)
    ]


def naive(seed, prompt, number, automaton, limit, jumps) -> list[list[int]]:
    """Compute all tokens again for each one, and ask the automaton about the whole vocabulary.

    Return each chosen token with those that are forced after it.
    """
    rounds, new = list[list[int]](), list[int]()
    while len(new) < limit and EOS not in new:
        state = after(automaton, text_of(new, SYLLABLES))
        ends = {t: after(automaton, text, state) for t, text in enumerate(SYLLABLES) if text}
        mask = torch.tensor([[ends.get(token) is None for token in range(SMALL.vocab_size)]])
        mask[0, EOS] = state not in automaton.accepting
        logits = naive_logits(SMALL, seed, [prompt + new])
        [token] = choose(logits.masked_fill(mask, NEVER), [number])
        forced = [] if token == EOS else jumps[ends[token]]
        rounds.append([token, *forced][: limit - len(new)])
        new += rounds[-1]
    return rounds


@given(prompts, st.integers(0, 3), st.sampled_from(LANGUAGES), st.integers(0, 11))
def test_rows_are_those_of_the_naive_loop_in_one_pass_a_step(prompts, seed, pattern, limit):
    automaton = automaton_of(parse(pattern))
    model, index = model_of(CachedLMHead, SMALL, seed), token_index(automaton, SYLLABLES)
    never = [[]] * len(automaton.edges)
    expected = [
        [token for [token] in naive(seed, prompt, number, automaton, limit, never)]
        for number, prompt in enumerate(prompts)
    ]
    with shapes_of_forwards(model) as shapes:
        rows = lab_14.PaddedRows(model, prompts, max(limit, 1))
        assert lab_14.generate_constrained(rows, automaton, index, limit, EOS, choose) == expected
    decodes = range(max(map(len, expected)) - 1)
    running = [sum(len(new) > step + 1 for new in expected) for step in decodes]
    assert shapes[1:] == [(count, 1) for count in running]
    for new in expected:
        assert new[-1:] != [EOS] or fits(automaton, text_of(new, SYLLABLES))


def test_all_rows_may_leave():
    rows = lab_14.PaddedRows(model_of(CachedLMHead, SMALL, 0), [[1] * 8, [1] * 10], 3)
    rows.become([])
    assert len(rows.logits) == len(rows.position_ids) == rows.kv_cache.keys.shape[1] == 0


def test_rows_that_do_not_fit_the_context_are_refused():
    with pytest.raises(ValueError, match="don't fit the context of 20 tokens"):
        lab_14.PaddedRows(model_of(CachedLMHead, SMALL, 0), [[1] * 8, [1] * 10], 11)


# ------------------------------------------------------------------------------ jumping forward


@given(st.lists(st.text("abc", max_size=6), min_size=1, max_size=4), st.text("ab", max_size=3))
def test_what_is_forced_is_the_beginning_of_all_texts(texts, begun):
    whole = [begun + text for text in texts]
    automaton = automaton_of(parse("|".join(whole)))
    text, state = lab_14.forced(automaton, 0)
    alike = [len(set(letters)) == 1 for letters in zip(*whole, strict=False)]
    assert text.decode() == whole[0][: [*alike, False].index(False)]
    assert state == after(automaton, text)


def test_a_loop_is_forced_once():
    loop = Automaton([{97: 1}, {98: 2}, {99: 1}, {}], frozenset([3]))
    assert lab_14.forced(loop, 0) == (b"abc", 1)
    assert lab_14.forced(Automaton([{97: 0}], frozenset()), 0) == (b"a", 0)


@pytest.mark.parametrize(
    ("longer", "kept"), [(b" king", [1]), (b" the ki", []), (b" the knot", [1, 2])]
)
def test_a_token_is_held_back_where_a_longer_one_may_come(longer, kept):
    vocabulary = [b"", b" the", b" k", b"i", b"night", longer]
    automaton = automaton_of(parse(" the k(ing|night)"))
    index = token_index(automaton, vocabulary)

    def allowed(before: bytes) -> dict[int, int]:
        return index[after(automaton, before)]

    assert lab_14.hold_back([1, 2], vocabulary, allowed) == kept


def encode(text: str) -> list[int]:
    """The longest token first, as a tokenizer of its own kind."""
    longest_first = sorted(SYLLABLES[1:], key=len, reverse=True)
    return [SYLLABLES.index(piece) for piece in re.findall(b"|".join(longest_first), text.encode())]


@given(prompts, st.integers(0, 3), st.sampled_from(LANGUAGES), st.integers(1, 11))
def test_jumps_take_one_pass_for_each_chosen_token(prompts, seed, pattern, limit):
    automaton, model = automaton_of(parse(pattern)), model_of(CachedLMHead, SMALL, seed)
    guide = IndexGuide(automaton, SYLLABLES, EOS)
    jumps = [lab_14.jump(guide, state, encode) for state in range(len(automaton.edges))]
    for state, tokens in enumerate(jumps):
        assert lab_14.forced(automaton, state)[0].startswith(text_of(tokens, SYLLABLES))
    expected = naive(seed, prompts[0], 0, automaton, limit, jumps)
    with shapes_of_forwards(model) as shapes:
        rounds = lab_14.generate_jumping(model, prompts[0], guide, jumps, limit, choose)
    assert rounds == expected
    assert shapes == [(1, len(new)) for new in [prompts[0], *rounds[:-1]]]


def test_half_a_character_is_no_jump():
    guide = IndexGuide(automaton_of(parse("[éè]")), [b"", b"\xc3", b"\xa9", b"\xa8"], EOS)
    assert lab_14.jump(guide, 0, encode) == []


# ---------------------------------------------------------------------- guides, and the stack


@given(st.sampled_from(LANGUAGES), seeds)
def test_a_constraint_masks_each_draft_as_if_the_drafts_before_it_were_there(pattern, seed):
    draw, guide = random.Random(seed), IndexGuide(automaton_of(parse(pattern)), SYLLABLES, EOS)
    constraint, logits = lab_14.Constraint(guide), torch.zeros(4, 40, dtype=torch.float64)
    allowed = constraint.constrain(logits[:1])[0] > NEVER
    first = draw.choice(allowed.nonzero().flatten().tolist())
    wrong = (~allowed).nonzero()[-1].item()
    rows = constraint.constrain(logits[:2], [first])
    assert torch.equal(rows[0] > NEVER, allowed)
    constraint.advance(first)
    assert torch.equal(rows[1], constraint.constrain(logits[:1])[0])
    assert constraint.constrain(logits, [wrong, first, first]).shape == logits.shape


@given(st.sampled_from([*LANGUAGES, '"[^"]*"|-?[0-9]+']), st.lists(st.text('ab"1}', max_size=3)))
def test_a_token_is_uncertain_if_it_leaves_the_region_in_an_accepting_state(pattern, texts):
    region, vocabulary = automaton_of(parse(pattern)), [b"", *(text.encode() for text in texts)]
    for state in range(len(region.edges)):
        accepted, rejected, uncertain = lab_14.classify(region, state, vocabulary)
        assert sorted([*accepted, *rejected, *uncertain]) == list(range(len(vocabulary)))
        for token, text in enumerate(vocabulary):
            stays = after(region, text, state) is not None
            exits = any(
                after(region, text[:n], state) in region.accepting for n in range(len(text))
            )
            fate = accepted if stays and text else uncertain if exits else rejected
            assert token in fate


values = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.sampled_from([0.5, "", "a}", "é", "]"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("a]", max_size=2), inner),
    max_leaves=8,
)
NESTED = NestedGuide(VOCABULARY, EOS)


@given(values, seeds)
def test_json_of_any_depth_is_allowed_token_by_token_to_its_end(value, seed):
    draw, text, place = random.Random(seed), json.dumps(value, ensure_ascii=False), NESTED.start()
    rest = text.encode()
    while rest:
        allowed = NESTED.allowed(place)
        fitting = [t for t, piece in enumerate(VOCABULARY) if piece and rest.startswith(piece)]
        if not fitting:
            return  # the second half of a character is no token of its own
        assert allowed[fitting].all()
        token = draw.choice(fitting)
        place, rest = NESTED.advance(place, token), rest[len(VOCABULARY[token]) :]
    assert NESTED.allowed(place)[EOS]


@given(seeds)
def test_what_is_allowed_is_what_the_stack_lets_pass(seed):
    draw, place, text = random.Random(seed), NESTED.start(), b""
    while len(text) < 40:
        allowed = NESTED.allowed(place).tolist()
        passing = [NESTED.after(place, piece) is not None for piece in VOCABULARY]
        assert allowed == [is_json(text), *passing[1:]]
        options = [token for token, fine in enumerate(allowed) if fine]
        token = draw.choice([t for t in options if VOCABULARY[t][:1] in b'"]}1'] or options)
        if token == EOS:
            break
        place, text = NESTED.advance(place, token), text + VOCABULARY[token]


def is_json(text: bytes) -> bool:
    try:
        return bool([json.loads(text)])
    except ValueError:
        return False
