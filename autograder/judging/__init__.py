"""From an attempt to a judgement: cases, drivers' records, comparison, diagnosis.

An author of cases needs exercise, draws, comparisons and random_models; `judge` does the rest.
"""

__all__ = [
    *("catalogue", "compare", "comparisons", "draws", "exercise", "given", "interrupt", "judge"),
    *("patience", "random_models", "recorded", "verdicts"),
]
