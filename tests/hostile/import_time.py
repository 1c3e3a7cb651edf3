"""Submissions that change Python or torch for whatever runs after them.

In the first exercise of lab 1 they change something, and are right. What they have changed may cost
them that exercise, where they can't be driven any more; it never costs the second.
"""

from functools import partial

from tests.hostile.notebooks import ALL, LOOP, attempt, edited, prepend, works_and_does

FAMILY = "import time"
does = partial(works_and_does, FAMILY)


@edited(FAMILY, "generate", "solved", ALL)
def a_module_of_its_own_in_the_place_of_torch(notebook):
    prepend(notebook, LOOP, "import sys, types\n\nsys.modules['torch'] = types.ModuleType('torch')")


@edited(FAMILY, "generate", "solved", ALL)
def a_finder_that_answers_every_import(notebook):
    source = """
    import sys


    class Finder:
        def find_spec(self, name, path=None, target=None):
            raise SystemExit(name)


    sys.meta_path.insert(0, Finder())
    """
    prepend(notebook, LOOP, source)


CORPUS = [
    a_module_of_its_own_in_the_place_of_torch,
    a_finder_that_answers_every_import,
    attempt(
        FAMILY,
        "a hook of a class that runs when it is defined",
        LOOP,
        "return Marked.ids",
        above="""
        class Marking(type):
            def __new__(meta, name, bases, names):
                import sys
                sys.modules["autograder.drivers.generate"] = sys.modules["autograder"]
                return super().__new__(meta, name, bases, {**names, "ids": None})


        class Marked(metaclass=Marking):
            pass
        """,
        others=True,
        says="did not run",
    ),
    does(
        "traces every line that the grader runs",
        """
        import sys
        sys.settrace(lambda frame, event, arg: frame.f_locals.clear())
        sys.setprofile(lambda *_: None)
        """,
        {LOOP},
    ),
    does("a recursion limit of sixty", "import sys\nsys.setrecursionlimit(60)"),
    does("no garbage is collected", "import gc\ngc.disable()\ngc.freeze()"),
    does(
        "every module is gone",
        """
        import sys
        for name in list(sys.modules):
            if name not in ("sys", "builtins", "torch"):
                sys.modules.pop(name)
        """,
        {LOOP},
    ),
    does(
        "nothing has a length, and everything is of every type",
        """
        import builtins
        builtins.len = lambda _: 0
        builtins.isinstance = lambda *_: True
        """,
        {LOOP},
    ),
    does(
        "nothing can be imported, opened or printed",
        """
        import builtins
        builtins.__import__ = builtins.open = builtins.print = None
        """,
        {LOOP},
    ),
    does(
        "torch computes in half precision, on as many threads as there may be",
        """
        torch.set_default_dtype(torch.float16)
        torch.set_num_threads(64)
        torch.manual_seed(0)
        torch.use_deterministic_algorithms(True)
        """,
    ),
    does("torch makes its tensors nowhere", 'torch.set_default_device("meta")'),
    does(
        "torch adds wrongly from now on",
        """
        torch.add = torch.Tensor.__add__ = torch.Tensor.add = lambda a, b: a
        torch.cat = torch.Tensor.clone
        """,
        {LOOP},
    ),
    does(
        "JSON has no strings any more",
        """
        import json
        json.dumps = lambda *_, **__: "[]"
        json.loads = lambda *_, **__: None
        """,
        {LOOP},
    ),
    does("the clock stands still", "import time\ntime.time = time.monotonic = lambda: 0.0"),
    does("the signal that ends it is another's", "import signal\nsignal.alarm(1)"),
]
