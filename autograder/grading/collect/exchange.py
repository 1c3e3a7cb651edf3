"""Collecting from nbgrader's exchange, where students own the folders that they hand in.

nbgrader copies whatever it finds there and follows links, so a student could hand in a link to the
solved notebook. Here only ordinary files are collected, and of these only those that grading needs.
"""

import os
import re
import secrets
import tempfile
from pathlib import Path

from nbgrader.exchange.default import ExchangeCollect

from autograder.grading.collect import timestamp
from autograder.grading.judge.submission import MOST_BYTES, Unreadable, open_folder, read_file

SECRET = "submission_secret.txt"  # identifies the student's own feedback
MOST_SECRET = 1000  # bytes


class Collect(ExchangeCollect):
    """Collects notebooks, the time in the folder's name, and the secret of the feedback."""

    def do_copy(self, src: str, dest: str, log: object = None) -> None:
        files = self.ordinary_files(Path(src))
        files[timestamp.NAME] = timestamp.written(self._path_to_record(src)["timestamp"]).encode()
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                Path(folder, name).write_bytes(content)
            super().do_copy(folder, dest, log)

    def ordinary_files(self, source: Path) -> dict[str, bytes]:
        """Return their contents, by name. The log says which files are left out."""
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
            # Without one, nbgrader would stop releasing all feedback.
            files[SECRET] = secrets.token_hex(64).encode()
        return files

    def read(self, folder: int, name: str, most_bytes: int, into: dict[str, bytes]) -> None:
        try:
            into[name] = read_file(folder, name, most_bytes)
        except Unreadable as error:
            self.log.warning("%s", error)
