"""Submissions that speak to the grader themselves, over the wire to the process that judges."""

from functools import partial
from textwrap import dedent

from tests.hostile.notebooks import BYTES, LOOP, attempt

FAMILY = "protocol"
MASK = "kv_cache.causal_mask"
spoken = partial(attempt, FAMILY)

# Every socket that the process holds, and the course's own words for what goes over it.
SOCKETS = """
import os, socket, stat, struct, time
numbers = [n for n in range(64) if os.path.exists(f"/proc/self/fd/{n}")]
sockets = [n for n in numbers if stat.S_ISSOCK(os.fstat(n).st_mode)]
sockets = [socket.socket(fileno=os.dup(n)) for n in sockets]


def say(header, body=b"", after=None):
    frame = struct.pack(">II", len(header), len(body)) + header + body
    for wire in sockets:
        wire.sendall(frame)
"""


def said(name: str, source: str, says: str = "", exercise: str = LOOP):
    """What an attempt says on the wire by itself, while the other exercise of its lab is right."""
    return spoken(name, exercise, SOCKETS + dedent(source), says=says, others=True)


CORPUS = [
    # ------------------------------------------------------------------------------- claims
    said(
        "claims that it has passed, in every form it can think of",
        """
        for kind in ("seen", "done", "result", "answer", "passed", "outcome"):
            for what in ('[]', '"passed"', '{"dict": [["status", "passed"], ["points", 3]]}'):
                say(f'["{kind}", {what}]'.encode())
        time.sleep(1)
        return None
        """,
    ),
    said(
        "answers twice, and once more for the exercise that comes next",
        """
        for _ in range(50):
            say(b'["answer", null]')
        return None
        """,
    ),
    said(
        "replaces what packs the messages",
        """
        from autograder.sandbox import wire
        wire.packed = lambda *_, **__: b'\\x00\\x00\\x00\\x04\\x00\\x00\\x00\\x00true'
        return None
        """,
    ),
    # ------------------------------------------------------------------------ broken messages
    said(
        "garbage",
        """
        for wire in sockets:
            wire.sendall(os.urandom(1 << 16))
        return None
        """,
    ),
    said(
        "a header of four gigabytes",
        """
        for wire in sockets:
            wire.sendall(b"\\xff" * 8)
        time.sleep(10 ** 6)
        """,
    ),
    said(
        "half a message, and then nothing",
        """
        for wire in sockets:
            wire.sendall(struct.pack(">II", 100, 100) + b"[")
        time.sleep(10 ** 6)
        """,
    ),
    said(
        "a message that comes byte by byte, and never ends",
        """
        for wire in sockets:
            wire.sendall(struct.pack(">II", 1 << 22, 0))
        while True:
            for wire in sockets:
                wire.sendall(b" ")
            time.sleep(0.01)
        """,
    ),
    said("JSON that is nested without end", 'say(b"[" * 10 ** 6)\ntime.sleep(10 ** 6)'),
    said("JSON with a key twice", 'say(b\'{"tensor": [], "tensor": []}\')\ntime.sleep(10 ** 6)'),
    said("no JSON, but Latin-1", "say('[\"seen\", \"é\"]'.encode('latin-1'))\ntime.sleep(10 ** 6)"),
    said("a number of a million digits", 'say(b"1" * 10 ** 6)\ntime.sleep(10 ** 6)'),
    said(
        "half a surrogate pair, which no file can hold",
        """
        say(b'["raised", ["ValueError", ["\\\\ud800"], null]]')
        raise ValueError("\\ud800")
        """,
    ),
    said(
        "a set of numbers that all have one hash",
        """
        numbers = ", ".join(str(n * (2 ** 61 - 1)) for n in range(1, 150_000))
        say(f'["answer", {{"set": [{numbers}]}}]'.encode())
        time.sleep(10 ** 6)
        """,
    ),
    said(
        "a dict whose keys are tensors",
        """
        say(b'["answer", {"dict": [[{"tensor": ["bool", [0]]}, 1]]}]')
        return None
        """,
    ),
    # --------------------------------------------------------------------------- odd tensors
    *(
        said(
            f"a tensor of {name}",
            f"""
            say(b'["answer", {{"tensor": {tensor}}}]', {body!r})
            time.sleep(10 ** 6)
            """,
        )
        for name, tensor, body in [
            ("a negative shape", '["float64", [-1]]', b"\0" * 8),
            ("a trillion numbers", '["float64", [1000000, 1000000]]', b"\0" * 8),
            ("more numbers than there are bytes", '["float64", [3]]', b"\0" * 8),
            ("fewer numbers than there are bytes", '["float64", [1]]', b"\0" * 64),
            (
                "no numbers, and sizes that overflow",
                '["float64", [67108864, 67108864, 67108864, 0]]',
                b"",
            ),
            ("sixty dimensions", f'["bool", {[1] * 60}]', b"\0"),
            ("an unknown dtype", '["object", [1]]', b"\0" * 8),
            ("truth values that are neither", '["bool", [2]]', b"\2\3"),
            ("a shape of truth values", '["float64", [true]]', b"\0" * 8),
            ("a shape of text", '["float64", "11"]', b"\0" * 8),
        ]
    ),
    # ------------------------------------------------------------------------ silence and noise
    said(
        "closes every door",
        """
        os.closerange(0, 64)
        return None
        """,
    ),
    said(
        "hangs up",
        """
        for wire in sockets:
            wire.shutdown(socket.SHUT_RDWR)
        return None
        """,
    ),
    said(
        "sends and never listens",
        """
        while True:
            say(b'["ask", [0, "get", "config"]]')
        """,
    ),
    said(
        "asks without end for something that it may not have",
        """
        while True:
            say(b'["ask", [0, "get", "__class__"]]')
            for wire in sockets:
                wire.recv(1 << 16)
        """,
    ),
    # ------------------------------------------------------------------- what is lent, misused
    spoken(
        "the model is asked for its inside",
        LOOP,
        """
        import os
        found = []
        for name in ("_model", "model", "__class__", "__dict__", "__init__", "_most", "limit"):
            try:
                found.append(getattr(model, name))
            except Exception:
                pass
        inside = [getattr(thing, "transformer", None) for thing in found]
        layers = [layer for thing in inside if thing is not None for layer in thing.h]
        return 1 if any(hasattr(layer, "attn") for layer in layers) else input_ids
        """,
        says="What it returned",
    ),
    spoken(
        "the model's limit is lifted, and then it is called without end",
        LOOP,
        """
        for name, value in (("_most", {}), ("limit", lambda _: None), ("_forwards", -10 ** 9)):
            try:
                setattr(model, name, value)
            except Exception:
                pass
        while True:
            model(input_ids, torch.arange(input_ids.shape[1]).expand_as(input_ids))
        """,
        says="It was stopped after",
    ),
    spoken(
        "the model is handed a batch of a million rows",
        LOOP,
        """
        ids = torch.zeros(500_000, 16, dtype=torch.int64)
        return model(ids, torch.arange(16).expand_as(ids))
        """,
        says="This is too much to be sent at once",
    ),
    spoken(
        "the model is handed anything but tensors",
        LOOP,
        """
        for given in (None, "ids", 10 ** 30, [[0]], float("nan"), model, {"a": 1}, torch.ones(0)):
            for more in ((), (given,), (given, given, given, given)):
                try:
                    model(given, given, *more)
                except Exception:
                    pass
        return input_ids
        """,
        says="is no answer",
    ),
    spoken(
        "the configuration that was lent is changed",
        LOOP,
        """
        try:
            object.__setattr__(model.config, "n_positions", 10 ** 9)
            model.config.vocab_size = 1
        except Exception:
            pass
        return torch.zeros(len(input_ids), 10, dtype=torch.int64)
        """,
        says="What it returned",
    ),
    spoken(
        "the embeddings that were lent are emptied",
        LOOP,
        """
        model.transformer.wte.weight.data.zero_()
        model.transformer.wpe.weight.data.zero_()
        return input_ids
        """,
    ),
    spoken(
        "a lent function is asked for a mask of ten billion entries",
        "kv_cache.ThreadedAttention.forward",
        """
        positions = torch.arange(100_000).unsqueeze(0)
        causal_mask(positions, positions)
        return hidden, (keys, values)
        """,
    ),
    spoken(
        "a lent function is asked to pad a long prompt and many short ones",
        "batching.generate_padded",
        """
        from collections import deque
        pad_left(deque([[0]] * 100_000 + [[0] * 10_000]))
        return [list(prompt) for prompt in prompts]
        """,
    ),
    spoken(
        "a lent cache is rolled back beyond its beginning",
        "kv_cache.generate_threaded",
        """
        positions = torch.arange(input_ids.shape[1]).expand_as(input_ids)
        logits, kv_cache = model(input_ids, positions, None)
        for handle in (kv_cache, [kv_cache] * 1000, "kv_cache", -1, [None] * 1000, (kv_cache, 7)):
            try:
                model(input_ids, positions, handle)
            except Exception:
                pass
        return input_ids
        """,
    ),
    spoken(
        "a driver's function is called back from the model",
        LOOP,
        """
        class Ids:
            ndim, shape = 2, (1, 4)
            def __getattr__(self, name):
                return lambda *_, **__: model(self, self)
        return model(Ids(), Ids())
        """,
    ),
    spoken(
        "a tensor of a trillion numbers that takes no memory",
        MASK,
        "return torch.zeros(1, dtype=torch.bool).expand(10 ** 6, 1, 10 ** 3, 10 ** 3)",
        says="1,000,000,000,000 numbers",
    ),
    spoken(
        "a tensor without numbers",
        MASK,
        "return torch.empty(1, 1, 1, 1, dtype=torch.bool, device='meta')",
        says="The mask",
    ),
    spoken(
        "a number of a million digits as the result",
        BYTES,
        "return 1 << (1 << 22)",
        says="a number of over 300 digits",
    ),
]
