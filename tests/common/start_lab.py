"""Open the workbook as `make lab` does, but in another folder than work/.

python -m tests.common.start_lab FOLDER [options of JupyterLab]
"""

import sys
from pathlib import Path

import workbook

if __name__ == "__main__":
    workbook.WORK = Path(sys.argv[1])
    sys.exit(workbook.lab(Path(sys.executable), sys.argv[2:]))
