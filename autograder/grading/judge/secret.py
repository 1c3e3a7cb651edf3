"""The secret from which all cases for grading are derived.

    secret -> the key of one submission -> its cases, and the weights of the models that it is given

The process or machine that grades a submission gets its key, but never the secret.
"""

import hashlib
import hmac
import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from autograder.grading.judge.submission import Submission
from autograder.grading.refused import Refused

BYTES = 32


def kept_secret(path: Path) -> bytes:
    """Return the secret in a file that only its owner can read; if there is none, make one.

    Raises Refused for a file that others can read, or that contains no secret.
    """
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(BYTES) + "\n")
    except FileExistsError:
        pass
    if path.is_symlink() or stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise Refused(f"Other users can read {path}. Make it private: chmod 600 {path}")
    try:
        secret = bytes.fromhex(path.read_text().strip())
    except ValueError:
        secret = b""
    if len(secret) < BYTES:
        raise Refused(f"{path} contains no secret. Move it away, and a new one will be made.")
    return secret


def secret_id(secret: bytes) -> str:
    """Return an id that identifies the secret in results without revealing it."""
    return hashlib.sha256(b"id" + secret).hexdigest()[:12]


@dataclass(frozen=True)
class Key:
    """The key from which the cases and models of one submission are derived; useless for others.

    secret: the id of the secret from which it was derived. value: 256 bits.
    """

    secret: str
    value: bytes = field(repr=False)

    def part(self, *what: str) -> bytes:
        """Return 256 bits for one purpose, which reveal neither the key nor another part."""
        return derived(self.value, *what)


def key_of(secret: bytes, submission: Submission) -> Key:
    """Return the key of a submission, which depends on student, lab and content."""
    who = submission.student, submission.lab, submission.sha256
    return Key(secret_id(secret), derived(secret, "submission", *who))


def derived(key: bytes, *what: str) -> bytes:
    """Return the HMAC-SHA-256 of the parts, each preceded by its length to keep lists distinct."""
    message = "".join(f"{len(part)}:{part}" for part in what)
    return hmac.digest(key, message.encode("utf-8", "surrogatepass"), "sha256")
