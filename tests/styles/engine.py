"""Lab 7 in another style: a purse for the budget, who runs by index; a step in several passes."""

from dataclasses import dataclass, field


@dataclass
class Purse:
    """What is left of a budget, and what was bought with it."""

    left: int
    bought: dict[int, int] = field(default_factory=dict)

    def buy(self, sequence, is_there_room=lambda wanted: True):
        wanted = sequence.next_count(self.left)
        if wanted and is_there_room(wanted):
            self.bought[sequence.number] = wanted
            self.left -= wanted


@dataclass
class Served:
    """A request in the plan, and what a step has made of it."""

    sequence: object
    tokens: int
    has_caught_up: bool = False

    def line(self):
        return self.sequence.number, self.tokens, self.has_caught_up


class Scheduler:
    def schedule(self):
        ### BEGIN SOLUTION
        purse, before, place = Purse(self.token_budget), self.preemptions, 0
        while place < len(self.running) and purse.left:
            sequence = self.running[place]
            purse.buy(sequence, lambda wanted, who=sequence: self.make_room(who, wanted))
            place += 1
        while purse.left:
            if self.preemptions > before or not self.admit():
                break
            purse.buy(self.running[-1])
        return purse.bought
        ### END SOLUTION


class Engine:
    def step(self):
        ### BEGIN SOLUTION
        plan = list(self.scheduler.schedule().items())
        everybody = [Served(self.sequences[number], tokens) for number, tokens in plan]
        chunks = [self.chunk(number, tokens) for number, tokens in reversed(plan)]
        logits = self.runner.forward(chunks) if chunks else None
        for served in everybody:
            sequence = served.sequence
            sequence.num_computed_tokens = sequence.num_computed_tokens + served.tokens
            served.has_caught_up = sequence.num_computed_tokens >= len(sequence.ids)
        for served in everybody:
            sequence, done = served.sequence, served.sequence.num_computed_tokens
            self.scheduler.manager.publish(sequence.number, sequence.ids[:done], done)
        self.trace += [[served.line() for served in everybody]]
        for sequence in (served.sequence for served in everybody if served.has_caught_up):
            chosen = self.choose(sequence, logits[sequence.number])
            self.gain(sequence, chosen)
        ### END SOLUTION
