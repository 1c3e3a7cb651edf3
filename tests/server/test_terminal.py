"""A chat in the terminal: turns, a new chat, what fails or is stopped, what steers a terminal."""

import pytest

from solutions.server import terminal
from solutions.server.terminal import talk, visible


@pytest.fixture
def chat(chatty, monkeypatch, capsys):
    """Type lines, where an exception stands for what a key raises. Return the chats that were
    asked for, and what was printed.
    """

    def typed(*lines):
        asked, left = [], iter([*lines, EOFError()])

        def line(prompt):
            value = next(left)
            if isinstance(value, BaseException):
                raise value
            return value

        original = terminal.deltas

        def deltas(client, model, messages):
            asked.append(messages)
            return original(client, model, messages)

        monkeypatch.setattr("builtins.input", line)
        monkeypatch.setattr(terminal, "deltas", deltas)
        monkeypatch.setattr(terminal, "USUAL", {"temperature": 0, "max_tokens": 5})
        talk(chatty.url, "chatty")
        return asked, capsys.readouterr().out

    return typed


def test_turns_are_sent_until_a_new_chat_begins(chat):
    asked, printed = chat("Hello.", "", KeyboardInterrupt(), "And you?", "/new", "Hello.")
    assert [[m["role"] for m in messages] for messages in asked] == [
        ["user"],
        ["user", "assistant", "user"],
        ["user"],
    ]
    assert printed.count(visible(asked[1][1]["content"])) == 2
    assert "Ctrl-D" in printed


def test_what_fails_is_told_in_a_sentence_and_left_out(chat):
    asked, printed = chat("a " * 600, "Hello.")
    assert "more than the model's context of 512." in printed
    assert [len(messages) for messages in asked] == [1, 1]


def test_ctrl_c_stops_an_answer_and_keeps_what_there_is(chat, monkeypatch):
    def stopped(client, model, messages):
        yield {"content": "Half"}
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(terminal, "deltas", stopped)
        answer = terminal.answered(None, "chatty", [{"role": "user", "content": "Hello."}])
    assert answer[1] == {"role": "assistant", "content": "Half"}


def test_no_text_steers_the_terminal():
    assert visible("a\x1b[2J\x9b1m\r\x07b\n\tü 🙂") == "a[2J1mb\n\tü 🙂"
