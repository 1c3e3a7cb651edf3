"""The exercises of every lab: what they accept, what they reject, and what they say about it.

These tests are the mutation tests of the grader: every misconception is a wrong solution that the
exercise must tell from the right one, and from every other.
"""

import random
import re
import subprocess
import sys
import warnings
from itertools import pairwise
from pathlib import Path
from statistics import mean
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from autograder.exercise import CHANGES_BY_ITSELF, NOT_ATTEMPTED, PASSED, WRONG, Exercise
from autograder.exercises import exercises
from autograder.exercises.generate import CONFIG, small_model
from autograder.services import CountedModel, random_model, random_weights
from gpt import GPTConfig, GPTLMHead
from solutions.generate import Metrics, generate, metrics

ROOT = Path(__file__).resolve().parents[1]
SEEDS = (0, 1)
EXERCISES = list(exercises().values())
MISCONCEPTIONS = [(e, m) for e in EXERCISES for m in e.misconceptions]

every_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.name)


def cases_of(exercise: Exercise, seed: int) -> list:
    return exercise.cases(torch.Generator().manual_seed(seed))


def frozen(value: Any) -> Any:
    """Plain data in a form that `==` compares; anything else is refused."""
    if isinstance(value, Tensor):
        return (str(value.dtype), tuple(value.shape), value.tolist())
    if isinstance(value, dict):
        return {key: frozen(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [frozen(item) for item in value]
    assert value is None or isinstance(value, bool | int | float | str), type(value)
    return value


def with_stretches(lab: str, blank: Any) -> ModuleType:
    """A lab's module where the stretches whose number `blank` picks are left to the student."""
    source = (ROOT / "solutions" / f"{lab}.py").read_text(encoding="utf-8")
    numbers = iter(range(1000))
    stretch = re.compile(r"( *)### BEGIN SOLUTION\n.*?### END SOLUTION", re.DOTALL)
    skeleton = stretch.sub(
        lambda m: f"{m[1]}raise NotImplementedError()" if blank(next(numbers)) else m[0], source
    )
    module = ModuleType(f"skeleton_{lab}")
    exec(skeleton, vars(module))
    return module


# ----------------------------------------------------------------------------- every exercise


def test_the_exercises_are_those_that_the_solutions_mark() -> None:
    for lab in {exercise.lab for exercise in EXERCISES}:
        source = (ROOT / "solutions" / f"{lab}.py").read_text(encoding="utf-8")
        found = [exercise for exercise in EXERCISES if exercise.lab == lab]
        assert len(found) == source.count("### BEGIN SOLUTION")
        assert all(exercise.name.startswith(f"{lab}.") for exercise in found)


@every_exercise
def test_the_reference_passes(exercise: Exercise) -> None:
    for seed in range(3):
        assert exercise.judge(exercise.reference, seed).status == PASSED


@every_exercise
def test_a_skeleton_is_not_attempted(exercise: Exercise) -> None:
    skeleton = with_stretches(exercise.lab, blank=lambda _: True)
    attempt = getattr(skeleton, exercise.attempt_name)
    assert exercise.judge(attempt).status == NOT_ATTEMPTED


@every_exercise
def test_an_exercise_needs_none_of_those_behind_it(exercise: Exercise) -> None:
    own = [e.name for e in EXERCISES if e.lab == exercise.lab].index(exercise.name)
    half_done = with_stretches(exercise.lab, blank=lambda number: number > own)
    judgement = exercise.judge(getattr(half_done, exercise.attempt_name))
    assert judgement.status == PASSED, judgement.message


@every_exercise
def test_the_card_is_complete(exercise: Exercise) -> None:
    assert exercise.points > 0
    assert exercise.minutes > 0
    assert 1 <= exercise.difficulty <= 5
    assert exercise.title
    assert exercise.place
    assert len(exercise.hints) == 3
    assert all(exercise.hints)


@every_exercise
def test_the_same_seed_draws_the_same_cases(exercise: Exercise) -> None:
    def drawn() -> list:
        return [(case.label, frozen(dict(case.data))) for case in cases_of(exercise, 7)]

    once = drawn()
    assert once == drawn()
    assert len({label for label, _ in once}) == len(once) >= 1


@every_exercise
def test_nothing_that_runs_changes_a_case(exercise: Exercise) -> None:
    cases = cases_of(exercise, 0)
    before = [frozen(dict(case.data)) for case in cases]
    for attempt in [exercise.reference, *(m.attempt for m in exercise.misconceptions)]:
        for _ in exercise.run_all(attempt, cases):
            pass
    assert [frozen(dict(case.data)) for case in cases] == before


@every_exercise
def test_each_has_at_least_six_misconceptions_with_a_sentence_each(exercise: Exercise) -> None:
    assert len(exercise.misconceptions) >= 6
    assert len({m.name for m in exercise.misconceptions}) == len(exercise.misconceptions)
    assert len({m.sentence for m in exercise.misconceptions}) == len(exercise.misconceptions)


@pytest.mark.parametrize(
    ("exercise", "misconception"),
    MISCONCEPTIONS,
    ids=[f"{e.name}-{m.name}" for e, m in MISCONCEPTIONS],
)
def test_a_misconception_is_rejected_and_diagnosed(exercise: Exercise, misconception: Any) -> None:
    judgement = exercise.judge(misconception.attempt)
    assert judgement.status == WRONG
    assert judgement.misconception is misconception
    assert judgement.case is not None
    assert judgement.message


@pytest.mark.parametrize("seed", SEEDS)
@every_exercise
def test_no_two_misconceptions_do_the_same(exercise: Exercise, seed: int) -> None:
    """The reference among them, so this rejects every misconception for other seeds too."""
    cases = cases_of(exercise, seed)
    named = {"the reference": exercise.reference}
    named |= {m.name: m.attempt for m in exercise.misconceptions}
    outcomes = {name: list(exercise.run_all(attempt, cases)) for name, attempt in named.items()}

    def differ(one: str, other: str) -> bool:
        pairs = list(zip(outcomes[one], outcomes[other], strict=True))
        return any(exercise.difference(a, b) or exercise.difference(b, a) for a, b in pairs)

    names = list(outcomes)
    same = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :] if not differ(a, b)]
    assert same == []


