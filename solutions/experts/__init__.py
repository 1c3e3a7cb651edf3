"""Lab 17, given: layers of experts, how an MLP is split, taught and placed."""
