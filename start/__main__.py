"""Write start.ipynb into a folder, or renew the page in it: python -m start [work]."""

import sys
from pathlib import Path

from autograder.text.reference import ROOT
from start.notebook import write

if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "work")
