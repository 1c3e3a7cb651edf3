"""What goes back: nbgrader's gradebook and feedback, and the report for the instructor."""

__all__ = ["gradebook", "pages", "plugins", "report"]
