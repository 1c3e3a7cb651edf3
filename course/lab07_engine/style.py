"""Lab 7 in another style: a purse for the budget, running requests by index; a trace in place."""

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
        chunks = [self.chunk(number, tokens) for number, tokens in reversed(plan)]
        logits = self.runner.forward(chunks) if chunks else None
        self.trace += [[]]
        for number, tokens in plan:
            sequence = self.sequences[number]
            sequence.num_computed_tokens = done = sequence.num_computed_tokens + tokens
            self.scheduler.manager.publish(number, sequence.ids[:done], done)
            has_caught_up = done >= len(sequence.ids)
            self.trace[-1].append((number, tokens, has_caught_up))
            if has_caught_up:
                self.gain(sequence, self.choose(sequence, logits[number]))
        ### END SOLUTION
