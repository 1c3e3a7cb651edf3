"""Lab 5 in another style: ranks, logarithms, plain lists, and a table of filters."""

import heapq
import math
from dataclasses import astuple
from functools import reduce


def only(logits, chosen):
    """The chosen logits, and -inf for the others."""
    return torch.where(chosen, logits, torch.full_like(logits, -math.inf))


def ranks(logits):
    """The place of each logit among those of its row, 0 for the largest."""
    return logits.argsort(dim=-1, descending=True).argsort(dim=-1)


def apply_temperature(logits, temperature):
    ### BEGIN SOLUTION
    match temperature:
        case 0:
            best = torch.stack([row.argmax() for row in logits]).unsqueeze(1)
            return only(logits, torch.arange(logits.size(1)) == best)
        case _:
            return logits.mul(1 / temperature)
    ### END SOLUTION


def apply_top_k(logits, k):
    ### BEGIN SOLUTION
    return only(logits, ranks(logits) < k)
    ### END SOLUTION


def apply_top_p(logits, p):
    ### BEGIN SOLUTION
    rows = []
    for row in logits:
        shares = torch.exp(row - torch.logsumexp(row, dim=0))
        stay = torch.zeros_like(row, dtype=torch.bool)
        together = 0.0
        for token in shares.argsort(descending=True).tolist():
            if together >= p:
                break
            stay[token] = True
            together += shares[token].item()
        rows.append(only(row, stay))
    return torch.stack(rows)
    ### END SOLUTION


def apply_min_p(logits, min_p):
    ### BEGIN SOLUTION
    ratio = torch.exp(logits - logits.amax(dim=1, keepdim=True))  # to the likeliest
    return only(logits, ratio >= min_p)
    ### END SOLUTION


def apply_repetition_penalty(logits, ids, penalty):
    ### BEGIN SOLUTION
    changed = logits.clone()
    for row, text in zip(changed, ids.tolist(), strict=True):
        for token in {*text}:
            row[token] = row[token] / penalty if row[token] > 0 else row[token] * penalty
    return changed
    ### END SOLUTION


def next_token_probs(logits, ids, params):
    ### BEGIN SOLUTION
    temperature, k, p, min_p, penalty = astuple(params)
    filters = (
        (penalty != 1, lambda rows: apply_repetition_penalty(rows, ids, penalty)),
        (True, lambda rows: apply_temperature(rows, temperature)),
        (k is not None, lambda rows: apply_top_k(rows, k)),
        (p != 1, lambda rows: apply_top_p(rows, p)),
        (min_p != 0, lambda rows: apply_min_p(rows, min_p)),
    )
    wanted = (function for is_wanted, function in filters if is_wanted)
    left = reduce(lambda rows, function: function(rows), wanted, logits)
    return left.log_softmax(dim=1).exp()
    ### END SOLUTION


def draw(probs, uniforms):
    ### BEGIN SOLUTION
    tokens = []
    for row, uniform in zip(probs, uniforms, strict=True):
        ends = torch.cumsum(row, dim=0)
        place = (uniform * ends[-1]).to(ends).reshape(1)
        tokens.append(torch.searchsorted(ends, place, right=True))
    return torch.cat(tokens)
    ### END SOLUTION


def sample(logits, ids, params, generators):
    ### BEGIN SOLUTION
    uniforms = torch.empty(len(generators))
    for row, generator in enumerate(generators):
        uniforms[row] = torch.rand((), generator=generator)
    return draw(probs=next_token_probs(logits, ids, params), uniforms=uniforms)
    ### END SOLUTION


def stop_at(pieces, stops):
    ### BEGIN SOLUTION
    held = ""
    for piece in pieces:
        held = f"{held}{piece}"
        if places := [place for place in map(held.find, stops) if place != -1]:
            yield held[: min(places)]
            return
        rests = enumerate(held[start:] for start in range(len(held)))
        begun = (start for start, rest in rests if any(stop.startswith(rest) for stop in stops))
        cut = next(begun, len(held))
        if cut > 0:
            yield held[:cut]
        held = held[cut:]
    if held:
        yield held
    ### END SOLUTION


def best_continuations(scores, logits, count):
    ### BEGIN SOLUTION
    log_probs = (logits - logits.logsumexp(dim=1, keepdim=True)).tolist()
    candidates = (
        Candidate(score=score + log_prob, parent=beam, token=token)
        for beam, (score, row) in enumerate(zip(scores.tolist(), log_probs, strict=True))
        for token, log_prob in enumerate(row)
    )
    return heapq.nlargest(count, candidates, key=lambda candidate: candidate.score)
    ### END SOLUTION


class BeamSearch:
    def step(self):
        candidates = self.candidates()
        ### BEGIN SOLUTION
        ends = [candidate.token == self.eos_token_id for candidate in candidates]
        for candidate, is_end in zip(candidates[: self.width], ends, strict=False):
            if is_end:
                self.finish(self.extended(candidate))
        go_on = [c for c, is_end in zip(candidates, ends, strict=True) if not is_end][: self.width]
        self.beams = list(map(self.extended, go_on))
        if self.is_done():
            return
        _, parents, tokens = zip(*go_on, strict=True)
        self.rows.become(list(parents))
        self.rows.append(list(tokens))
        ### END SOLUTION
