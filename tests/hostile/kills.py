"""Submissions that end the process that they run in, or try to end others."""

from tests.hostile.notebooks import LOOP, attempts

FAMILY = "kills"
RAISED = ("SystemExit", "KeyboardInterrupt", "GeneratorExit", "BaseException")
KILLED = {
    "the first process": "1",
    "everybody": "-1",
    "its own group": "0",
    "its parent": "os.getppid()",
    "itself": "os.getpid()",
}

KILLS = {
    **{f"kills {whom}": f"os.kill({pid}, 9)\nreturn 1" for whom, pid in KILLED.items()},
    **{f"raises {e}": f"raise {e}('on purpose')  # told: {e}" for e in RAISED},
    "asks everybody to end": "for _ in range(99):\n    os.killpg(0, signal.SIGTERM)",
    "leaves without a word": "os._exit(0)",
    "leaves without a word, from a module-level line": "STATE = os._exit(0)\n---\nreturn STATE",
    "aborts": "os.abort()",
    "reads from address 0": "return ctypes.string_at(0)",
    "replaces the process by another program": 'os.execv("/bin/sh", ["sh", "-c", "exit 0"])',
    "raises an exception of a class of its own that nothing catches": """
        class Gone(BaseException):
            def __str__(self):
                raise self
            __repr__ = __str__
        Gone.__name__ = "G" * 10 ** 6
        raise Gone
        """,
    "raises what stops the grader itself": """
        for module in list(sys.modules.values()):
            for name in ("Gone", "TookTooLong", "WireError", "JailError"):
                if isinstance(getattr(module, name, None), type):
                    raise getattr(module, name)("on purpose")
        """,
    "corrupts the heap": """
        for _ in range(1000):
            place = bytes(100)
            ctypes.memset(id(place), 255, 4096)
        return [object() for _ in range(10 ** 5)]
        """,
    "frees what Python itself needs": """
        for name in (None, True, 0, ()):
            ctypes.c_long.from_address(id(name)).value = 1
        return [None, True, 0, ()] * 10
        """,
    "asks the limits of the process down to nothing": """
        for kind in (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_NOFILE):
            resource.setrlimit(kind, (1, 1))
        while True:
            pass
        """,
    "is the exit of a thread in the middle of a lock": """
        threading.Thread(target=ctypes.pythonapi.PyThread_exit_thread).start()
        ctypes.pythonapi.PyGILState_Ensure()
        ctypes.pythonapi.PyThread_exit_thread()
        """,
}
CORPUS = attempts(FAMILY, LOOP, KILLS, others=True)
