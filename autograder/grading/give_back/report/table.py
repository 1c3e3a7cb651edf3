"""The report as a table, for a spreadsheet."""

import csv
import io

from autograder.grading.give_back.report.counts import Report
from autograder.grading.judge.foreign import cell


def to_csv(report: Report) -> str:
    """Make a table with a row for each student: points by exercise, total, and remarks."""
    names = [exercise.name for exercise in report.exercises]
    file = io.StringIO()
    table = csv.writer(file, lineterminator="\n")
    table.writerow(["student", *names, "total", "max", "remarks"])
    for each in report.rows:
        points = [f"{mark.points:g}" if mark else "" for mark in each.marks]
        remarks = cell(" ".join(each.remarks))
        total = [f"{each.points:g}", f"{each.most:g}"]
        table.writerow([cell(each.student), *points, *total, remarks])
    for student, why in report.not_graded:
        table.writerow([cell(student), *[""] * len(names), "", "", cell(why)])
    return file.getvalue()
