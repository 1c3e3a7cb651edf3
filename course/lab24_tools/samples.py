"""What the pictures are handed."""

from solutions.constrained import automaton_of
from solutions.grammars.regex import parse
from solutions.tools import triggered
from tests.samples import of
from visuals import tools as visuals

SMALL = triggered(automaton_of(parse("aabc*")), b"aab")
PARTS = [("1 <", "content"), ("[", "mark"), ("add", "name"), (":", "mark"), ("{}", "arguments")]
PUSHED = [("1 <", 1), ("[a", 1), ("dd:{", 0), ("}", 0)]
CALL = {"name": "find", "arguments": '{"who": "$x$"}'}
MESSAGES = [
    {"role": "user", "content": "Where is <b>?"},
    {"role": "assistant", "content": "I look.", "tool_calls": [{"function": CALL}] * 2},
    {"role": "tool", "tool_call_id": "call_0", "content": '{"result": "village"}'},
    {"role": "tool", "tool_call_id": "call_1", "content": '{"error": "KeyError: x"}'},
    {"role": "assistant", "content": "In the village."},
]

EXAMPLES = (
    of(visuals.show_walk, SMALL, "aab", "aaabca"),
    of(visuals.show_stream, PARTS, PUSHED),
    of(visuals.show_blocks, {"<b>": (["user:", "\n"], 1), "empty": ([], 0)}),
    of(visuals.show_conversation, MESSAGES),
)
