"""Misconceptions, one module a lab: wrong solutions that people really write, explained.

Each serves three times: the tests prove that its exercise rejects it, a wrong answer that coincides
with it is explained by its sentence, and an instructor sees how many students hold it.
"""
