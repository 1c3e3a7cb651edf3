"""What adapters are trained on: windows of a text, and dialogues of which the answers count."""

from itertools import islice

import torch

from gpt import load_tokenizer
from models.train_adapter import turns
from solutions.adapted.training import IGNORED, answers, windows
from solutions.calls.dialogues import NEW, dialogues, questions


def test_a_window_is_followed_by_its_next_token():
    inputs, targets = next(windows(torch.arange(100), window=5, batch=3))
    assert inputs.shape == (3, 5)
    assert targets.equal(inputs + 1)


def test_only_what_a_model_writes_is_learned_with_its_end():
    some = [([1, 2], [3, 4]), ([5], [6]), ([7], [8])]
    batches = list(answers(some, eos=0, batch=2))
    inputs, targets = batches[0]
    assert inputs.tolist() == [[1, 2, 3, 4], [5, 6, 0, 0]]
    assert targets.tolist() == [[IGNORED, 3, 4, 0], [6, 0, IGNORED, IGNORED]]
    assert len(batches) == 2


def test_each_turn_of_a_dialogue_is_learned_after_all_before_it():
    tokenizer = load_tokenizer("fable")
    first = next(one for one in dialogues() if one.call)
    (read, call), (result, answer) = first.turns()
    found = islice(turns(tokenizer), 20)
    texts = [tuple(map(tokenizer.decode, turn)) for turn in found]
    place = texts.index((read, call))
    assert texts[place + 1] == (read + call + result, answer)


def test_questions_ask_what_no_dialogue_to_train_on_has():
    asked = [dialogue for its in questions().values() for dialogue in its]
    learned = list(islice(dialogues(), 2000))
    sums = {str(one.call) for one in learned if one.call and one.call["name"] == "add"}
    assert not sums & {str(one.call) for one in asked}
    assert not any(name in one.question for one in learned for name in NEW)
    assert [one.call is None for one in asked].count(False) == 31
    assert len(asked) == 40
