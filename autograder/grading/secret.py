"""The secret that every case of a grade is derived from, and what is derived from it."""

import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

BYTES = 32


class SecretError(RuntimeError):
    """Why the secret can't be used, and what to do."""


def kept_secret(path: Path) -> bytes:
    """The secret in a file that only its owner can read; made where there is none.

    Raises SecretError for a file that others can read, or that holds no secret.
    """
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(BYTES) + "\n")
    except FileExistsError:
        pass
    if path.is_symlink() or stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise SecretError(f"Others can read {path}. Make it yours alone: chmod 600 {path}")
    try:
        found = bytes.fromhex(path.read_text().strip())
    except ValueError:
        found = b""
    if len(found) < BYTES:
        raise SecretError(f"{path} holds no secret. Move it away, and a new one is made.")
    return found


def secret_id(secret: bytes) -> str:
    """By which results say what secret they came from, without giving it away."""
    return hashlib.sha256(b"id" + secret).hexdigest()[:12]


def seed_of(secret: bytes, *what: str) -> int:
    """A seed that nobody can guess who doesn't know the secret."""
    message = "".join(f"{len(part)}:{part}" for part in what)
    return int.from_bytes(
        hmac.digest(secret, message.encode("utf-8", "replace"), "sha256")[:7], "big"
    )