WITHOUT_ANSWERS = """
import importlib, runpy, sys
import torch
from autograder.exercises import exercises

lab = sys.argv[1]
todo = [exercise for exercise in exercises().values() if exercise.lab == lab]
labs = list(dict.fromkeys(exercise.lab for exercise in exercises().values()))
later = labs[labs.index(lab):]
attempts = runpy.run_path(f"solutions/{lab}.py")  # stands for a student's notebook
prepared = []
for exercise in todo:
    for case in exercise.cases(torch.Generator().manual_seed(0)):
        expected = exercise.run(exercise.reference, case)
        prepared.append((exercise, case, expected, exercise.services(dict(case.data))))

import solutions
for name in later:
    sys.modules[f"solutions.{name}"] = None
    if hasattr(solutions, name):
        delattr(solutions, name)
for name in list(sys.modules):
    if name.startswith("autograder"):
        sys.modules[name] = None
for name in ("autograder", "autograder.drivers", f"autograder.drivers.{lab}"):
    del sys.modules[name]
driver_module = importlib.import_module(f"autograder.drivers.{lab}")

for exercise, case, expected, services in prepared:
    driver = getattr(driver_module, exercise.driver.__name__)
    assert driver is not exercise.driver
    returned = driver(attempts[exercise.attempt_name], **case.data, **services)
    counts = {k: s.counts() for k, s in services.items() if hasattr(s, "counts")}
    difference = exercise.compare({"returned": returned, **counts}, expected.returned)
    assert difference is None, (exercise.name, case.label, difference)
print("ran", len(prepared))
"""


@pytest.mark.parametrize("lab", sorted({exercise.lab for exercise in EXERCISES}))
def test_drivers_run_where_the_answers_are_not(lab: str) -> None:
    command = [sys.executable, "-c", WITHOUT_ANSWERS, lab]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout.removeprefix("ran ")) >= len([e for e in EXERCISES if e.lab == lab])


# ------------------------------------------------------------------------- how it judges at all

GENERATE, METRICS = exercises()["generate.generate"], exercises()["generate.metrics"]


