"""Collecting from nbgrader's exchange, where students own the folders that they hand in.

nbgrader copies whatever it finds there and follows links: whoever hands in a link to the solved
notebook hands in the solution. So nothing but ordinary files is collected, and of these only what
grading needs.
"""

import os
import re
import secrets
import tempfile
from pathlib import Path

from nbgrader.exchange.default import ExchangeCollect

from autograder.grading import timestamp
from autograder.grading.submission import MOST_BYTES, Unreadable, open_folder, read_file

SECRET = "submission_secret.txt"  # by which a student's own feedback is found
MOST_SECRET = 1000  # bytes


class Collect(ExchangeCollect):
    """Collects notebooks, the time that a folder's name tells, and the secret of its feedback."""

    def do_copy(self, src: str, dest: str, log: object = None) -> None:
        files = self.ordinary_files(Path(src))
        files[timestamp.NAME] = timestamp.written(self._path_to_record(src)["timestamp"]).encode()
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                Path(folder, name).write_bytes(content)
            super().do_copy(folder, dest, log)

    def ordinary_files(self, source: Path) -> dict[str, bytes]:
        """What they hold, by name. What is left out is told in the log."""
        files: dict[str, bytes] = {}
        try:
            with open_folder(source.parent) as inbound, open_folder(source.name, inbound) as folder:
                for name in os.listdir(folder):
                    if name.endswith(".ipynb"):
                        self.read(folder, name, MOST_BYTES, files)
                self.read(folder, SECRET, MOST_SECRET, files)
        except Unreadable as error:
            self.log.warning("%s: %s", source, error)
        if not re.fullmatch(rb"[0-9a-f]+", files.get(SECRET, b"")):
            # Without one, nbgrader would stop releasing everybody's feedback.
            files[SECRET] = secrets.token_hex(64).encode()
        return files

    def read(self, folder: int, name: str, most_bytes: int, into: dict[str, bytes]) -> None:
        try:
            into[name] = read_file(folder, name, most_bytes)
        except Unreadable as error:
            self.log.warning("%s", error)
