"""Submissions that leave something behind: for their next exercise, or for whoever comes next."""

from tests.hostile.notebooks import ALL, LOOP, leaves, works_and_does

FAMILY = "left behind"

FOLDERS = {
    "the scratch folder": "/scratch",
    "the working folder": ".",
    "the home folder": "/scratch/.config",
    "shared memory": "/dev/shm",
    "/var/tmp": "/var/tmp",
    "/run": "/run",
}
MAKES = """
os.makedirs("{0}", exist_ok=True)
open("{0}/left", "w").write("answers")
"""
FINDS = 'won = os.path.exists("{0}/left")'

# What the first exercise leaves, and how the second one looks for it.
LEFT = {
    **{f"a file in {n}": (MAKES.format(at), FINDS.format(at)) for n, at in FOLDERS.items()},
    "a file in a folder that nobody may read": (
        MAKES.format("shut") + "os.chmod('shut', 0)",
        "os.chmod('shut', 0o755)\n" + FINDS.format("shut"),
    ),
    "a global variable": ("torch.LEFT = True", "won = hasattr(torch, 'LEFT')"),
    "a variable of the environment": ("os.environ['LEFT'] = '1'", "won = 'LEFT' in os.environ"),
    "a module that the next exercise imports": (
        """
        sys.modules["left"] = types.ModuleType("left")
        open("left.py", "w").write("answers = 1")
        """,
        "import left\nwon = True",
    ),
    "a note in the log of errors": (
        "os.pwrite(2, b'answers', 0)",
        "won = b'answers' in os.pread(2, 100, 0)",
    ),
    "a note on one of the descriptors that are open from the beginning": (
        """
        for number in range(3, 64):
            with contextlib.suppress(OSError):
                os.pwrite(number, b"answers", 0)
        """,
        """
        for number in range(3, 64):
            with contextlib.suppress(OSError):
                won = won or b"answers" in os.pread(number, 100, 0)
        """,
    ),
    "a segment of System V's shared memory": (
        "ctypes.CDLL(None).shmget(4711, 4096, 0o1666)",
        "won = ctypes.CDLL(None).shmget(4711, 0, 0) != -1",
    ),
    "a message in System V's queue": (
        "ctypes.CDLL(None).msgget(4711, 0o1666)",
        "won = ctypes.CDLL(None).msgget(4711, 0) != -1",
    ),
    "a semaphore of System V": (
        "ctypes.CDLL(None).semget(4711, 1, 0o1666)",
        "won = ctypes.CDLL(None).semget(4711, 0, 0) != -1",
    ),
    "a POSIX message queue": (
        "ctypes.CDLL(None).mq_open(b'/left', 0o102, 0o666, None)",
        "won = ctypes.CDLL(None).mq_open(b'/left', 0) != -1",
    ),
    "a key in the kernel's keyring": (
        "ctypes.CDLL(None).syscall(248, b'user', b'left', b'answers', 7, -4)",
        "won = ctypes.CDLL(None).syscall(249, b'user', b'left', None, 0) > 0",
    ),
    "the priority of the process": (
        "os.setpriority(os.PRIO_USER, os.getuid(), 7)",
        "won = os.getpriority(os.PRIO_PROCESS, 0) == 7",
    ),
    "a process that waits on an abstract socket": (
        """
        wire = socket.socket(socket.AF_UNIX)
        if wire.connect_ex("\\0left") != 0 and os.fork() == 0:
            os.setsid()
            wire.bind("\\0left")
            wire.listen()
            while True:
                wire.accept()
        """,
        "won = socket.socket(socket.AF_UNIX).connect_ex('\\0left') == 0",
    ),
}
GOES_ON = {
    "a daemon that kills everybody, again and again": """
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
    "a child that holds the wire open": """
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(10 ** 6)
        """,
    "threads that go on": """
        if threading.active_count() < 8:
            threading.Thread(target=time.sleep, args=[10 ** 6]).start()
        """,
    "a pool of processes that nobody closes": """
        if not hasattr(torch, "pool"):
            torch.pool = multiprocessing.get_context("fork").Pool(4)
        torch.pool.apply_async(print)
        """,
    "a thousand zombies": "if os.fork() == 0:\n    os._exit(0)",
    "a stopped child": "if os.fork() == 0:\n    os.kill(os.getpid(), signal.SIGSTOP)",
    "a hook for the exit of every process": "atexit.register(os.kill, 1, 9)",
}
TALKS = """
if os.fork() == 0:
    while True:
        for number in range(3, 64):
            with contextlib.suppress(OSError):
                os.write(number, b"\\0" * 8)
        time.sleep(0.3)
"""
CORPUS = [
    *(leaves(FAMILY, name, *lines) for name, lines in LEFT.items()),
    *(works_and_does(FAMILY, name, lines, ALL) for name, lines in GOES_ON.items()),
    works_and_does(FAMILY, "a daemon that talks into the next exercise's wire", TALKS, {LOOP}),
]