def test_leaving_the_process_is_wrong_and_ctrl_c_is_obeyed() -> None:
    def leaves(start: float, token_times: list) -> Metrics:
        sys.exit(0)

    def interrupted(start: float, token_times: list) -> Metrics:
        raise KeyboardInterrupt

    assert METRICS.judge(leaves).status == WRONG
    with pytest.raises(KeyboardInterrupt):
        METRICS.judge(interrupted)


def test_a_result_that_changes_by_itself_is_told_as_such() -> None:
    draws = random.Random(0)

    def noisy(start: float, token_times: list) -> Metrics:
        return Metrics(draws.random(), None, 1.0, 1.0)

    def remembering(start: float, token_times: list, times: list = []) -> Metrics:  # noqa: B006
        times += token_times
        return metrics(start, times)

    assert METRICS.judge(noisy).misconception is CHANGES_BY_ITSELF
    assert METRICS.judge(remembering).misconception is CHANGES_BY_ITSELF


def test_what_no_misconception_explains_is_described_as_it_is() -> None:
    def doubled(start: float, token_times: list) -> Metrics:
        right = metrics(start, token_times)
        return Metrics(2 * right.ttft, right.tpot, right.latency, right.throughput)

    judgement = METRICS.judge(doubled)
    assert judgement.misconception is None
    assert "`ttft`" in judgement.message


@pytest.mark.parametrize("returned", [None, "text", [1, 2], 3, torch.zeros(2, 3), object()])
def test_any_return_value_gets_a_sentence(returned: Any) -> None:
    for exercise in EXERCISES:
        if not isinstance(exercise.reference, type):
            assert exercise.judge(lambda *args, **kwargs: returned).status == WRONG


# -------------------------------------------------- lab 1: other styles, and models worth asking


def preallocated(model, input_ids, max_new_tokens, eos_token_id=None):
    batch, seq = input_ids.shape
    end = min(seq + max_new_tokens, model.config.n_positions)
    out = torch.empty(batch, end, dtype=input_ids.dtype)
    out[:, :seq] = input_ids
    for i in range(seq, end):
        out[:, i] = model(out[:, :i], torch.arange(i).repeat(batch, 1))[:, -1].argmax(-1)
        if eos_token_id is not None and out[0, i] == eos_token_id:
            return out[:, : i + 1]
    return out


def recursive(model, input_ids, max_new_tokens, eos_token_id=None):
    if max_new_tokens == 0 or input_ids.shape[1] >= model.config.n_positions:
        return input_ids
    position_ids = torch.arange(input_ids.shape[1])[None].repeat(len(input_ids), 1)
    best = torch.softmax(model.forward(input_ids, position_ids=position_ids), -1).argmax(-1)
    longer = torch.hstack([input_ids, best[:, -1:]])
    if eos_token_id is not None and longer[0, -1].item() == eos_token_id:
        return longer
    return recursive(model, longer, max_new_tokens - 1, eos_token_id)


def lists(model, input_ids, max_new_tokens, eos_token_id=None):
    device = next(model.eval().parameters()).device
    rows = input_ids.tolist()
    for _ in range(max_new_tokens):
        if len(rows[0]) == model.config.n_positions:
            break
        ids = torch.tensor(rows, device=device)
        _, best = model(ids, torch.ones_like(ids).cumsum(1) - 1)[:, -1].max(-1)
        rows = [[*row, int(new)] for row, new in zip(rows, best, strict=True)]
        if rows[0][-1] == eos_token_id:
            break
    return torch.tensor(rows)


def right_padded(model, input_ids, max_new_tokens, eos_token_id=None):
    """Computes behind the end, where the causal mask keeps it from mattering."""
    n_positions = model.config.n_positions
    ids = torch.zeros(len(input_ids), n_positions, dtype=torch.long)
    length = input_ids.shape[1]
    ids[:, :length] = input_ids
    for length in range(length, min(length + max_new_tokens, n_positions)):  # noqa: B020
        ids[:, length] = model(ids, torch.arange(n_positions).expand_as(ids))[:, length - 1].argmax(
            -1
        )
        if eos_token_id is not None and ids[0, length] == eos_token_id:
            return ids[:, : length + 1]
    return ids[:, : min(input_ids.shape[1] + max_new_tokens, n_positions)]


