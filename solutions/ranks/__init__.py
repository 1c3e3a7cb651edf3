"""Labs 17 and 18, given: ranks that exchange tensors."""
