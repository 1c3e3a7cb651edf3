"""What a command says when it does nothing."""


class Refused(Exception):
    """Why a command does nothing, and what to do."""
