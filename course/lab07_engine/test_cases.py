"""Lab 7: what stands for a model."""

from autograder.attempt.drivers.engine import logits_after


def test_what_follows_a_text_depends_on_every_token_and_its_place() -> None:
    text = [5, 9, 60, 2]
    likeliest = int(logits_after(text, 7).argmax())
    changed = [[*text[:n], text[n] + 1, *text[n + 1 :]] for n in range(4)]
    others = [*changed, text[::-1], text[1:], text[:-1], [0, *text]]
    assert likeliest not in [int(logits_after(other, 7).argmax()) for other in others]
