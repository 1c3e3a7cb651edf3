"""From an attempt to a judgement: cases, drivers' records, comparison, diagnosis."""
