"""Lab 12, given: a memory that counts its traffic, and the lab's loop as a GPU kernel."""
