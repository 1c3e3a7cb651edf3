"""Submissions that leave something behind: for their next exercise, or for whoever comes next."""

from functools import partial

from tests.hostile.notebooks import Hostile, leaves, works_and_does

FAMILY = "left behind"
left = partial(leaves, FAMILY)
goes_on = partial(works_and_does, FAMILY)


def left_file(name: str, folder: str, mode: int = 0o755) -> Hostile:
    return left(
        name,
        f"""
        import os
        os.makedirs("{folder}", exist_ok=True)
        open("{folder}/left", "w").write("answers")
        os.chmod("{folder}", {mode})
        """,
        f"""
        import os
        if os.path.exists("{folder}"):
            os.chmod("{folder}", 0o755)
        won = os.path.exists("{folder}/left")
        """,
    )


CORPUS = [
    # ----------------------------------------------------------------------- for the next exercise
    left("a global variable", "torch.LEFT = True", "won = hasattr(torch, 'LEFT')"),
    left(
        "a variable of the environment",
        "import os\nos.environ['LEFT'] = 'answers'",
        "import os\nwon = 'LEFT' in os.environ",
    ),
    left(
        "a module that the next exercise imports",
        """
        import sys, types
        sys.modules["left"] = types.ModuleType("left")
        open("left.py", "w").write("answers = 1")
        """,
        "import left\nwon = True",
    ),
    left_file("a file in the scratch folder", "/scratch"),
    left_file("a file in the working folder", "."),
    left_file("a file in the home folder", "/scratch/.config"),
    left_file("a file in shared memory", "/dev/shm"),
    left_file("a file in a folder that nobody may read", "/scratch/shut", mode=0),
    left_file("a file in /var/tmp", "/var/tmp"),
    left_file("a file in /run", "/run"),
    left(
        "a note in the log of errors",
        "import os\nos.pwrite(2, b'answers', 0)",
        "import os\nwon = b'answers' in os.pread(2, 100, 0)",
    ),
    left(
        "a note on one of the descriptors that are open from the beginning",
        """
        import os
        for number in range(3, 64):
            try:
                os.pwrite(number, b"answers", 0)
            except OSError:
                pass
        """,
        """
        import os
        for number in range(3, 64):
            try:
                won = won or b"answers" in os.pread(number, 100, 0)
            except OSError:
                pass
        """,
    ),
    left(
        "a segment of System V's shared memory",
        "import ctypes\nctypes.CDLL(None).shmget(4711, 4096, 0o1666)",
        "import ctypes\nwon = ctypes.CDLL(None).shmget(4711, 0, 0) != -1",
    ),
    left(
        "a message in System V's queue",
        "import ctypes\nctypes.CDLL(None).msgget(4711, 0o1666)",
        "import ctypes\nwon = ctypes.CDLL(None).msgget(4711, 0) != -1",
    ),
    left(
        "a semaphore of System V",
        "import ctypes\nctypes.CDLL(None).semget(4711, 1, 0o1666)",
        "import ctypes\nwon = ctypes.CDLL(None).semget(4711, 0, 0) != -1",
    ),
    left(
        "a POSIX message queue",
        "import ctypes\nctypes.CDLL(None).mq_open(b'/left', 0o102, 0o666, None)",
        "import ctypes\nwon = ctypes.CDLL(None).mq_open(b'/left', 0) != -1",
    ),
    left(
        "a key in the kernel's keyring",
        "import ctypes\nctypes.CDLL(None).syscall(248, b'user', b'left', b'answers', 7, -4)",
        "import ctypes\nwon = ctypes.CDLL(None).syscall(249, b'user', b'left', None, 0) > 0",
    ),
    left(
        "the priority of the process",
        "import os\nos.setpriority(os.PRIO_USER, os.getuid(), 7)",
        "import os\nwon = os.getpriority(os.PRIO_PROCESS, 0) == 7",
    ),
    # ------------------------------------------------------------------------- that goes on working
    left(
        "a process that waits on an abstract socket",
        """
        import os, socket
        wire = socket.socket(socket.AF_UNIX)
        if wire.connect_ex("\\0left") != 0 and os.fork() == 0:
            os.setsid()
            wire.bind("\\0left")
            wire.listen()
            while True:
                wire.accept()
        """,
        """
        import socket
        wire = socket.socket(socket.AF_UNIX)
        won = wire.connect_ex("\\0left") == 0
        """,
    ),
    goes_on(
        "a daemon that kills everybody, again and again",
        """
        import os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                me = os.getpid()
                for _ in range(10 ** 6):
                    time.sleep(0.05)
                    for other in filter(str.isdigit, os.listdir("/proc")):
                        if int(other) != me and int(other) > me:
                            os.kill(int(other), 9)
            os._exit(0)
        """,
    ),
    goes_on(
        "a daemon that talks into the wire of the exercise that follows",
        """
        import os, socket, time
        if os.fork() == 0:
            while True:
                for number in range(3, 64):
                    try:
                        os.write(number, b"\\0" * 8)
                    except OSError:
                        pass
                time.sleep(0.3)
        """,
        {"generate.generate"},
    ),
    goes_on(
        "a child that holds the wire open",
        """
        import os, signal, time
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(10 ** 6)
        """,
    ),
    goes_on(
        "threads that go on",
        """
        import threading, time
        def work():
            while True:
                time.sleep(0.01)
        if threading.active_count() < 8:
            threading.Thread(target=work).start()
        """,
    ),
    goes_on(
        "a pool of processes that nobody closes",
        """
        import multiprocessing
        if not hasattr(torch, "pool"):
            torch.pool = multiprocessing.get_context("fork").Pool(4)
        torch.pool.apply_async(print)
        """,
    ),
    goes_on(
        "a thousand zombies",
        """
        import os
        if os.fork() == 0:
            os._exit(0)
        """,
    ),
    goes_on(
        "a stopped child",
        """
        import os, signal
        if os.fork() == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        """,
    ),
    goes_on(
        "a hook for the exit of every process",
        """
        import atexit, os
        atexit.register(os.kill, 1, 9)
        """,
    ),
]
