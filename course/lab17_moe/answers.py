"""Answers to lab 17's exercises: routing, experts, balance, capacity, a split MLP, ranks."""

import torch
import torch.nn.functional as F

from solutions.moe import (
    balance_loss,
    dispatch,
    exchange,
    hops,
    keep,
    moe_forward,
    require_owners,
    route,
    split_mlp,
)
from tests.common.attempts import right, wrong

# ------------------------------------------------------------------------------------- the router


@right(route)
def in_the_order_of_mixtral(logits, k, renormalize):
    """A softmax over the chosen ones only, which is right where the weights add up to 1."""
    best, chosen = logits.topk(k, dim=-1)
    others = best if renormalize else logits
    return (best - others.logsumexp(dim=-1, keepdim=True)).exp(), chosen


wrong(route, "route returns two tensors, the weights and the numbers of the experts")(
    lambda *given: route(*given)[0]
)
wrong(route, "The tensor of experts holds floats")(lambda *given: route(*given)[::-1])
wrong(route, "has the right numbers in torch.float32")(
    lambda logits, *more: route(logits.float(), *more)
)


@wrong(route, "`logits` is no longer what it was before the call")
def in_place(logits, k, renormalize):
    logits -= logits.amax(dim=-1, keepdim=True)
    return route(logits, k, renormalize)


wrong(dispatch, "The tensor of counts")(
    lambda chosen, experts: (dispatch(chosen, experts)[0], [*dispatch(chosen, experts)[1]])
)
right(dispatch)(
    lambda chosen, experts: (
        (chosen.view(-1) == torch.arange(experts)[:, None]).nonzero()[:, 1],
        F.one_hot(chosen.view(-1), experts).sum(dim=0),
    )
)


# ------------------------------------------------------------------------------------ the experts


@right(moe_forward)
def in_flat_rows(hidden, weights, chosen, experts):
    order, counts = dispatch(chosen, len(experts))
    parts = hidden.repeat_interleave(chosen.shape[1], dim=0)[order].split(counts.tolist())
    made = torch.cat([expert(part) for expert, part in zip(experts, parts, strict=True)])
    return (
        (made[order.argsort()] * weights.view(-1, 1))
        .view(*chosen.shape, hidden.shape[1])
        .sum(dim=1)
    )


@wrong(moe_forward, "An expert takes [rows, 3]; it was given [3]")
def row_by_row(hidden, weights, chosen, experts):
    both = zip(hidden, weights, chosen, strict=True)
    return torch.stack([sum(w * experts[e](row) for w, e in zip(ws, es)) for row, ws, es in both])  # noqa: B905


@wrong(moe_forward, "dtype")
def in_the_default_dtype(hidden, weights, chosen, experts):
    outputs = torch.zeros(hidden.shape)
    outputs += moe_forward(hidden, weights, chosen, experts)
    return outputs


@wrong(moe_forward, "Expert 0 is called 2 times, with 2 rows; expected")
def with_what_is_left_for_expert_0(hidden, weights, chosen, experts):
    experts[0](hidden)
    return moe_forward(hidden, weights, chosen, experts)


# -------------------------------------------------------------------------- balance and capacity


wrong(balance_loss, "What it returned is the number")(lambda *given: balance_loss(*given).item())
wrong(balance_loss, "of shape [1]")(lambda *given: balance_loss(*given)[None])


@wrong(balance_loss, "The gradient with respect to `probs`")
def with_a_soft_count(probs, chosen, real):
    """The value is right, but f has a gradient as well."""
    soft = probs[real].mean(dim=0)
    shares = F.one_hot(chosen[real], probs.shape[1]).to(probs.dtype).mean(dim=(0, 1))
    return probs.shape[1] * ((shares + soft - soft.detach()) * soft).sum()


wrong(keep, "The mask holds floats; expected True and False")(lambda *given: keep(*given).double())


# ------------------------------------------------------------------------------------ a split MLP


@wrong(split_mlp, "share memory with the MLP")
def with_views(w_in, b_in, w_out, expert_of, experts):
    """It copies only what isn't in order."""
    if (expert_of.diff() < 0).any():
        return split_mlp(w_in, b_in, w_out, expert_of, experts)
    parts = w_in.unflatten(1, (experts, -1)).transpose(0, 1)
    return parts, b_in.unflatten(0, (experts, -1)), w_out.unflatten(0, (experts, -1))


@wrong(split_mlp, "don't have their neurons in the same order")
def with_another_order_in_w_out(*given):
    w_in, b_in, w_out = split_mlp(*given)
    return w_in, b_in, w_out.flip(1)


# ---------------------------------------------------------------------------------- several ranks


@right(exchange)
def with_counts_first(hidden, weights, chosen, owner, local, group):
    require_owners(owner, group.size)
    own = [(owner[chosen] == rank).any(dim=1) for rank in range(group.size)]
    counts = [int(count) for count in group.all_to_all([mask.sum() for mask in own])]
    came = [
        torch.cat(group.all_to_all([part[mask] for mask in own]))
        for part in (hidden, weights, chosen)
    ]
    back = torch.cat(group.all_to_all(local(*came).split(counts)))
    places = torch.cat([mask.nonzero()[:, 0] for mask in own])
    return torch.zeros_like(hidden).index_add(0, places, back)


@wrong(exchange, "It raised Stuck: Rank 0 waits in send", "each send needs a recv")
def that_sends_first(hidden, weights, chosen, owner, local, group):
    for other in range(group.size):
        if other != group.rank:
            group.send(hidden, other)
    return exchange(hidden, weights, chosen, owner, local, group)


@wrong(exchange, "It raised Stuck", "the same collective calls, in the same order")
def in_another_order(hidden, weights, chosen, owner, local, group):
    if group.rank:
        group.all_gather(hidden[:0])
    return exchange(hidden, weights, chosen, owner, local, group)


@wrong(exchange, "What it returned on rank 0", "got 0, expected")
def for_experts_of_this_rank_only(hidden, weights, chosen, owner, local, group):
    return local(hidden, weights, chosen)


@right(hops)
def as_a_tensor(routes, owner):
    return owner.T.gather(0, routes).diff(dim=1).ne(0).sum()


wrong(hops)(lambda routes, owner: hops(routes, owner) / len(routes.flatten()))


# ------------------------------------------------------------- mutants that do the same by right

MASK, ROWS = "(ranks == rank).any(dim=1).nonzero()", "hidden, weights and chosen have equal lengths"
EQUIVALENT = {
    "moe.route": {
        "logits.softmax(dim=-1).topk(k, dim=-1) -> logits.softmax(dim=-1).topk(k)": (
            "topk takes the last dimension by default"
        ),
    },
    "moe.exchange": {
        f"{MASK}[:, 0] -> {MASK}[:, -1]": "there is one column",
        "came[0] -> came[1]": ROWS,
        "came[0] -> came[-1]": ROWS,
    },
}
