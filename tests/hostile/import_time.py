"""Submissions that change Python or torch for whatever runs after them.

In the first exercise of lab 1 they change something, and are right. What they have changed may cost
them that exercise, where they can't be driven any more; it never costs the second.
"""

from tests.hostile.notebooks import ALL, LOOP, attempts, works_and_does

FAMILY = "import time"

HARMLESS = {
    "a finder that answers every import": """
        class Finder:
            def find_spec(self, name, path=None, target=None):
                raise SystemExit(name)
        sys.meta_path.insert(0, Finder())
        """,
    "a recursion limit of sixty": "sys.setrecursionlimit(60)",
    "no garbage is collected": "gc.disable()\ngc.freeze()",
    "torch computes in half precision, on as many threads as there may be": """
        torch.set_default_dtype(torch.float16)
        torch.set_num_threads(64)
        torch.manual_seed(0)
        torch.use_deterministic_algorithms(True)
        """,
    "torch makes its tensors nowhere": 'torch.set_default_device("meta")',
    "the clock stands still": "time.time = time.monotonic = lambda: 0.0",
    "the signal that ends it is another's": "signal.alarm(1)",
}
COSTS_ITSELF = {
    "a module of its own in the place of torch": "sys.modules['torch'] = types.ModuleType('torch')",
    "traces every line that the grader runs": """
        sys.settrace(lambda frame, event, arg: frame.f_locals.clear())
        sys.setprofile(lambda *_: None)
        """,
    "every module is gone": """
        for name in list(sys.modules):
            if name not in ("sys", "builtins", "torch"):
                sys.modules.pop(name)
        """,
    "nothing has a length, and everything is of every type": """
        import builtins
        builtins.len = lambda _: 0
        builtins.isinstance = lambda *_: True
        """,
    "nothing can be imported, opened or printed": """
        import builtins
        builtins.__import__ = builtins.open = builtins.print = None
        """,
    "torch adds wrongly from now on": """
        torch.add = torch.Tensor.__add__ = torch.Tensor.add = lambda a, b: a
        torch.cat = torch.Tensor.clone
        """,
    "JSON has no strings any more": """
        json.dumps = lambda *_, **__: "[]"
        json.loads = lambda *_, **__: None
        """,
}
HOOK = {
    "a hook of a class that runs when it is defined": """
        class Marking(type):
            def __new__(meta, name, bases, names):
                sys.modules["autograder.attempt.drivers.generate"] = sys.modules["autograder"]
                return super().__new__(meta, name, bases, {**names, "ids": None})


        class Marked(metaclass=Marking):
            pass
        ---
        return Marked.ids
        """,
}
CORPUS = [
    *(works_and_does(FAMILY, name, lines, ALL) for name, lines in HARMLESS.items()),
    *(works_and_does(FAMILY, name, lines, {LOOP}) for name, lines in COSTS_ITSELF.items()),
    *attempts(FAMILY, LOOP, HOOK, says="did not run", others=True),
]
