"""Lab 25 in another style: comprehensions instead of loops, loops instead of comprehensions."""


def closing(whole, end):
    ### BEGIN SOLUTION
    edges = []
    for state, out in enumerate(whole.edges):
        if state < len(end):
            out = {byte: after for byte, after in out.items() if byte == end[state]}
        edges.append(out)
    return Automaton(edges, frozenset(whole.accepting))
    ### END SOLUTION


class Budget:
    def allowed(self, state, /):
        ### BEGIN SOLUTION
        if self.most - state[1] > 0:
            return self.free.allowed(state[0])
        return self.closing.allowed(state[0])
        ### END SOLUTION

    def advance(self, state, token, /):
        ### BEGIN SOLUTION
        inner, spent = state
        if inner < self.thinking:
            spent += 1
        return self.free.advance(inner, token), spent
        ### END SOLUTION


class ThoughtStream:
    def push(self, piece):
        self.held += piece
        ### BEGIN SOLUTION
        texts = {}
        if not self.is_thinking:
            texts["content"], self.held = self.held, ""
        elif self.end in self.held:
            self.is_thinking = False
            texts["reasoning_content"], texts["content"] = self.held.split(self.end, 1)
            self.held = ""
        else:
            sizes = [n for n in range(len(self.end)) if self.held.endswith(self.end[:n])]
            cut = len(self.held) - max(sizes)
            texts["reasoning_content"], self.held = self.held[:cut], self.held[cut:]
        return [{name: text} for name, text in texts.items() if text]
        ### END SOLUTION


def majority(answers, logprobs, weighted=False):
    ### BEGIN SOLUTION
    samples = {}
    for answer, logprob in zip(answers, logprobs, strict=True):
        samples.setdefault(answer, []).append(logprob)
    samples.pop(None, None)
    if not samples:
        return None

    def weight(answer):
        highest = max(samples[answer])
        return highest + math.log(sum(math.exp(one - highest) for one in samples[answer]))

    if weighted:
        return max(samples, key=weight)
    most = max(map(len, samples.values()))
    return max((answer for answer, its in samples.items() if len(its) == most), key=weight)
    ### END SOLUTION


def best_of(texts, logprobs, by):
    ### BEGIN SOLUTION
    best, highest = 0, None
    for number, (text, its) in enumerate(zip(texts, logprobs, strict=True)):
        score = sum(its)
        if by == "mean":
            score /= len(its)
        elif by == "bytes":
            score /= len(text.encode("utf-8"))
        if highest is None or score > highest:
            best, highest = number, score
    return best
    ### END SOLUTION


def forked(engine, submit, n):
    ### BEGIN SOLUTION
    numbers = [submit(0)]
    while True:
        engine.step()
        if (numbers[0], True) in {(number, up) for number, _, up in engine.trace[-1]}:
            break
    for seed in range(1, n):
        numbers.append(submit(seed))
    return numbers
    ### END SOLUTION


def agreed(votes, left):
    ### BEGIN SOLUTION
    leader = max(votes, key=votes.get, default=None)
    others = [count for answer, count in votes.items() if answer != leader]
    return votes.get(leader, 0) > max(others, default=0) + left
    ### END SOLUTION


def without_thoughts(messages):
    ### BEGIN SOLUTION
    kept, is_old = [], False
    for message in reversed(messages):
        gone = "reasoning_content" if is_old else ""
        kept.insert(0, {key: value for key, value in message.items() if key != gone})
        is_old = is_old or message["role"] == "user"
    return kept
    ### END SOLUTION
