"""Lab 24 in another style: a fold, the classic failure function, a search, `match`, small steps."""


def call_pattern(tools, parallel):
    ### BEGIN SOLUTION
    one = either(
        *(
            then(
                literal(f'<tool_call>\n{{"name": "{tool.name}", "arguments": '),
                pattern_of(tool.parameters),
                literal("}\n</tool_call>"),
            )
            for tool in tools
        )
    )
    return then(star(then(one, literal("\n"))), one) if parallel else one
    ### END SOLUTION


def triggered(calls, trigger):
    ### BEGIN SOLUTION
    size = len(trigger)
    moved = [{b: e + size for b, e in edges.items()} for edges in calls.edges]
    door = 0
    for letter in trigger:
        door = calls.edges[door][letter]
    free, shorter = [], 0  # the state after the text without its first letter
    for place, letter in enumerate(trigger):
        edges = dict(free[shorter]) if place else dict.fromkeys(range(256), 0)
        edges[letter] = place + 1
        shorter = free[shorter][letter] if place else 0
        free.append(edges)
    free[-1][trigger[-1]] = size + door
    ends = [*range(size)] + [size + state for state in calls.accepting]
    return Automaton(free + moved, frozenset(ends))
    ### END SOLUTION


def language(tools, choice, parallel):
    require_choice(tools, choice)
    ### BEGIN SOLUTION
    trigger = TRIGGER.encode()
    match choice:
        case "none":
            return without(trigger)
        case "auto":
            return triggered(automaton_of(call_pattern(tools, parallel)), trigger)
        case "required":
            return automaton_of(call_pattern(tools, parallel))
    (named,) = (tool for tool in tools if tool.name == choice["function"]["name"])
    return automaton_of(call_pattern([named], parallel=False))
    ### END SOLUTION


def up_to(text, mark):
    ### BEGIN SOLUTION
    at = text.find(mark)
    if at >= 0:
        return text[:at], True, text[at + len(mark) :]
    at = next(at for at in range(len(text) + 1) if mark.startswith(text[at:]))
    return text[:at], False, text[at:]
    ### END SOLUTION


class CallStream:
    def push(self, piece):
        self.held += piece
        deltas = []
        ### BEGIN SOLUTION
        found = True
        while found:
            mark = [OPEN, MIDDLE, CLOSE][self.place]
            text, found, rest = up_to(self.held, mark)
            if mark is MIDDLE:
                if not found:
                    break
                new = {"index": self.count, "id": self.new_id(), "type": "function"}
                new["function"] = {"name": text.strip('"'), "arguments": ""}
                deltas += [{"tool_calls": [new]}]
                self.count += 1
            elif mark is CLOSE:
                for letter in text:
                    part = {"index": self.count - 1, "function": {"arguments": letter}}
                    deltas += [{"tool_calls": [part]}]
            elif text != "" and self.count == 0:
                deltas += [{"content": text}]
            self.held = rest
            self.place = (self.place + found) % 3
        return deltas
        ### END SOLUTION


def finish_reason(reason, count, choice):
    ### BEGIN SOLUTION
    if reason != "stop" or count == 0 or choice not in ("auto", "required"):
        return reason
    return "tool_calls"
    ### END SOLUTION


def assembled(deltas):
    ### BEGIN SOLUTION
    content = "".join(delta.get("content") or "" for delta in deltas)
    parts = [part for delta in deltas for part in delta.get("tool_calls") or ()]
    calls = []
    for index in sorted({part["index"] for part in parts}):
        own = [part for part in parts if part["index"] == index]
        functions = [part.get("function") or {} for part in own]
        names = [each["name"] for each in functions if each.get("name")]
        text = "".join(each.get("arguments") or "" for each in functions)
        ids = [part["id"] for part in own if part.get("id")]
        function = {"name": (names or [None])[0], "arguments": text}
        calls.append({"id": (ids or [None])[0], "type": "function", "function": function})
    message = {"role": "assistant", "content": content if content else None}
    if calls:
        message["tool_calls"] = calls
    return message
    ### END SOLUTION


def written(message):
    ### BEGIN SOLUTION
    text = message.get("content") or ""
    for place, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        told = {"name": function["name"], "arguments": json.loads(function["arguments"])}
        text += "\n" * (place > 0)
        text += f"<tool_call>\n{json.dumps(told, ensure_ascii=False)}\n</tool_call>"
    return text
    ### END SOLUTION


def run_call(call, tools, approve):
    ### BEGIN SOLUTION
    name, error = call["function"]["name"], None
    tool = tools.get(name)
    if tool is None:
        return error_text(KeyError(f"{name} isn't one of {[*tools]}"))
    try:
        arguments = json.loads(call["function"]["arguments"])
        if not tool.effects or approve(tool, arguments):
            text = json.dumps({"result": tool.function(**arguments)})
            if len(text) <= LONGEST:
                return text
            error = RuntimeError("The result is too long.")
    except Exception as raised:
        error = raised
    return error_text(error or PermissionError("The user said no."))
    ### END SOLUTION


def converse(ask, messages, tools, approve, most):
    ### BEGIN SOLUTION
    asked = 0
    while asked < most:
        asked += 1
        answer = ask([*messages], "none" if asked == most else "auto")
        results = [
            {
                "role": "tool",
                "tool_call_id": call["id"],
                "content": run_call(call, tools, approve),
            }
            for call in answer.get("tool_calls") or ()
        ]
        messages = [*messages, answer, *results]
        if not results:
            return messages
    return list(messages)
    ### END SOLUTION
