"""Submissions that take all there is: memory, disk, processes, descriptors."""

from tests.hostile.notebooks import LOOP, METRICS, attempts

FAMILY = "hogs"

HOGS = {
    "a tensor of a hundred gigabytes": "return torch.ones(25 * 10 ** 9)",
    "a list that grows, also after every MemoryError": """
        held = []
        while True:
            try:
                held.append(b"x" * (1 << 26))
            except MemoryError:
                pass
        """,
    "fills all folders that it may write": """
        for number in range(10 ** 4):
            for folder in ("/scratch", "/dev/shm"):
                with contextlib.suppress(OSError), open(f"{folder}/{number}", "wb") as file:
                    file.write(bytes(1 << 26))
        """,
    "files in memory that no limit of a process counts": """
        files = []
        for number in range(64):
            files.append(os.memfd_create(str(number)))
            for _ in range(64):
                os.write(files[-1], bytes(1 << 20))
        """,
    "four children that take a gigabyte each": """
        for _ in range(4):
            if os.fork() == 0:
                held = b"x" * (1 << 30)
                time.sleep(10 ** 6)
        time.sleep(10 ** 6)
        """,
    "a fork bomb": """
        while True:
            try:
                os.fork()
            except OSError:
                pass
        """,
    "a thousand threads": """
        for _ in range(1000):
            threading.Thread(target=time.sleep, args=[10 ** 6]).start()
        """,
    "every descriptor": "while True:\n    os.dup(0)",
    "five thousand folders, one in the other": """
        os.chdir("/scratch")
        for _ in range(5000):
            os.mkdir("d")
            os.chdir("d")
        """,
    "recursion in C, past the limit": """
        sys.setrecursionlimit(10 ** 9)
        nested = []
        for _ in range(10 ** 6):
            nested = [nested]
        return repr(nested)
        """,
    "fifty children that all compute": """
        for _ in range(50):
            try:
                if os.fork() == 0:
                    break
            except OSError:
                break
        while True:
            pass
        """,
    "mappings of shared memory": """
        held = []
        while True:
            held.append(mmap.mmap(-1, 1 << 28))
            held[-1].write(bytes(1 << 28))
        """,
}
FIGURES = {
    "recursion": "return metrics(start, token_times)  # told: RecursionError",
    "a list of a hundred million numbers": "return Metrics([0] * 10 ** 8, 0, 0, 0)",
    "a list that holds itself": """
        held = []
        held.append(held)
        return Metrics(held, held, held, held)
        # told: `ttft`
        """,
    "lists of lists of lists of one list": """
        held = [0] * 1000
        for _ in range(4):
            held = [held] * 1000
        return Metrics(held, 0, 0, 0)
        """,
}
CORPUS = [
    *attempts(FAMILY, LOOP, HOGS, others=True),
    *attempts(FAMILY, METRICS, FIGURES, others=True),
]
