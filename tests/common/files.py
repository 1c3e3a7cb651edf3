"""Read folders, so that tests can compare them."""

from pathlib import Path


def tree(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below `folder`, by its path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
