"""Lab 24: tools. A model asks for a function to be called, and a program calls it.

A model only writes text. One that may call functions writes free text until it begins a call, and a
call is JSON between two marks. The automata of lab 14 keep that form, a stream turns the text into
the deltas of OpenAI's API while it is written, and a loop runs the calls, gives their results back
and asks again.

A text with a call, and several calls have a line break between them:

    I will add them.<tool_call>
    {"name": "add", "arguments": {"a": 1, "b": 2}}
    </tool_call>

JSON writes a line break in a string as \\n. So CLOSE, which has a real one, is in no argument.

Sources: Schick et al., "Toolformer", NeurIPS 2023 (calls as text); Yao et al., "ReAct", ICLR 2023
(the loop); Nous Research, "Hermes function calling" (the marks); OpenAI, "Function calling" (the
API); Knuth, Morris and Pratt, "Fast pattern matching in strings", 1977 (how a mark is found).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from solutions.constrained import Automaton, automaton_of
from solutions.grammars.json_schema import pattern_of
from solutions.grammars.regex import Regex, either, literal, star, then
from solutions.serving import overlap

TRIGGER = "<tool_call>"
OPEN = '<tool_call>\n{"name": '
MIDDLE = ', "arguments": '
CLOSE = "}\n</tool_call>"
LONGEST = 2000  # characters of a result

Message = dict[str, Any]  # of a chat, as OpenAI's API has it
Delta = dict[str, Any]  # what a piece of an answer adds to its message


@dataclass(frozen=True)
class Tool:
    """A function that a model may call.

    parameters: the JSON schema of its arguments. function: takes the arguments by name. effects:
    whether a call changes anything outside, such as a file.
    """

    name: str
    parameters: Mapping[str, Any]
    function: Callable[..., Any]
    description: str = ""
    effects: bool = False


# ------------------------------------------------------------------------------ the form of a call


def call_pattern(tools: Sequence[Tool], parallel: bool) -> Regex:
    """Return the expression for one call of any of these tools; if `parallel`, for one or more.

    A call is OPEN, the name as JSON, MIDDLE, arguments that fit the tool's own `parameters`
    (`pattern_of` returns their expression), and CLOSE. A line break separates two calls.
    """
    ### BEGIN SOLUTION
    calls = []
    for tool in tools:
        head = literal(OPEN + json.dumps(tool.name) + MIDDLE)
        calls.append(then(head, pattern_of(tool.parameters), literal(CLOSE)))
    call = either(*calls)
    return then(call, star(then(literal("\n"), call))) if parallel else call
    ### END SOLUTION


def triggered(calls: Automaton, trigger: bytes) -> Automaton:
    """Return the automaton of free text that may end in a text of `calls`, and in nothing else.

    Every text of `calls` begins with `trigger`. Any bytes may come until the trigger is complete;
    from there on, only what `calls` allows after it. A text may end at any place before that, and
    where a text of `calls` may end.

    States 0 to len(trigger) - 1 are free: the number says how many bytes of the trigger the text
    ends with, at most. State s of `calls` becomes state len(trigger) + s. Source: Knuth et al.
    """
    ### BEGIN SOLUTION
    size, inside = len(trigger), 0
    for byte in trigger:
        inside = calls.edges[inside][byte]
    edges = [{byte: size + end for byte, end in out.items()} for out in calls.edges]
    free = []
    for state in range(size):
        out = {}
        for byte in range(256):
            text = trigger[:state] + bytes([byte])
            begun = max(n for n in range(len(text) + 1) if text.endswith(trigger[:n]))
            out[byte] = begun if begun < size else size + inside
        free.append(out)
    return Automaton(free + edges, frozenset({*range(size), *(size + s for s in calls.accepting)}))
    ### END SOLUTION


def without(trigger: bytes) -> Automaton:
    """Return the automaton of all texts in which the trigger doesn't occur."""
    size = len(trigger)
    only = Automaton([{byte: place + 1} for place, byte in enumerate(trigger)] + [{}], frozenset())
    free = triggered(only, trigger).edges[:size]
    edges = [{byte: end for byte, end in out.items() if end < size} for out in free]
    return Automaton(edges, frozenset(range(size)))


Choice = str | Mapping[str, Any]  # a request's `tool_choice`


