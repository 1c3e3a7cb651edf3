"""Lab 24 in another style: `match`, the classic failure function, a search, comprehensions."""


def call_pattern(tools, parallel):
    ### BEGIN SOLUTION
    names = [json.dumps(tool.name) for tool in tools]
    heads = [literal(f'<tool_call>\n{{"name": {name}, "arguments": ') for name in names]
    tails = [then(pattern_of(tool.parameters), literal("}\n</tool_call>")) for tool in tools]
    call = either(*map(then, heads, tails))
    return then(star(then(call, literal("\n"))), call) if parallel else call
    ### END SOLUTION


def triggered(calls, trigger):
    ### BEGIN SOLUTION
    free, shorter = [dict.fromkeys(range(256), 0)], 0  # the state without the text's first byte
    free[0][trigger[0]] = 1
    for place, letter in enumerate(trigger[1:], 1):
        free.append({**free[shorter], letter: place + 1})
        shorter = free[shorter][letter]
    size, door = len(trigger), 0
    for letter in trigger:
        door = calls.edges[door][letter]
    free[-1][trigger[-1]] = size + door
    moved = [{each: out[each] + size for each in out} for out in calls.edges]
    return Automaton(free + moved, frozenset(range(size)).union(size + s for s in calls.accepting))
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
    if (at := text.find(mark)) >= 0:
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
                new["function"] = {"name": json.loads(text), "arguments": ""}
                deltas += [{"tool_calls": [new]}]
                self.count += 1
            elif mark is CLOSE:
                parts = [{"index": self.count - 1, "function": {"arguments": x}} for x in text]
                deltas += [{"tool_calls": [part]} for part in parts]
            elif text != "" and self.count == 0:
                deltas += [{"content": text}]
            self.held, self.place = rest, (self.place + found) % 3
        return deltas
        ### END SOLUTION


def finish_reason(reason, count, choice):
    ### BEGIN SOLUTION
    by_itself = reason == "stop" and count > 0
    return "tool_calls" if by_itself and choice in ("auto", "required") else reason
    ### END SOLUTION


def assembled(deltas):
    ### BEGIN SOLUTION
    content = "".join(delta.get("content") or "" for delta in deltas)
    message = {"role": "assistant", "content": content if content != "" else None}
    parts = [part for delta in deltas for part in delta.get("tool_calls") or ()]
    for index in sorted({part["index"] for part in parts}):
        own = [part for part in parts if part["index"] == index]
        functions = [part.get("function") or {} for part in own]
        name = ([None] + [each["name"] for each in functions if each.get("name")])[-1]
        id_ = ([None] + [part["id"] for part in own if part.get("id")])[-1]
        text = "".join(each.get("arguments") or "" for each in functions)
        call = {"id": id_, "type": "function", "function": {"name": name, "arguments": text}}
        message.setdefault("tool_calls", []).append(call)
    return message
    ### END SOLUTION


def written(message):
    ### BEGIN SOLUTION
    text = message.get("content") or ""
    for place, call in enumerate(message.get("tool_calls") or ()):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        told = {"name": name, "arguments": json.loads(arguments)}
        text += "\n" * (place > 0)
        text += f"<tool_call>\n{json.dumps(told, ensure_ascii=False)}\n</tool_call>"
    return text
    ### END SOLUTION


def run_call(call, tools, approve):
    ### BEGIN SOLUTION
    name, error = call["function"]["name"], PermissionError("The user said no.")
    if (tool := tools.get(name)) is None:
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
    return error_text(error)
    ### END SOLUTION


def converse(ask, messages, tools, approve, most):
    ### BEGIN SOLUTION
    for asked in range(1, most + 1):
        answer = ask([*messages], "none" if asked == most else "auto")
        messages = [*messages, answer]
        for call in (calls := answer.get("tool_calls") or ()):
            result = run_call(call, tools, approve)
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": result}]
        if not calls:
            break
    return messages
    ### END SOLUTION
