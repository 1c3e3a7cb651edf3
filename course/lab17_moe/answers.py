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
from tests.common.attempts import right, wrong, wrong_result

wrong_result(
    route,
    lambda both: both[0],
    "route returns two tensors, the weights and the numbers of the experts",
)
wrong_result(route, lambda both: both[::-1], "The tensor of experts holds floats")
wrong(route, "has the right numbers in torch.float32")(
    lambda logits, *more: route(logits.float(), *more)
)


wrong_result(dispatch, lambda both: (both[0], [*both[1]]), "The tensor of counts")
wrong_result(moe_forward, torch.Tensor.float, "dtype")
wrong_result(
    split_mlp,
    lambda parts: (*parts[:2], parts[2].flip(1)),
    "don't have their neurons in the same order",
)


@wrong(moe_forward, "An expert takes [rows, 3]; it was given [3]")
def row_by_row(hidden, weights, chosen, experts):
    both = zip(hidden, weights, chosen, strict=True)
    return torch.stack([sum(w * experts[e](row) for w, e in zip(ws, es)) for row, ws, es in both])  # noqa: B905


@wrong(moe_forward, "Expert 0 is called 2 times, with 2 rows; expected")
def with_what_is_left_for_expert_0(hidden, weights, chosen, experts):
    experts[0](hidden)
    return moe_forward(hidden, weights, chosen, experts)


wrong_result(balance_loss, torch.Tensor.item, "What it returned is the number")
wrong_result(balance_loss, lambda loss: loss[None], "of shape [1]")


@wrong(balance_loss, "The gradient with respect to `probs`")
def with_a_soft_count(probs, chosen, real):
    """The value is right, but f has a gradient as well."""
    soft = probs[real].mean(dim=0)
    shares = F.one_hot(chosen[real], probs.shape[1]).to(probs.dtype).mean(dim=(0, 1))
    return probs.shape[1] * ((shares + soft - soft.detach()) * soft).sum()


wrong_result(keep, torch.Tensor.double, "The mask holds floats; expected True and False")


@wrong(split_mlp, "share memory with the MLP")
def with_views(w_in, b_in, w_out, expert_of, experts):
    """It copies only what isn't in order."""
    if (expert_of.diff() < 0).any():
        return split_mlp(w_in, b_in, w_out, expert_of, experts)
    parts = w_in.unflatten(1, (experts, -1)).transpose(0, 1)
    return parts, b_in.unflatten(0, (experts, -1)), w_out.unflatten(0, (experts, -1))


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


@wrong(hops, "The number is a tensor; expected: it is no tensor.")
def as_a_tensor(routes, owner):
    return owner.T.gather(0, routes).diff(dim=1).ne(0).sum()


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
