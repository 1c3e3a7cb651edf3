"""Texts of an expression: whether one belongs to it, and random ones."""

import math
import random

from solutions.constrained import derivative
from solutions.grammars.regex import AnyOf, Counted, Either, Regex, Star, Then


def fits(regex: Regex, text: bytes) -> bool:
    for byte in text:
        regex = derivative(regex, byte)
    return regex.has_empty


def random_text(regex: Regex, seed: int, steps: int = 40) -> str:
    """Return a text of the expression. After some steps it goes on to the nearest end."""
    draw, shortest, text = random.Random(seed), Shortest(), b""
    while not regex.has_empty or (steps > 0 and first_bytes(regex) and draw.random() < 0.8):
        limit = shortest.of(regex) if steps <= 0 else math.inf
        options = sorted(first_bytes(regex))
        draw.shuffle(options)
        ways = ((byte, derivative(regex, byte)) for byte in options)
        byte, regex = next((byte, after) for byte, after in ways if shortest.of(after) < limit)
        text, steps = text + bytes([byte]), steps - 1
    return text.decode()


def first_bytes(regex: Regex) -> set[int]:
    """Return the bytes that its texts begin with."""
    match regex:
        case AnyOf(allowed):
            return {*allowed}
        case Then(first, second):
            return first_bytes(first) | (first_bytes(second) if first.has_empty else set())
        case Either(options):
            return {byte for option in options for byte in first_bytes(option)}
        case Star(body):
            return first_bytes(body)
    return set()


class Shortest:
    """Knows how many bytes the shortest text of an expression has; infinitely many: it has none."""

    def __init__(self) -> None:
        self.known: dict[Regex, float] = {}

    def of(self, regex: Regex) -> float:
        if regex not in self.known:
            self.learn(regex)
        return self.known[regex]

    def learn(self, regex: Regex) -> None:
        """An expression may hold itself: so repeat until no length gets shorter."""
        parts, has_changed = [regex], True
        for part in parts:  # which grows meanwhile
            self.known[part] = math.inf
            parts += [inner for inner in dict.fromkeys(part.inner) if inner not in self.known]
        while has_changed:
            lengths = {part: self.length(part) for part in reversed(parts)}
            has_changed = any(length < self.known[part] for part, length in lengths.items())
            self.known |= lengths

    def length(self, regex: Regex) -> float:
        if regex.has_empty:
            return 0
        match regex:
            case AnyOf(allowed):
                return 1 if allowed else math.inf
            case Then(first, second):
                return self.known[first] + self.known[second]
            case Either() if isinstance(regex.given, Counted):
                return regex.given.least * self.known[regex.given.body]
        return min(self.known[inner] for inner in regex.inner)
