"""Lab 19, given: the shapes of models and the data of machines that the estimates start from."""
