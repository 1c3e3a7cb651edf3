"""The reference as text: a lab whose module is several files is read, run and hidden as one."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

from autograder.build import read_modules
from autograder.exercises import exercises
from autograder.grading.bundle import skeleton_of
from autograder.judging.draws import small_model
from autograder.judging.judge import PASSED, judge
from autograder.notebook.kept import keep, mine
from autograder.text.reference import (
    SOLUTIONS,
    AuthorError,
    fresh_copy,
    lab_module,
    module_files,
    module_of,
    parts_of,
    read_module,
)
from gpt import GPTLMHead
from solutions.engine import engine, managers, scheduler
from solutions.engine.limits import Limits
from solutions.generate import generate
from solutions.kv_cache import CachedLMHead
from tests.common.trials import LABS, cell


def test_a_lab_may_be_several_files() -> None:
    assert parts_of("engine") == ("engine/scheduler", "engine/engine")
    assert [file for file in module_files(LABS) if not file.exists()] == []


def test_its_text_is_that_of_its_files_without_what_they_import_of_each_other() -> None:
    module = lab_module("engine")
    assert set(module.stretches) == {"Scheduler.schedule", "Engine.step"}
    assert {"Scheduler", "Plan", "Engine", "new_engine"} <= set(module.objects)
    assert not any("from solutions.engine.scheduler import" in line for line in module.lines)
    assert any("from solutions.engine.sequence import" in line for line in module.lines)
    for file in (scheduler, engine):
        own = read_module(Path(str(file.__file__)))
        for name in set(own.objects) & set(vars(file)):
            assert module.text(module.objects[name]) == own.text(own.objects[name])


def test_a_lesson_quotes_it_under_one_name() -> None:
    modules = read_modules(SOLUTIONS)
    assert {"engine", "sequence", "managers", "runner"} <= set(modules)
    assert "scheduler" not in modules
    assert {"Scheduler", "Engine"} <= set(modules["engine"].objects)


def test_a_mistake_in_one_file_is_told_by_its_own_lines(tmp_path: Path) -> None:
    open_ended = "def one():\n    ### BEGIN SOLUTION\n    return 1\n"
    (tmp_path / "scheduler.py").write_text(open_ended)
    (tmp_path / "engine.py").write_text("from solutions.engine.scheduler import one\n")
    with pytest.raises(AuthorError, match=r"^scheduler\.py: the solution in line 2 has no"):
        read_module(tmp_path / "engine.py")


def test_its_module_has_the_names_of_all_files() -> None:
    module = module_of("engine")
    assert (module.Scheduler, module.Engine) == (scheduler.Scheduler, engine.Engine)
    assert module.Plan is scheduler.Plan
    assert module_of("kv_cache").__name__ == "solutions.kv_cache"


def test_a_copy_of_it_finds_what_is_put_in_the_place_of_its_parts() -> None:
    module = fresh_copy("engine")
    assert module.Scheduler is not scheduler.Scheduler
    assert module.EngineHooks is managers.EngineHooks  # given, and no part of it
    for function in (module.new_engine, module.Scheduler.schedule, module.Engine.step):
        assert inspect.unwrap(function).__globals__ is vars(module)


def test_a_copy_knows_the_lines_of_its_files() -> None:
    module = fresh_copy("engine")
    for name in ("Scheduler.schedule", "Engine.step"):
        cls, method = name.split(".")
        function = inspect.unwrap(vars(vars(module)[cls])[method])
        source = inspect.getsource(function)
        assert f"def {method}(self)" in source
        assert source in Path(function.__code__.co_filename).read_text(encoding="utf-8")


def test_a_learner_s_own_part_of_it_serves_in_the_whole(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINE_FOLDER", str(tmp_path))
    names = cell("\n".join(lab_module("engine").lines))
    exercise = exercises()["engine.Scheduler.schedule"]
    assert judge(exercise, names["Scheduler"]).status == PASSED
    keep(exercise, names["Scheduler"])
    module = mine("engine")
    assert capsys.readouterr().out == (
        'mine("engine"): yours: Scheduler; from the reference: Engine.\n'
    )
    outputs: list[Any] = []
    model = small_model(CachedLMHead)
    served = module.new_engine(model, Limits(8, 2, 4, 2), outputs.append)
    served.submit([5, 3, 8], 4)
    served.run()
    assert inspect.unwrap(type(served.scheduler).schedule).__code__.co_filename.endswith(
        "Scheduler.schedule.py"
    )
    ids = generate(small_model(GPTLMHead), torch.tensor([[5, 3, 8]]), 4)[0].tolist()
    assert [token for output in outputs for token in output.new_ids] == ids[3:]


def test_a_skeleton_of_several_files_is_one() -> None:
    lines = skeleton_of("engine").splitlines()
    assert sum("raise NotImplementedError" in line for line in lines) == 2
    assert {"Scheduler", "Engine", "new_engine"} <= set(cell("\n".join(lines)))
    solved = {
        line
        for path in ("Scheduler.schedule", "Engine.step")
        for line in lab_module("engine").stretch(path)
    }
    assert not solved & set(lines) - {""}
