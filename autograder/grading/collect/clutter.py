"""Files that operating systems, Jupyter and git leave in folders and archives."""

from collections.abc import Container

FOLDERS = {
    *("__macosx", ".fseventsd", ".spotlight-v100", ".temporaryitems", ".trashes"),  # macOS
    *("$recycle.bin", "system volume information"),  # Windows
    *(".ipynb_checkpoints", "__pycache__", ".git"),
}
FILES = {".ds_store", ".localized", "desktop.ini", "ehthumbs.db", "thumbs.db", ".directory"}
FILES |= {".gitignore", ".gitkeep"}

Path = tuple[str, ...]


def is_clutter(path: Path, others: Container[Path], is_folder: bool = False) -> bool:
    """Whether a file or folder is clutter, by its name and the names of the folders around it.

    others: the other paths. macOS stores its metadata of "a" in "._a" in the same folder. If there
    is no "a", the file "._a" is the student's own.
    """
    folders, name = (path, "") if is_folder else (path[:-1], path[-1])
    return (
        any(folder.lower() in FOLDERS for folder in folders)
        or name.lower() in FILES
        or (name.startswith("._") and (*folders, name[2:]) in others)
    )


def passed_over(number: int) -> list[str]:
    """Return a sentence about this number of entries, or nothing for 0."""
    what = "1 file or folder" if number == 1 else f"{number} files and folders"
    named = "such as .DS_Store or __MACOSX"
    said = f"Ignored: {what} that operating systems and tools leave behind, {named}."
    return [said] if number else []
