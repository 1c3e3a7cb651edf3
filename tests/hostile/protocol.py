"""Submissions that speak to the grader themselves, over the wire to the process that judges."""

from textwrap import dedent

from tests.hostile.notebooks import BYTES, LOOP, attempt, attempts

FAMILY = "protocol"

# Every socket that the process holds, and the course's own words for what goes over it.
WIRE = """
numbers = [n for n in range(64) if os.path.exists(f"/proc/self/fd/{n}")]
sockets = [n for n in numbers if stat.S_ISSOCK(os.fstat(n).st_mode)]
sockets = [socket.socket(fileno=os.dup(n)) for n in sockets]


def send(content):
    for wire in sockets:
        wire.sendall(content)


def say(header, body=b""):
    send(struct.pack(">II", len(header), len(body)) + header + body)


---
"""
# What an attempt says by itself; the other exercise of its lab keeps its points.
SAID = {
    "claims that it has passed, in every form it can think of": """
        for kind in ("seen", "done", "result", "answer", "passed", "outcome"):
            for what in ('[]', '"passed"', '{"dict": [["status", "passed"], ["points", 3]]}'):
                say(f'["{kind}", {what}]'.encode())
        time.sleep(1)
        """,
    "answers many times, also for the exercise that comes next": """
        for _ in range(50):
            say(b'["answer", null]')
        """,
    "replaces what packs the messages": """
        from autograder.attempt import wire
        wire.packed = lambda *_, **__: b'\\x00\\x00\\x00\\x04\\x00\\x00\\x00\\x00true'
        """,
    "garbage": "send(os.urandom(1 << 16))",
    "a header of four gigabytes": 'send(b"\\xff" * 8)\ntime.sleep(10 ** 6)',
    "half a message, and then nothing": """
        send(struct.pack(">II", 100, 100) + b"[")
        time.sleep(10 ** 6)
        """,
    "a message that comes byte by byte, and never ends": """
        send(struct.pack(">II", 1 << 22, 0))
        while True:
            send(b" ")
            time.sleep(0.01)
        """,
    "half a surrogate pair, which no file can hold": """
        say(b'["raised", ["ValueError", ["\\\\ud800"], null]]')
        raise ValueError("\\ud800")
        """,
    "a set of numbers that all have one hash": """
        numbers = ", ".join(str(n * (2 ** 61 - 1)) for n in range(1, 150_000))
        say(f'["answer", {{"set": [{numbers}]}}]'.encode())
        time.sleep(10 ** 6)
        """,
    "a tensor with more numbers than there are bytes": """
        say(b'["answer", {"tensor": ["float64", [3]]}]', bytes(8))
        time.sleep(10 ** 6)
        """,
    "closes every door": "os.closerange(0, 64)",
    "hangs up": "for wire in sockets:\n    wire.shutdown(socket.SHUT_RDWR)",
    "sends and never listens": """
        while True:
            say(b'["ask", [0, "get", "config"]]')
        """,
    "asks without end for something that it may not have": """
        while True:
            say(b'["ask", [0, "get", "__class__"]]')
            for wire in sockets:
                wire.recv(1 << 16)
        """,
}
# Answers of its own to each case, through the end of the wire that the driver's process has.
ANSWER = """
def answer_all(value, data=None):
    frame = sys._getframe()
    while "peer" not in frame.f_locals:
        frame = frame.f_back
    peer, case = frame.f_locals["peer"], frame.f_locals["case"]
    while True:
        seen = [["The number of bytes", value, ""]]
        peer.send("done", {"seen": seen, "data": data or case["data"], "shown": {}})
        case = peer.receive()[1]


---
"""
ANSWERS = {
    "words that take long to be read as a value": "answer_all('is {' + '1:1,' * 500_000 + '}')",
    "words that take much memory to be read": "answer_all('is [' + '[],' * 650_000 + ']')",
    "a tensor of 60 MB instead of each number": """
        answer_all(torch.zeros(60 << 20, dtype=torch.uint8))
        # told: The number of bytes should be
        """,
    "a list of a hundred thousand lists": """
        answer_all([[]] * 100_000)
        # told: a list with more than 10,000 items
        """,
    "an answer without the parts of its case": """
        answer_all(7, {"nothing": 0})
        # told: an answer has all parts of the case
        """,
}
# What is lent is misused, or what is returned can't be sent.
LENT = {
    "the model is asked for its inside": """
        found = []
        for name in ("_model", "model", "__class__", "__dict__", "__init__", "_most", "limit"):
            with contextlib.suppress(Exception):
                found.append(getattr(model, name))
        inside = [getattr(thing, "transformer", None) for thing in found]
        layers = [layer for thing in inside if thing is not None for layer in thing.h]
        return 1 if any(hasattr(layer, "attn") for layer in layers) else input_ids
        # told: What it returned
        """,
    "the model's limit is lifted, and then it is called without end": """
        for name, value in (("_most", {}), ("limit", lambda _: None), ("_forwards", -10 ** 9)):
            with contextlib.suppress(Exception):
                setattr(model, name, value)
        while True:
            model(input_ids, torch.arange(input_ids.shape[1]).expand_as(input_ids))
        # told: It was stopped after
        """,
    "the model is handed a batch of a million rows": """
        ids = torch.zeros(500_000, 16, dtype=torch.int64)
        return model(ids, torch.arange(16).expand_as(ids))
        # told: This is too much to be sent at once
        """,
    "the model is handed anything but tensors": """
        for given in (None, "ids", 10 ** 30, [[0]], float("nan"), model, {"a": 1}, torch.ones(0)):
            for more in ((), (given,), (given, given, given, given)):
                with contextlib.suppress(Exception):
                    model(given, given, *more)
        return input_ids
        # told: is no answer
        """,
    "the configuration that was lent is changed": """
        with contextlib.suppress(Exception):
            object.__setattr__(model.config, "n_positions", 10 ** 9)
            model.config.vocab_size = 1
        return torch.zeros(len(input_ids), 10, dtype=torch.int64)
        # told: What it returned
        """,
    "the embeddings that were lent are emptied": """
        model.transformer.wte.weight.data.zero_()
        model.transformer.wpe.weight.data.zero_()
        return input_ids
        """,
    "a driver's function is called back from the model": """
        class Ids:
            ndim, shape = 2, (1, 4)
            def __getattr__(self, name):
                return lambda *_, **__: model(self, self)
        return model(Ids(), Ids())
        """,
    "a tensor of a trillion numbers that takes no memory": """
        return torch.zeros(1, dtype=torch.int64).expand(10 ** 6, 10 ** 3, 10 ** 3)
        # told: 1,000,000,000,000 numbers
        """,
    "a tensor without numbers": """
        return torch.empty(1, 1, dtype=torch.int64, device='meta')  # told: What it returned
        """,
}
DIGITS = "return 1 << (1 << 22)  # told: a number of over 300 digits"
CORPUS = [
    *(
        attempt(FAMILY, name, LOOP, WIRE + dedent(lines), others=True)
        for name, lines in SAID.items()
    ),
    *(
        attempt(FAMILY, name, BYTES, ANSWER + dedent(lines), others=True)
        for name, lines in ANSWERS.items()
    ),
    *attempts(FAMILY, LOOP, LENT),
    attempt(FAMILY, "a number of a million digits as the result", BYTES, DIGITS),
]
