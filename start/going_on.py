"""Where a learner goes on: the lab, and a sentence about it."""

from autograder.notebook.passed import RED, Progress, newest_lab, newest_pass, progress_in
from autograder.text.lesson import lessons
from start.words import time_of, title


def next_progress() -> Progress | None:
    """Return the lab to go on with: that of the newest pass, else a later one on its track, else
    the first that isn't finished, else one with exercises beyond it; None if all passed."""
    course = list(lessons().values())
    newest = newest_lab()
    on_track = [lab for lab in course if lab.track == newest.track and lab.number > newest.number]
    progresses = [progress_in(lesson) for lesson in [newest, *on_track, *course]]
    unfinished = [progress for progress in progresses if not progress.is_finished]
    return next(iter(unfinished or [p for p in progresses if p.left]), None)


def advice(progress: Progress | None) -> tuple[str, str]:
    """Return the text of the link to a lab, and what to know before following it."""
    if progress is None:
        return "", "Every exercise of every lab has passed. Congratulations: the engine is yours."
    lesson, last = progress.lesson, newest_lab()
    lab = f"lab {lesson.number}: {title(lesson)}"
    if newest_pass() is None:
        return f"Begin with {lab}", f"{time_of(lesson)}. Or choose a path below."
    if lesson != last:
        finished = f"All exercises of lab {last.number} have passed"
        finished += ", but those beyond it." if progress_in(last).left else "."
        return f"Go on with {lab}", f"{finished} This lab takes {time_of(lesson)}."
    card = progress.left[0]
    place = f"Exercise {list(lesson.cards).index(card.exercise) + 1} of {len(lesson.cards)}"
    if progress.states[card.exercise] == RED:
        return f"Go on in {lab}", f"{place}, {card.title}, passed, but its check has failed since."
    return f"Go on in {lab}", f"{place}: {card.title}, about {card.minutes} min."
