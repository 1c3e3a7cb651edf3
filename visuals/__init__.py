"""Pictures for the labs: one module a lab, drawn from the learner's own objects."""
