"""Lab 23's room, to come: a lesson, what judges it, and its pictures."""
