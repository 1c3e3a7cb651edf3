"""Lab 22, given: `recorder` notes operations, `step` is a decode step on fixed memory, and `runner`
puts replayed steps under lab 7's engine.
"""
