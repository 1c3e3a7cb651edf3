"""What a check may find. Apart from the judge, so that a page can name it without PyTorch."""

NOT_ATTEMPTED, WRONG, PASSED = "not attempted", "wrong", "passed"
