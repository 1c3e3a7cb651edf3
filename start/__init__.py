"""The start page of the course: work/start.ipynb."""
