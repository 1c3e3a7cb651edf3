"""Judge attempts at the exercises: in the notebook, in grading and in the course's own tests."""
