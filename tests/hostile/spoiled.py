"""Submissions that spoil the sandbox for those that come after them, as far as they can.

They are right themselves, and spoil it in the last exercise of lab 1: what counts is what becomes
of the next submission.
"""

from tests.hostile.notebooks import Hostile, guarded, works_and_does

FAMILY = "spoiled"


def spoiled(name: str, source: str) -> Hostile:
    return works_and_does(FAMILY, name, guarded(source), last=True)


CORPUS = [
    spoiled("a scratch folder that is read-only", "import os\nos.chmod('/scratch', 0o400)"),
    spoiled("a scratch folder that nobody may enter", "import os\nos.chmod('/scratch', 0)"),
    spoiled("a scratch folder that others may not enter", "import os\nos.chmod('.', 0o1700)"),
    spoiled("shared memory that nobody may enter", "import os\nos.chmod('/dev/shm', 0)"),
    spoiled("a scratch folder of another time", "import os\nos.utime('/scratch', (1, 1))"),
    spoiled(
        "a scratch folder that was used", "open('left', 'w').close()\nimport os\nos.remove('left')"
    ),
    spoiled("a scratch folder with attributes", "import os\nos.setxattr('.', 'user.left', b'1')"),
    spoiled(
        "six hundred megabytes in /dev",
        """
        for number in range(10):
            with open(f"/dev/left{number}", "wb") as file:
                file.write(b"x" * (60 << 20))
        """,
    ),
    spoiled("a folder in /dev", "import os\nos.mkdir('/dev/left')"),
    spoiled("a terminal", "import os\nos.chmod(os.ttyname(os.openpty()[1]), 0o777)"),
    spoiled(
        "a full disk whose file has no name",
        """
        import os
        file = os.open(".", os.O_TMPFILE | os.O_RDWR)
        while os.write(file, b"x" * (1 << 20)):
            pass
        """,
    ),
    spoiled(
        "a thousand folders in one another",
        """
        import os
        for _ in range(1_000):
            os.mkdir("left")
            os.chdir("left")
        """,
    ),
    spoiled(
        "a thousand files",
        """
        for number in range(1_000):
            open(f"left{number}", "w").close()
        """,
    ),
    spoiled(
        "a first process that may do less",
        """
        import resource
        for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC):
            resource.prlimit(1, kind, (0, 0))
        """,
    ),
]
