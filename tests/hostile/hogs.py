"""Submissions that take all there is: memory, disk, processes, descriptors."""

from functools import partial

from tests.hostile.notebooks import LOOP, METRICS, attempt

FAMILY = "hogs"
hogs = partial(attempt, FAMILY, exercise=LOOP, others=True)
figures = partial(attempt, FAMILY, exercise=METRICS, others=True)

CORPUS = [
    hogs("a tensor of a hundred gigabytes", body="return torch.ones(25 * 10 ** 9)"),
    hogs(
        "a list that grows",
        body="""
        held = []
        while True:
            held.append(bytearray(1 << 26))
        """,
    ),
    hogs(
        "a list that grows again after every MemoryError",
        body="""
        held = []
        while True:
            try:
                held.append(b"x" * (1 << 26))
            except MemoryError:
                pass
        """,
    ),
    *(
        hogs(
            f"fills {folder}",
            body=f"""
            for number in range(10 ** 4):
                with open(f"{folder}/{{number}}", "wb") as file:
                    file.write(bytes(1 << 26))
            """,
        )
        for folder in ("/scratch", "/dev/shm")
    ),
    hogs(
        "files in memory that no limit of a process counts",
        body="""
        import os
        files = []
        for number in range(64):
            files.append(os.memfd_create(str(number)))
            for _ in range(64):
                os.write(files[-1], bytes(1 << 20))
        """,
    ),
    hogs(
        "four children that take a gigabyte each",
        body="""
        import os, time
        for _ in range(4):
            if os.fork() == 0:
                held = b"x" * (1 << 30)
                time.sleep(10 ** 6)
        time.sleep(10 ** 6)
        """,
    ),
    hogs(
        "a fork bomb",
        body="""
        import os
        while True:
            try:
                os.fork()
            except OSError:
                pass
        """,
    ),
    hogs(
        "a thousand threads",
        body="""
        import threading, time
        for _ in range(1000):
            threading.Thread(target=time.sleep, args=[10 ** 6]).start()
        """,
    ),
    hogs(
        "every descriptor",
        body="""
        import os
        while True:
            os.dup(0)
        """,
    ),
    hogs(
        "a hundred thousand folders, one in the other",
        body="""
        import os
        os.chdir("/scratch")
        for _ in range(5000):
            os.mkdir("d")
            os.chdir("d")
        """,
    ),
    figures("recursion", body="return metrics(start, token_times)", says="RecursionError"),
    hogs(
        "recursion in C, past the limit",
        body="""
        import sys
        sys.setrecursionlimit(10 ** 9)
        nested = []
        for _ in range(10 ** 6):
            nested = [nested]
        return repr(nested)
        """,
    ),
    figures(
        "a list of a hundred million numbers",
        body="return Metrics([0] * 10 ** 8, 0, 0, 0)",
    ),
    figures(
        "a list that holds itself",
        body="""
        held = []
        held.append(held)
        return Metrics(held, held, held, held)
        """,
        says="`ttft`",
    ),
    figures(
        "lists of lists of lists of one list",
        body="""
        held = [0] * 1000
        for _ in range(4):
            held = [held] * 1000
        return Metrics(held, 0, 0, 0)
        """,
    ),
    hogs(
        "fifty children that all compute",
        body="""
        import os
        for _ in range(50):
            try:
                if os.fork() == 0:
                    break
            except OSError:
                break
        while True:
            pass
        """,
    ),
    hogs(
        "mappings of shared memory",
        body="""
        import mmap
        held = []
        while True:
            held.append(mmap.mmap(-1, 1 << 28))
            held[-1].write(bytes(1 << 28))
        """,
    ),
]
