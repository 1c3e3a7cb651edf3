"""Lab 13: a service whose clock is a number, so that an hour of load takes a moment."""
