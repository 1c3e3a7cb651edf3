"""The rows of the table: one module per lab, named as in solutions/, and one for transformers."""
