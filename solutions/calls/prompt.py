"""Lab 24, given: how a model is told of the tools that it may call.

Source: Nous Research, "Hermes function calling"; the words are those of Qwen 2.5's chat template.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Message = dict[str, Any]

PROMPT = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def described(tool: Any) -> dict[str, Any]:
    """Return a tool as OpenAI's API has it, from one with a name, a description and parameters."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def tool_prompt(tools: Sequence[Any]) -> str:
    """Return what a system message says of these tools."""
    return PROMPT.format(
        "\n".join(json.dumps(described(tool), ensure_ascii=False) for tool in tools)
    )


def told_in_words(
    messages: Sequence[Message], tools: Sequence[Any], written: Callable[[Message], str]
) -> list[Message]:
    """Return a chat for a template that knows no tools, only texts of a system, a user, a model.

    The system message says which tools there are. Calls are texts of the model, as `written`
    returns them, and results are texts of the user.
    """
    system = [message["content"] for message in messages[:1] if message["role"] == "system"]
    told = [*system, tool_prompt(tools)] if tools else system
    first = [{"role": "system", "content": "\n\n".join(told)}] if told else []
    return [*first, *in_texts(messages[len(system) :], written)]


def in_texts(messages: Sequence[Message], written: Callable[[Message], str]) -> Iterator[Message]:
    results = list[str]()
    for message in [*messages, None]:
        if message and message["role"] == "tool":
            results.append(f"<tool_response>\n{message['content']}\n</tool_response>")
            continue
        if results:  # of one answer's calls, together
            yield {"role": "user", "content": "\n".join(results)}
            results = []
        if message and message["role"] == "assistant":
            yield {"role": "assistant", "content": written(message)}
        elif message:
            yield message
