"""All that a verdict depends on: a submission is read, rebuilt and tried behind walls.

The process that runs a student's code never judges: the oracle compares what comes back from it.
The version of a grade is a digest of this folder, of what runs beside a student's code, and of the
labs.
"""

__all__ = [
    *("bounds", "foreign", "jail", "oracle", "rebuild", "results", "secret", "submission"),
    "version",
]
