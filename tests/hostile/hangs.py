"""Submissions that do not come to an end."""

from functools import partial

from autograder.course.lesson import lessons
from tests.hostile.notebooks import LOOP, METRICS, NONE, attempt, edited, write

FAMILY = "hangs"
STOPPED = "It was stopped after"
hangs = partial(attempt, FAMILY, exercise=LOOP, others=True)
figures = partial(attempt, FAMILY, exercise=METRICS, others=True)


@edited(FAMILY, "kv_cache", "released", NONE, exercise="kv_cache.causal_mask", says=STOPPED)
def every_exercise_hangs(notebook):
    for exercise in lessons()["kv_cache"].cards:
        write(notebook, exercise, "while True:\n    pass")


CORPUS = [
    every_exercise_hangs,
    hangs("a loop without an end", body="while True:\n    pass", says=STOPPED),
    hangs(
        "a loop that catches whatever would stop it",
        body="""
        while True:
            try:
                while True:
                    pass
            except BaseException:
                pass
        """,
    ),
    hangs(
        "a loop that is deaf to every signal",
        body="""
        import signal
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_PROF, 0)
        while True:
            pass
        """,
    ),
    hangs("sleeps", body="import time\ntime.sleep(10 ** 6)"),
    hangs(
        "sleeps, and wakes up now and then so that it looks busy",
        body="""
        import time
        while True:
            time.sleep(0.2)
            sum(range(1000))
        """,
    ),
    hangs(
        "waits for a lock that it holds",
        body="""
        import threading
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
        """,
    ),
    hangs("stops itself", body="import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"),
    hangs("waits for input", body="import os\nos.read(os.pipe()[0], 1)"),
    hangs(
        "a regular expression that tries everything",
        body='import re\nre.match(r"(a+)+$", "a" * 60 + "b")',
    ),
    hangs(
        "a sum over an endless generator",
        body="import itertools\nreturn sum(1 for _ in itertools.count())",
        says=STOPPED,
    ),
    hangs("a power that fills the memory with digits", body="return 9 ** 9 ** 9 ** 9"),
    figures(
        "a result whose figures never come",
        body="""
        class Endless:
            def __getattr__(self, name):
                while True:
                    pass
        return Endless()
        """,
        says=STOPPED,
    ),
    figures(
        "a dict with one entry that never ends",
        body="""
        class Endless(dict):
            def items(self):
                while True:
                    yield 1, 1
        return Metrics(*[Endless({1: 1})] * 4)
        """,
        says="more than 10,000 items",
    ),
    hangs(
        "an object that doesn't let go when it is thrown away",
        body="""
        class Clinging:
            def __del__(self):
                while True:
                    pass
        Clinging()
        """,
    ),
    hangs(
        "an exception that takes forever to tell",
        body="""
        class Endless(Exception):
            def __str__(self):
                while True:
                    pass
        raise Endless
        """,
    ),
    hangs(
        "an exit that never comes",
        body="""
        import atexit, threading, time
        atexit.register(time.sleep, 10 ** 6)
        threading.Thread(target=time.sleep, args=[10 ** 6]).start()
        raise SystemExit
        """,
    ),
    hangs(
        "a module-level line that never ends",
        body="return RATE",
        above="RATE = sum(1 for _ in iter(int, 1))",
    ),
    figures(
        "a class body that never ends",
        body="return Metrics(Rate.rate, 0, 0, 0)",
        above="class Rate:\n    rate = sum(1 for _ in iter(int, 1))",
    ),
    hangs(
        "a child that works in its place, and then its child",
        body="""
        import os, time
        while True:
            if os.fork():
                time.sleep(10 ** 6)
            start = time.process_time()
            while time.process_time() < start + 1:
                pass
        """,
    ),
    # ------------------------------------------------------------------------- labs 8 and 9
    attempt(
        FAMILY,
        "a walk in a circle",
        "prefix_caching.RadixTree.walk",
        """
        while True:
            node = node.children.setdefault(0, node)
        """,
        says=STOPPED,
    ),
    attempt(
        FAMILY,
        "a manager that waits for blocks",
        "prefix_caching.PrefixManager.take_block",
        """
        while not self.free_blocks or True:
            pass
        """,
        says=STOPPED,
    ),
    attempt(
        FAMILY,
        "chunks of nothing",
        "disaggregation.prefill_in_chunks",
        """
        start = 0
        while start < ids.shape[1]:
            start += 0
        """,
        says=STOPPED,
        others=True,
    ),
    attempt(
        FAMILY,
        "a lease that is waited for",
        "disaggregation.Leases.due",
        """
        import time
        while any(end > time.monotonic() for end in [float("inf")]):
            pass
        """,
        says=STOPPED,
        others=True,
    ),
    # --------------------------------------------------------------------- labs 10 to 12
    attempt(
        FAMILY,
        "a matrix that is damped until it can be inverted",
        "quantization.gptq",
        """
        while True:
            hessian = hessian + DAMPING * torch.eye(len(hessian), dtype=hessian.dtype)
        """,
        says=STOPPED,
        others=True,
    ),
    attempt(
        FAMILY,
        "a group that never fills",
        "kv_reduction.ChannelKeys.append",
        """
        while self.waiting is None or self.waiting.shape[2] < self.group:
            pass
        """,
        says=STOPPED,
        others=True,
    ),
    attempt(
        FAMILY,
        "a tile that is loaded for ever",
        "flash_attention.flash_attention",
        """
        while True:
            memory.load("keys", 0, 1)
        """,
        says=STOPPED,
        others=True,
    ),
]
