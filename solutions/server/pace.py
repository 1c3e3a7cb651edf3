"""How fast prompts are computed, measured while the server serves."""

MEASURED = 1.0  # seconds at least, of which a rate is made


class Pace:
    """The prompt tokens that an engine computes per second, beside all its other work.

    rate: measured before it served. budget: tokens of a step. With fewer of them waiting, steps
    aren't full, and their time says nothing about the rate.
    """

    def __init__(self, rate: float, budget: int) -> None:
        self.rate, self.budget = rate, budget
        self.since: float | None = None
        self.tokens = 0

    def computed(self, tokens: int, waiting: int, now: float) -> float:
        """Note that a prompt of so many tokens was computed; return the rate.

        waiting: tokens of the prompts that are still to be computed. now: in seconds.
        """
        self.tokens += tokens
        if self.since is not None and now >= self.since + MEASURED:
            self.rate = (self.rate + self.tokens / (now - self.since)) / 2
            self.since = None
        if waiting < self.budget:
            self.since = None
        elif self.since is None:
            self.since, self.tokens = now, 0
        return self.rate