def language(tools: Sequence[Tool], choice: Choice, parallel: bool) -> Automaton:
    """Return the automaton of the answers that a request's `tool_choice` allows.

    "none": text without a call. "auto": text, which may end in calls. "required": calls at once,
    without text. {"type": "function", "function": {"name": ...}}: one call of this tool, at once.
    parallel: whether there may be several calls. Raises ValueError for another choice.
    """
    require_choice(tools, choice)
    ### BEGIN SOLUTION
    if choice == "none":
        return without(TRIGGER.encode())
    if not isinstance(choice, str):
        tools = [tool for tool in tools if tool.name == choice["function"]["name"]]
        parallel = False
    calls = automaton_of(call_pattern(tools, parallel))
    return triggered(calls, TRIGGER.encode()) if choice == "auto" else calls
    ### END SOLUTION


def require_choice(tools: Sequence[Tool], choice: Choice) -> None:
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            raise ValueError(f"'tool_choice' is none, auto, required or a tool, not {choice!r}.")
    elif choice["function"]["name"] not in [tool.name for tool in tools]:
        raise ValueError(f"There is no tool {choice['function']['name']!r} in this request.")


# ---------------------------------------------------------------------------- from text to deltas


def up_to(text: str, mark: str) -> tuple[str, bool, str]:
    """Divide a text that is still being written at a mark: (before, whether it is there, rest).

    rest: what comes after the mark. Without the mark, it is the longest ending of the text that may
    be the mark's beginning, and nothing else is held back. `overlap` of lab 13 returns its length.
    """
    ### BEGIN SOLUTION
    before, found, rest = text.partition(mark)
    if found:
        return before, True, rest
    shown = len(text) - overlap(text, mark)
    return text[:shown], False, text[shown:]
    ### END SOLUTION


class CallStream:
    """Turns the pieces of an answer into the deltas of OpenAI's API.

    new_id: returns the id of the next call. held: text that isn't sent yet. place: which of OPEN,
    MIDDLE and CLOSE comes next, by its number. count: how many calls have begun.
    """

    def __init__(self, new_id: Callable[[], str]) -> None:
        self.new_id = new_id
        self.held, self.place, self.count = "", 0, 0

    def push(self, piece: str) -> list[Delta]:
        """Add a piece of the text, and return the deltas that can be sent now.

        Text before the first call: {"content": text}. A call once its name is complete, with its
        number from 0 on: {"tool_calls": [{"index", "id", "type": "function", "function": {"name",
        "arguments": ""}}]}. Its arguments, as they come: {"tool_calls": [{"index", "function":
        {"arguments": text}}]}. The marks aren't sent, nor what is between two calls, nor empty
        texts.
        """
        self.held += piece
        deltas: list[Delta] = []
        ### BEGIN SOLUTION
        while True:
            text, found, rest = up_to(self.held, (OPEN, MIDDLE, CLOSE)[self.place])
            if self.place == 1 and not found:  # a name is sent whole
                return deltas
            self.held = rest
            if self.place == 1:
                function = {"name": json.loads(text), "arguments": ""}
                call = {"index": self.count, "id": self.new_id(), "type": "function"}
                deltas.append({"tool_calls": [call | {"function": function}]})
                self.count += 1
            elif text and self.place == 2:
                part = {"index": self.count - 1, "function": {"arguments": text}}
                deltas.append({"tool_calls": [part]})
            elif text and not self.count:
                deltas.append({"content": text})
            if not found:
                return deltas
            self.place = (self.place + 1) % 3
        ### END SOLUTION

    def finish(self) -> list[Delta]:
        """Return the deltas of what was held back, when no more text comes."""
        text, self.held = self.held, ""
        if text and self.place == 2:
            return [{"tool_calls": [{"index": self.count - 1, "function": {"arguments": text}}]}]
        return [{"content": text}] if text and self.place == 0 and not self.count else []


def finish_reason(reason: str, count: int, choice: Choice) -> str:
    """Return the reason that a client is told, from the engine's own and the number of calls.

    An answer with calls that has ended by itself ("stop") has the reason "tool_calls", but "stop"
    if the request named the tool, as in OpenAI's API. Any other reason of the engine's stays.
    """
    ### BEGIN SOLUTION
    if reason == "stop" and count and isinstance(choice, str):
        return "tool_calls"
    return reason
    ### END SOLUTION


# --------------------------------------------------------------------------- messages, both ways


