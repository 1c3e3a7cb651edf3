"""The secret that every case of a grade is derived from, and what is derived from it.

    secret -> the key of one submission -> its cases, and the weights of the models that it is lent

The process or machine that grades a submission gets its key and never the secret.
"""

import hashlib
import hmac
import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from autograder.grading.refused import Refused
from autograder.grading.submission import Submission

BYTES = 32


def kept_secret(path: Path) -> bytes:
    """The secret in a file that only its owner can read; made where there is none.

    Raises Refused for a file that others can read, or that holds no secret.
    """
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(BYTES) + "\n")
    except FileExistsError:
        pass
    if path.is_symlink() or stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise Refused(f"Others can read {path}. Make it yours alone: chmod 600 {path}")
    try:
        found = bytes.fromhex(path.read_text().strip())
    except ValueError:
        found = b""
    if len(found) < BYTES:
        raise Refused(f"{path} holds no secret. Move it away, and a new one is made.")
    return found


def secret_id(secret: bytes) -> str:
    """By which results say what secret they came from, without giving it away."""
    return hashlib.sha256(b"id" + secret).hexdigest()[:12]


@dataclass(frozen=True)
class Key:
    """What the cases and models of one submission are derived from; of no use for another.

    secret: the id of the secret that it was derived from. value: 256 bits.
    """

    secret: str
    value: bytes = field(repr=False)

    def part(self, *what: str) -> bytes:
        """256 bits for one purpose, from which neither the key nor another part follows."""
        return derived(self.value, *what)


def key_of(secret: bytes, submission: Submission) -> Key:
    """The key of a submission: another student, lab or content has another one."""
    who = submission.student, submission.lab, submission.sha256
    return Key(secret_id(secret), derived(secret, "submission", *who))


def derived(key: bytes, *what: str) -> bytes:
    """HMAC-SHA-256; each part is preceded by its length, so that no two lists read the same."""
    message = "".join(f"{len(part)}:{part}" for part in what)
    return hmac.digest(key, message.encode("utf-8", "surrogatepass"), "sha256")