@pytest.mark.parametrize("attempt", [preallocated, recursive, lists, right_padded])
def test_generate_in_another_style_passes(attempt: Any) -> None:
    judgement = GENERATE.judge(attempt)
    assert judgement.status == PASSED, judgement


def gaps_averaged(start, token_times):
    gaps = [b - a for a, b in pairwise(token_times)]
    latency = token_times[-1] - start
    tpot = mean(gaps) if gaps else None
    return Metrics(token_times[0] - start, tpot, latency, len(token_times) / latency)


def tensors(start, token_times):
    times = torch.tensor(token_times, dtype=torch.float64) - start
    return SimpleNamespace(
        ttft=times[0],
        tpot=times.diff().mean() if len(times) > 1 else None,
        latency=times[-1],
        throughput=len(times) / times[-1],
    )


@pytest.mark.parametrize("attempt", [gaps_averaged, tensors])
def test_metrics_in_another_style_pass(attempt: Any) -> None:
    judgement = METRICS.judge(attempt)
    assert judgement.status == PASSED, judgement


def test_a_result_without_a_figure_is_told_which() -> None:
    judgement = METRICS.judge(lambda start, times: SimpleNamespace(ttft=times[0] - start))
    assert "`tpot`, `latency`, `throughput`" in judgement.message


def test_extra_forwards_cost_the_exercise() -> None:
    def wasteful(model, input_ids, max_new_tokens, eos_token_id=None):
        model(input_ids, torch.arange(input_ids.shape[1])[None])
        return generate(model, input_ids, max_new_tokens, eos_token_id)

    judgement = GENERATE.judge(wasteful)
    assert judgement.status == WRONG
    assert "forward calls" in judgement.message


def test_a_counted_model_counts_and_returns_what_the_model_does() -> None:
    ids = torch.arange(6).view(2, 3)
    position_ids = torch.arange(3).expand_as(ids)
    counted = CountedModel(small_model())
    assert torch.equal(counted(ids, position_ids), small_model()(ids, position_ids))
    counted(ids[:, :1], position_ids=position_ids[:, :1])
    assert counted.counts() == {"forward calls": 2, "tokens computed": 8, "longest forward": 3}


@pytest.mark.parametrize(
    "config", [CONFIG, GPTConfig(32, 12, 16, 1, 2), GPTConfig(40, 20, 24, 3, 3)], ids=str
)
def test_greedy_output_of_a_random_model_depends_on_all_that_it_should(config: GPTConfig) -> None:
    """On the positions and on the first token: else errors in either would stay hidden."""
    changed = {"positions": 0, "first token": 0}
    distinct = trials = 0
    for seed in range(8):
        model = random_model(GPTLMHead, config, seed)
        ids = torch.randint(
            config.vocab_size, (4, 4), generator=torch.Generator().manual_seed(seed)
        )
        out = generate(model, ids, 6)
        other = ids.clone()
        other[:, 0] = (other[:, 0] + 1) % config.vocab_size
        seen = out[:, :-1]
        position_ids = torch.arange(seen.shape[1]).expand_as(seen)
        logits, shifted = model(seen, position_ids), model(seen, 1 + position_ids)
        for row in range(len(ids)):
            trials += 1
            distinct += len(set(out[row, 4:].tolist()))
            changed["positions"] += not torch.equal(logits[row].argmax(-1), shifted[row].argmax(-1))
            changed["first token"] += not torch.equal(
                generate(model, other[row : row + 1], 6)[0, 4:], out[row, 4:]
            )
    assert distinct / trials > 3
    assert changed["positions"] == trials
    assert changed["first token"] > 0.8 * trials


def test_random_weights_follow_from_the_seed_and_are_float64() -> None:
    weights, again, other = (random_weights(CONFIG, seed) for seed in (0, 0, 1))
    assert all(weight.dtype == torch.float64 for weight in weights.values())
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    assert not torch.equal(weights["transformer.wte.weight"], other["transformer.wte.weight"])


def test_judging_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for exercise in EXERCISES:
            exercise.judge(exercise.reference)
