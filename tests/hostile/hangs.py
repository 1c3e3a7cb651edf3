"""Submissions that do not come to an end."""

from autograder.text.lesson import lessons
from tests.hostile.notebooks import LOOP, METRICS, NONE, attempts, edited, write

FAMILY = "hangs"
STOPPED = "It was stopped after"


@edited(FAMILY, "kv_cache", "released", NONE, exercise="kv_cache.causal_mask", says=STOPPED)
def every_exercise_hangs(notebook):
    for exercise in lessons()["kv_cache"].cards:
        write(notebook, exercise, "while True:\n    pass")


HANGS = {
    "a loop without an end": "while True:\n    pass  # told: It was stopped after",
    "a loop that catches whatever would stop it": """
        while True:
            try:
                while True:
                    pass
            except BaseException:
                pass
        """,
    "a loop that is deaf to every signal": """
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_PROF, 0)
        while True:
            pass
        """,
    "sleeps": "time.sleep(10 ** 6)  # told: It was stopped: it waited for something",
    "sleeps, and wakes up now and then so that it looks busy": """
        while True:
            time.sleep(0.2)
            sum(range(1000))
        """,
    "waits for a lock that it holds": "lock = threading.Lock()\nlock.acquire()\nlock.acquire()",
    "stops itself": "os.kill(os.getpid(), signal.SIGSTOP)",
    "waits for input": "os.read(os.pipe()[0], 1)",
    "a regular expression that tries everything": 're.match(r"(a+)+$", "a" * 60 + "b")',
    "a sum over an endless generator": """
        return sum(1 for _ in itertools.count())
        # told: It was stopped after
        """,
    "a power that fills the memory with digits": "return 9 ** 9 ** 9 ** 9",
    "an object that doesn't let go when it is thrown away": """
        class Clinging:
            def __del__(self):
                while True:
                    pass
        Clinging()
        """,
    "an exception that takes forever to tell": """
        class Endless(Exception):
            def __str__(self):
                while True:
                    pass
        raise Endless
        """,
    "an exit that never comes": """
        atexit.register(time.sleep, 10 ** 6)
        threading.Thread(target=time.sleep, args=[10 ** 6]).start()
        raise SystemExit
        """,
    "a module-level line that never ends": """
        RATE = sum(1 for _ in iter(int, 1))
        ---
        return RATE
        """,
    "a child that works in its place, and then its child": """
        while True:
            if os.fork():
                time.sleep(10 ** 6)
            start = time.process_time()
            while time.process_time() < start + 1:
                pass
        """,
}
FIGURES = {
    "a result whose figures never come": """
        class Endless:
            def __getattr__(self, name):
                while True:
                    pass
        return Endless()
        # told: It was stopped after
        """,
    "a dict with one entry that never ends": """
        class Endless(dict):
            def items(self):
                while True:
                    yield 1, 1
        return Metrics(*[Endless({1: 1})] * 4)
        # told: more than 10,000 items
        """,
}
WAITS = {
    "waits in virtual time, after whatever is raised": """
        while True:
            try:
                await asyncio.sleep(1)
            except BaseException:
                pass
        """,
    "waits for an event that never comes": """
        await asyncio.Event().wait()
        # told: waits for something that never comes; expected: it comes to an end.
        """,
    "keeps the event loop busy": "while True:\n    pass  # told: It was stopped after",
    "waits for a thread that never ends": "await asyncio.to_thread(time.sleep, 10 ** 6)",
    "turns the event loop's clock back": """
        while True:
            asyncio.get_running_loop().now = 0.0
            asyncio.get_running_loop().turns = 0
            await asyncio.sleep(0)
        """,
}
CORPUS = [
    every_exercise_hangs,
    *attempts(FAMILY, LOOP, HANGS, others=True),
    *attempts(FAMILY, METRICS, FIGURES, others=True),
    *attempts(FAMILY, "serving.open_loop", WAITS, others=True),
]
