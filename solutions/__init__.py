"""The reference solutions: one importable module a lab, in the order of the course."""
