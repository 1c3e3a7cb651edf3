"""The course as its authors wrote it: lessons and reference solutions, read as text."""
