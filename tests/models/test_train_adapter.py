"""What adapters are trained on: windows of a text, and dialogues of which the answers count."""

from itertools import islice

import torch

from gpt import load_tokenizer
from models.train_adapter import calls
from solutions.adapted.training import IGNORED, answers, windows
from solutions.calls.dialogues import NEW, dialogues, questions


def test_a_window_is_followed_by_its_next_token():
    inputs, targets = next(windows(torch.arange(100), window=5, batch=3))
    assert inputs.shape == (3, 5)
    assert targets.equal(inputs + 1)


def test_only_what_a_model_writes_is_learned_each_turn_with_its_end():
    two, one = [([1, 2], [3, 4]), ([5], [6])], [([1], [7])]
    batches = list(answers([two, one, two], eos=0, batch=2))
    inputs, targets = batches[0]
    assert inputs.tolist() == [[1, 2, 3, 4, 5, 6], [1, 7, 0, 0, 0, 0]]
    no = IGNORED
    assert targets.tolist() == [[no, 3, 4, 0, 6, 0], [7, 0, no, no, no, no]]
    assert len(batches) == 2


def test_learned_answers_are_a_dialogues_own():
    tokenizer = load_tokenizer("fable")
    _, targets = next(iter(calls(tokenizer)))
    for row, dialogue in zip(targets, dialogues(), strict=False):
        told = tokenizer.decode(row[row != IGNORED])
        assert told == "".join(f"{text}{tokenizer.eos_token}" for _, text in dialogue.turns())


def test_questions_ask_what_no_dialogue_to_train_on_has():
    asked = [dialogue for its in questions().values() for dialogue in its]
    learned = list(islice(dialogues(), 2000))
    sums = {str(one.call) for one in learned if one.call and one.call["name"] == "add"}
    assert not sums & {str(one.call) for one in asked}
    assert not any(name in one.question for one in learned for name in NEW)
    assert [one.call is None for one in asked].count(False) == 31
    assert len(asked) == 40
