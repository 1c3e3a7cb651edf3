"""The study of steps: what a model is shown."""

from timing.steps import solved


def test_an_example_has_its_steps_and_its_answer():
    asked, answer = solved([2, 7, 1, 8], with_steps=True)
    assert "For each digit d of 2718, replace v by 3*v + d," in asked["content"]
    assert answer["content"] == (
        "3*0 + 2 = 2\n3*2 + 7 = 13\n3*13 + 1 = 40\n3*40 + 8 = 128, which leaves 28\n"
        "The answer is 28."
    )
    assert solved([4, 6], with_steps=False)[1]["content"] == "The answer is 18."
