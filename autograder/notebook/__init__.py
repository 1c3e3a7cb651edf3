"""What a learner sees of it in a notebook, and what is kept for later labs."""
