"""Read the lessons and the reference solutions as text."""
