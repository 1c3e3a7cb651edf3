"""Submissions that spoil the sandbox for those that come after them, as far as they can.

They are right themselves, and spoil it in the last exercise of lab 1: what counts is what becomes
of the next submission.
"""

from tests.hostile.notebooks import guarded, works_and_does

FAMILY = "spoiled"

SPOILS = {
    "a scratch folder that is read-only": "os.chmod('/scratch', 0o400)",
    "a scratch folder that nobody may enter": "os.chmod('/scratch', 0)",
    "a scratch folder that others may not enter": "os.chmod('.', 0o1700)",
    "shared memory that nobody may enter": "os.chmod('/dev/shm', 0)",
    "a scratch folder of another time": "os.utime('/scratch', (1, 1))",
    "a scratch folder that was used": "open('left', 'w').close()\nos.remove('left')",
    "a scratch folder with attributes": "os.setxattr('.', 'user.left', b'1')",
    "a folder in /dev": "os.mkdir('/dev/left')",
    "a terminal": "os.chmod(os.ttyname(os.openpty()[1]), 0o777)",
    "a thousand files": "for number in range(1_000):\n    open(f'left{number}', 'w').close()",
    "a thousand folders in one another": """
        for _ in range(1_000):
            os.mkdir("left")
            os.chdir("left")
        """,
    "six hundred megabytes in /dev": """
        for number in range(10):
            with open(f"/dev/left{number}", "wb") as file:
                file.write(b"x" * (60 << 20))
        """,
    "a full disk whose file has no name": """
        file = os.open(".", os.O_TMPFILE | os.O_RDWR)
        while os.write(file, b"x" * (1 << 20)):
            pass
        """,
    "a first process that may do less": """
        for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC):
            resource.prlimit(1, kind, (0, 0))
        """,
}
CORPUS = [works_and_does(FAMILY, name, guarded(lines), last=True) for name, lines in SPOILS.items()]
