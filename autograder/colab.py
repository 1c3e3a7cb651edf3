"""Open a lab in Google Colab, which opens a notebook without the repository around it.

The first code cell of every lab fetches the course and calls `set_up`. That runs before anything is
installed, so this file needs only the standard library.
"""

import importlib
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KEPT = ("torch", "transformers", "numpy")
CELL = """\
# @title Only on Google Colab: fetch the course and install what it needs
import sys

if "google.colab" in sys.modules:
    import subprocess
    from pathlib import Path

    address, folder = {address!r}, "/content/workbook"
    assert address, {refusal!r}
    if not Path(folder).exists():
        subprocess.run(["git", "clone", "--quiet", "--depth=1", address, folder], check=True)
    sys.path.insert(0, folder)
    from autograder.colab import set_up

    set_up({lesson!r})"""
REFUSAL = (
    "The course has no address yet. Write that of its repository into pyproject.toml, as "
    "`repository` under [tool.workbook], then run: make labs"
)


def cell(lesson: str, address: str) -> str:
    """Return the source of a lab's first code cell.

    lesson: "02_kv_cache". address: of the repository; if it is empty, the cell refuses to run in
    Colab.
    """
    return CELL.format(lesson=lesson, address=address, refusal=REFUSAL)


def set_up(lesson: str) -> None:
    """Install what Colab lacks, and change to the lab's folder in work/."""
    # Colab's own PyTorch fits its GPU, and NumPy is already loaded when a cell runs. Naming their
    # versions makes pip keep them, or fail; it replaces other packages only if they are too old.
    kept = [f"{name}=={version(name)}" for name in KEPT]
    print("Installing what Colab lacks. This takes about a minute.", flush=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--editable", f"{ROOT}[serve]"]
    subprocess.run([*command, *kept], check=True)
    importlib.invalidate_caches()
    folder = ROOT / "work" / lesson
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
