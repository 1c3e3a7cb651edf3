# Every command sets up all it needs first: an environment in .venv, from pyproject.toml and
# constraints.txt. Without make, run the same: `python3 workbook.py lab`.

PYTHON ?= python3
ARGS =
JUPYTER_ARGS =

.PHONY: help lab timed serve chat site labs test test-rest test-all soak

help:
	@$(PYTHON) workbook.py --help

# Open the workbook in JupyterLab:           make lab JUPYTER_ARGS="--no-browser --port=8899"
lab:
	@$(PYTHON) workbook.py lab $(JUPYTER_ARGS)

# Time every technique on one table:         make timed ARGS="--tokens 64"
timed:
	@$(PYTHON) workbook.py timed $(ARGS)

# Serve a model over HTTP, with a page:      make serve ARGS="--technique prefix"
serve:
	@$(PYTHON) workbook.py serve $(ARGS)

# Talk to a model, on a page or here:        make chat ARGS=--terminal
chat:
	@$(PYTHON) workbook.py chat $(ARGS)

# Build the course's web site in site/:      make site ARGS="--with-solutions"
site:
	@$(PYTHON) workbook.py site $(ARGS)

# Build the student edition in labs/ from solutions/
labs:
	@$(PYTHON) workbook.py labs

# Lint, types and the quick tests, which show every promise once: five minutes
test:
	@$(PYTHON) workbook.py test $(ARGS)

# The tests that `make test` leaves out: slow ones, and those that need a browser or a sandbox
test-rest:
	@$(PYTHON) workbook.py test-rest $(ARGS)

# Lint, types and all tests. Of large grids each run tries a share; TURN=all make test-all tries all
test-all:
	@$(PYTHON) workbook.py test-all $(ARGS)

# The same tests, on many more random cases; takes long
soak:
	@$(PYTHON) workbook.py soak $(ARGS)