def assembled(deltas: Sequence[Delta]) -> Message:
    """Return the message that the deltas of an answer add up to, as a client does.

    Parts with the same `index` are one call, in whatever order they come. Its arguments add up; its
    id and name are those of the part that has them. Any field may be missing or None. The message
    is {"role": "assistant", "content", "tool_calls"}: content is None if no text came, and without
    calls there is no "tool_calls". Calls are in the order of their index, without it.
    """
    ### BEGIN SOLUTION
    content, calls = "", dict[int, dict[str, Any]]()
    for delta in deltas:
        content += delta.get("content") or ""
        for part in delta.get("tool_calls") or []:
            empty = {"id": None, "type": "function", "function": {"name": None, "arguments": ""}}
            call = calls.setdefault(part["index"], empty)
            new = part.get("function") or {}
            call["id"] = part.get("id") or call["id"]
            call["function"]["name"] = new.get("name") or call["function"]["name"]
            call["function"]["arguments"] += new.get("arguments") or ""
    message = {"role": "assistant", "content": content or None}
    return message | ({"tool_calls": [calls[index] for index in sorted(calls)]} if calls else {})
    ### END SOLUTION


def written(message: Message) -> str:
    """Return the text of an assistant's message, as the model writes it.

    Clients send arguments back with other spaces. They are written here as `json.dumps` writes
    them, but with letters such as é as they are: so the next turn begins with the same text as
    before, and lab 8 finds it in its cache. `message` stays unchanged.
    """
    ### BEGIN SOLUTION
    calls = []
    for call in message.get("tool_calls") or []:
        name = json.dumps(call["function"]["name"])
        arguments = json.dumps(json.loads(call["function"]["arguments"]), ensure_ascii=False)
        calls.append(OPEN + name + MIDDLE + arguments + CLOSE)
    return (message.get("content") or "") + "\n".join(calls)
    ### END SOLUTION


# --------------------------------------------------------------------------------------- the loop

Approve = Callable[[Tool, Mapping[str, Any]], bool]


def run_call(call: Mapping[str, Any], tools: Mapping[str, Tool], approve: Approve) -> str:
    """Run one of a message's `tool_calls`, and return the text that the model is given for it.

    tools: by name. The text is JSON: {"result": what the function returned}, or {"error": "Kind:
    sentence"} for whatever went wrong, because the model can read that and do better. If there is
    no such tool, the sentence names those that there are. A tool with effects runs only if
    `approve(tool, arguments)` allows it; it is asked before. A result that JSON can't hold is an
    error, too, and so is a text longer than LONGEST characters: half of it would not be JSON.
    `error_text` returns the text of an error.
    """
    ### BEGIN SOLUTION
    try:
        name = call["function"]["name"]
        if name not in tools:
            raise LookupError(f"There is no tool {name!r}; there are {', '.join(tools)}.")
        tool, arguments = tools[name], json.loads(call["function"]["arguments"])
        if tool.effects and not approve(tool, arguments):
            raise PermissionError(f"The call of {name} was not approved.")
        text = json.dumps({"result": tool.function(**arguments)}, ensure_ascii=False)
        if len(text) > LONGEST:
            raise ValueError(f"The result has {len(text)} characters, and {LONGEST} are allowed.")
        return text
    except Exception as error:
        return error_text(error)
    ### END SOLUTION


def error_text(error: Exception) -> str:
    """Return what a model is told of an error, at most LONGEST characters of JSON."""
    told = f"{type(error).__name__}: {error}"
    return json.dumps({"error": told[: LONGEST // 8]}, ensure_ascii=False)


def converse(
    ask: Callable[[list[Message], str], Message],
    messages: Sequence[Message],
    tools: Mapping[str, Tool],
    approve: Approve,
    most: int,
) -> list[Message]:
    """Ask, run the calls of the answer and ask again, until an answer has none.

    Returns all messages: the given ones, each answer, and after it for each of its calls, in order,
    {"role": "tool", "tool_call_id": its id, "content": the text of `run_call`}. ask(messages,
    tool_choice) returns an answer. It is asked at most `most` times: with "auto", but the last time
    with "none", so that the conversation ends in an answer. `messages` stays unchanged, and so does
    each list that `ask` was given.
    """
    ### BEGIN SOLUTION
    said = list(messages)
    for left in reversed(range(most)):
        answer = ask(list(said), "auto" if left else "none")
        said.append(answer)
        if not answer.get("tool_calls"):
            break
        for call in answer["tool_calls"]:
            result = run_call(call, tools, approve)
            said.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return said
    ### END SOLUTION
