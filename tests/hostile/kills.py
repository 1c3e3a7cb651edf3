"""Submissions that end the process that they run in, or try to end others."""

from functools import partial

from tests.hostile.notebooks import LOOP, attempt

FAMILY = "kills"
kills = partial(attempt, FAMILY, exercise=LOOP, others=True)

CORPUS = [
    kills("leaves without a word", body="import os\nos._exit(0)"),
    kills(
        "leaves without a word, from a module-level line",
        body="return STATE",
        above="import os\n\nSTATE = os._exit(0)",
    ),
    kills(
        "leaves without a word, from a default argument",
        body="return leave()",
        above="def leave(status=__import__('os')._exit(0)):\n    return status",
    ),
    kills(
        "leaves without a word, from a decorator",
        body="return leave()",
        above="import os\n\n\n@os._exit\ndef leave():\n    return 0",
    ),
    *(
        kills(f"kills {whom}", body=f"import os\nos.kill({pid}, 9)\nreturn 1")
        for whom, pid in [
            ("the first process", "1"),
            ("everybody", "-1"),
            ("its own group", "0"),
            ("its parent", "os.getppid()"),
            ("itself", "os.getpid()"),
        ]
    ),
    kills(
        "asks everybody to end",
        body="import os, signal\nfor _ in range(99):\n    os.killpg(0, signal.SIGTERM)",
    ),
    *(
        kills(f"raises {error}", body=f"raise {error}('on purpose')", says=error)
        for error in ("SystemExit", "KeyboardInterrupt", "GeneratorExit", "BaseException")
    ),
    kills(
        "raises an exception of a class of its own that nothing catches",
        body="""
        class Gone(BaseException):
            def __str__(self):
                raise self
            __repr__ = __str__
        Gone.__name__ = "G" * 10 ** 6
        raise Gone
        """,
    ),
    kills(
        "raises what stops the grader itself",
        body="""
        import sys
        for module in list(sys.modules.values()):
            for name in ("Gone", "TookTooLong", "WireError", "JailError"):
                if isinstance(getattr(module, name, None), type):
                    raise getattr(module, name)("on purpose")
        """,
    ),
    kills("reads from address 0", body="import ctypes\nreturn ctypes.string_at(0)"),
    kills(
        "corrupts the heap",
        body="""
        import ctypes
        for _ in range(1000):
            place = bytes(100)
            ctypes.memset(id(place), 255, 4096)
        return [object() for _ in range(10 ** 5)]
        """,
    ),
    kills("aborts", body="import os\nos.abort()"),
    kills(
        "replaces the process by another program",
        body='import os\nos.execv("/bin/sh", ["sh", "-c", "exit 0"])',
    ),
    kills(
        "frees what Python itself needs",
        body="""
        import ctypes
        for name in (None, True, 0, ()):
            ctypes.c_long.from_address(id(name)).value = 1
        return [None, True, 0, ()] * 10
        """,
    ),
    kills(
        "asks the limits of the process down to nothing",
        body="""
        import resource
        for kind in (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_NOFILE):
            resource.setrlimit(kind, (1, 1))
        while True:
            pass
        """,
    ),
    kills(
        "is the exit of a thread in the middle of a lock",
        body="""
        import ctypes, threading
        threading.Thread(target=ctypes.pythonapi.PyThread_exit_thread).start()
        ctypes.pythonapi.PyGILState_Ensure()
        ctypes.pythonapi.PyThread_exit_thread()
        """,
    ),
]
