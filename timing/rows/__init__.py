"""The rows of the table by lab, in files named as in solutions/, and those of transformers.

ROWS: what prepares each row, by its name and the kinds of workload that it serves. OWN: where there
is something for a learner to write, what becomes the row `mine`. techniques.py collects both.
"""
