"""Lab 17 in another style: masks, loops over experts and ranks, plain lists."""

from itertools import groupby


def tokens_and_slots(chosen, expert):
    """The tokens that chose an expert, and in which slot."""
    return torch.where(chosen == expert)


def route(logits, k, renormalize):
    require_k(k, logits.shape[1])
    ### BEGIN SOLUTION
    exponents = torch.exp(logits - logits.max(dim=1, keepdim=True).values)
    probs = exponents / exponents.sum(dim=1)[:, None]
    chosen = torch.argsort(logits, dim=1, descending=True)[:, 0:k]
    weights = torch.take_along_dim(probs, chosen, dim=1)
    total = weights.sum(dim=1) if renormalize else torch.ones_like(weights[:, 0])
    return weights / total[:, None], chosen
    ### END SOLUTION


def dispatch(chosen, experts):
    require_chosen(chosen, experts)
    ### BEGIN SOLUTION
    choices = [expert for row in chosen.tolist() for expert in row]
    order = sorted(range(len(choices)), key=choices.__getitem__)
    counts = [choices.count(expert) for expert in range(experts)]
    return torch.tensor(order, dtype=torch.long), torch.tensor(counts)
    ### END SOLUTION


def moe_forward(hidden, weights, chosen, experts):
    ### BEGIN SOLUTION
    result = torch.zeros_like(hidden)
    for number, expert in enumerate(experts):
        tokens, slots = tokens_and_slots(chosen, number)
        result.index_add_(0, tokens, expert(hidden[tokens]) * weights[tokens, slots].unsqueeze(1))
    return result
    ### END SOLUTION


def balance_loss(probs, chosen, real):
    require_real(real)
    ### BEGIN SOLUTION
    experts, mask = probs.size(1), real.to(probs.dtype)
    loss = probs.new_zeros(())
    for expert in range(experts):
        share = ((chosen == expert) & real[:, None]).sum() / (mask.sum() * chosen.size(1))
        loss = loss + share * (probs[:, expert] @ mask) / mask.sum()
    return loss * experts
    ### END SOLUTION


def keep(chosen, experts, capacity):
    require_capacity(capacity)
    require_chosen(chosen, experts)
    ### BEGIN SOLUTION
    room = [capacity for _ in range(experts)]
    kept = torch.full(chosen.shape, False)
    for slot in range(chosen.shape[1]):
        for token in range(chosen.shape[0]):
            expert = int(chosen[token, slot])
            if room[expert] > 0:
                room[expert] -= 1
                kept[token, slot] = True
    return kept
    ### END SOLUTION


def split_mlp(w_in, b_in, w_out, expert_of, experts):
    require_equal_parts(expert_of, experts)
    ### BEGIN SOLUTION
    ins, biases, outs = [], [], []
    for expert in range(experts):
        own = expert_of == expert
        ins.append(w_in[:, own].flip(1))
        biases.append(b_in[own].flip(0))
        outs.append(w_out[own].flip(0))
    return torch.stack(ins), torch.stack(biases), torch.stack(outs)
    ### END SOLUTION


def exchange(hidden, weights, chosen, owner, local, group):
    require_owners(owner, group.size)
    ### BEGIN SOLUTION
    d, k = hidden.shape[1], chosen.shape[1]
    packed = torch.cat([hidden, weights, chosen.to(hidden.dtype)], dim=1)
    wanted = [(owner[chosen] == rank).sum(dim=1) > 0 for rank in range(group.size)]
    arrived = group.all_to_all([packed[mask] for mask in wanted])
    rows, shares, experts = torch.cat(arrived).split([d, k, k], dim=1)
    made, start, answers = local(rows, shares, experts.long()), 0, []
    for part in arrived:
        answers.append(made[start : start + len(part)])
        start += len(part)
    result = torch.zeros(len(hidden), d, dtype=hidden.dtype)
    for mask, answer in zip(wanted, group.all_to_all(answers), strict=True):
        result[mask] = result[mask] + answer
    return result
    ### END SOLUTION


def hops(routes, owner):
    ### BEGIN SOLUTION
    total = 0
    for route in routes.tolist():
        ranks = [int(owner[layer, expert]) for layer, expert in enumerate(route)]
        total += len([*groupby(ranks)]) - 1
    return total
    ### END SOLUTION
