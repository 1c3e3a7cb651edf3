"""How a class did in a lab: the report of `report LAB`.

For an instructor before the next lecture: which mistake to discuss first, which exercise was harder
than its card says, and which students need help. `report` counts; `to_html` and `to_csv` show.
"""

from autograder.grading.give_back.report.counts import ExerciseNumbers, Report, report
from autograder.grading.give_back.report.page import to_html
from autograder.grading.give_back.report.table import to_csv

__all__ = ["ExerciseNumbers", "Report", "report", "to_csv", "to_html"]
