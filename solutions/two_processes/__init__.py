"""Lab 9, given: prefill and decode in two processes, from the messages to the processes."""
