"""Lab 6 in another style: early returns, a text that grows in place, a series in closed form."""

from itertools import takewhile


def agreeing(drafts, choices):
    """How many drafts agree with the choices, up to the first that doesn't."""
    both = zip(drafts, choices, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both))


def drawn(probs, uniform):
    return draw(probs.reshape(1, -1), torch.tensor([uniform])).item()


def verify_greedy(choices, drafts):
    ### BEGIN SOLUTION
    return (accepted := agreeing(drafts, choices)), choices[accepted]
    ### END SOLUTION


def residual(target_probs, draft_probs):
    ### BEGIN SOLUTION
    beyond = torch.where(target_probs > draft_probs, target_probs - draft_probs, 0)
    total = torch.einsum("v->", beyond)
    if float(total) == 0.0:
        return target_probs.clone()
    return beyond.div(total)
    ### END SOLUTION


def verify(target_probs, draft_probs, drafts, uniforms):
    ### BEGIN SOLUTION
    *judging, drawing = uniforms.tolist()
    places = zip(target_probs, draft_probs, drafts, judging, strict=False)
    for accepted, (target, draft, token, uniform) in enumerate(places):
        if uniform >= min(1.0, target[token].item() / draft[token].item()):
            return accepted, drawn(residual(target, draft), drawing)
    return len(drafts), drawn(target_probs[len(drafts)], drawing)
    ### END SOLUTION


class ModelDrafter:
    def propose(self, ids, k, params, generator):
        text, probs = list(ids), []
        ### BEGIN SOLUTION
        while len(probs) < k:
            *_, newest = new_logits(self.model, text, self.kv_cache)
            so_far = torch.tensor(text).reshape(1, -1)
            row = next_token_probs(newest.reshape(1, -1), so_far, params)
            uniform = torch.rand(1, generator=generator)
            text.append(draw(row, uniform).item())
            probs.append(row)
        ### END SOLUTION
        vocab = self.model.config.vocab_size
        return text[len(ids) :], torch.cat(probs) if probs else torch.empty(0, vocab)


def ngram_draft(ids, k, longest=3):
    ### BEGIN SOLUTION
    text = tuple(ids)
    sizes = range(1, min(longest, len(text) - 1) + 1)
    places = {
        text[end - size : end]: end  # the latest one stays
        for end in range(1, len(text))
        for size in sizes
        if size <= end
    }
    known = [places.get(text[-size:]) for size in sizes]
    for end in filter(None, reversed(known)):
        period = len(text) - end
        return [text[end + place % period] for place in range(k)]
    return []
    ### END SOLUTION


def generate_speculative(
    target, drafter, prompt, max_new_tokens, k, params, generator=None, eos_token_id=None
):
    ids, end = list(prompt), end_of(target.config, prompt, max_new_tokens)
    kv_cache, rounds = new_cache(target, end), []
    ### BEGIN SOLUTION
    while len(ids) < end:
        room = end - len(ids) - 1  # the last token of a round is the target's own
        drafts, draft_probs = drafter.propose([*ids], min(room, k), params, generator)
        drafted = ids + list(drafts)
        logits = new_logits(target, drafted, kv_cache)[-1 - len(drafts) :]
        target_probs = next_token_probs(logits, prefixes(drafted, logits), params)
        uniforms = torch.rand(len(drafts) + 1, generator=generator)
        accepted, token = verify(target_probs, draft_probs, drafts, uniforms)
        new = []
        for chosen in [*drafts[:accepted], token]:
            new.append(chosen)
            if chosen == eos_token_id:
                end = len(ids) + len(new)
                break
        ids += new
        rounds += [Round(drafts, accepted, new)]
        for cache in (kv_cache, drafter):
            cache.truncate(len(ids) - 1)
    ### END SOLUTION
    return Speculated(ids, rounds)


def expected_tokens(acceptance, k):
    ### BEGIN SOLUTION
    if acceptance == 1:
        return k + 1
    return (1 - acceptance ** (k + 1)) / (1 - acceptance)
    ### END SOLUTION


def speed_up(acceptance, k, draft_cost, verify_cost):
    ### BEGIN SOLUTION
    cost_of_a_round = sum([draft_cost] * k, start=verify_cost)
    return expected_tokens(acceptance=acceptance, k=k) / cost_of_a_round
    ### END SOLUTION
