"""The rows of the table: one module per lab, named as in solutions/, and one for transformers.

ROWS: the function that prepares each row, by the row's name and by kind of workload. OWN: if the
learner writes something that can be timed, what makes the row `mine`. techniques.py collects both.
"""
