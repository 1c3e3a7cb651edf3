"""What comes in: archives and folders become submissions, and nothing is lost silently."""

__all__ = ["archive", "exchange", "inventory", "submitted", "timestamp"]
