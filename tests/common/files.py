"""Folders as tests compare them."""

from pathlib import Path


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`, by name."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
