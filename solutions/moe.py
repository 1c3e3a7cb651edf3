"""Lab 17: mixture of experts. Many MLPs instead of one, and a router that sends tokens to a few.

A dense MLP multiplies each token by all of its weights. A layer of experts has more weights, and a
token is multiplied by those of k experts only. The router, a small linear layer, scores the experts
for each token. What this saves per token comes back in other places: experts get unequal numbers of
tokens, a batch touches nearly all experts, and tokens travel if the experts are on several ranks.

An assignment is one of the k choices of one token: number token * k + slot. Slot 0 is the first
choice, slot 1 the second.

Sources: Shazeer et al., "Outrageously large neural networks", ICLR 2017; Lepikhin et al., "GShard",
ICLR 2021 (capacity, exchange between ranks); Fedus et al., "Switch transformers", JMLR 2022
(balance loss); Zhang et al., "MoEfication", ACL Findings 2022 (splitting an MLP); Jiang et al.,
"Mixtral of experts", 2024; Yao et al., "ExFlow", IPDPS 2024 (placing experts by affinity).
"""

import copy
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gpt import GPTLMHead, Linear
from solutions.experts.layers import Choose, Expert, ExpertMLP, MoE, blocks_of
from solutions.experts.splitting import activations, cluster, linear_router
from solutions.ranks.group import Group

Model = TypeVar("Model", bound=GPTLMHead)

# ------------------------------------------------------------------------------ the router


def route(
    logits: Float[Tensor, "tokens experts"], k: int, renormalize: bool
) -> tuple[Float[Tensor, "tokens k"], Int[Tensor, "tokens k"]]:
    """Return the weights and the numbers of each token's k experts, the likeliest first.

    The probabilities of a token are the softmax of its logits over all experts. Its experts are the
    k with the largest probabilities, and these are the weights. With `renormalize` they are divided
    by their sum, so a token's weights add up to 1. There may be no tokens. `logits` isn't changed.
    Raises ValueError if k is below 1 or above the number of experts. Source: Jiang et al., section
    2.1.
    """
    require_k(k, logits.shape[1])
    ### BEGIN SOLUTION
    weights, chosen = logits.softmax(dim=-1).topk(k, dim=-1)
    if renormalize:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights, chosen
    ### END SOLUTION


def dispatch(
    chosen: Int[Tensor, "tokens k"], experts: int
) -> tuple[Int[Tensor, " assignments"], Int[Tensor, " experts"]]:
    """Return all assignments, sorted by expert, and how many each expert has.

    Assignment token * k + slot is `chosen[token, slot]`. The assignments of expert 0 come first,
    then those of expert 1, and so on; those of one expert are in ascending order. An expert without
    tokens has count 0, and there may be no tokens at all. `chosen` isn't changed. Raises ValueError
    for a number outside the experts.
    """
    require_chosen(chosen, experts)
    ### BEGIN SOLUTION
    expert_of = chosen.flatten()
    return expert_of.argsort(stable=True), expert_of.bincount(minlength=experts)
    ### END SOLUTION


def moe_forward(
    hidden: Float[Tensor, "tokens d"],
    weights: Float[Tensor, "tokens k"],
    chosen: Int[Tensor, "tokens k"],
    experts: Sequence[Expert],
) -> Float[Tensor, "tokens d"]:
    """Return for each token the sum of its k experts' outputs, each times its weight.

    An expert takes rows [n, d] and returns rows of the same shape. Call each expert at most once,
    with all of its rows together, and with no others: tokens * k rows in all. An expert without
    tokens may be left out, and there may be no tokens at all. A token's result doesn't depend on
    the other tokens. The arguments aren't changed.
    """
    ### BEGIN SOLUTION
    order, counts = dispatch(chosen, len(experts))
    outputs = hidden.new_empty(len(order), hidden.shape[1])  # a row for each assignment
    for expert, own in zip(experts, order.split(counts.tolist()), strict=True):
        if len(own):
            outputs[own] = expert(hidden[own // chosen.shape[1]])
    return (outputs.unflatten(0, chosen.shape) * weights[..., None]).sum(dim=1)
    ### END SOLUTION


# ------------------------------------------------------------------------- balance and capacity


def balance_loss(
    probs: Float[Tensor, "tokens experts"],
    chosen: Int[Tensor, "tokens k"],
    real: Bool[Tensor, " tokens"],
) -> Float[Tensor, ""]:
    """Return the number of experts times the sum over all experts of f * P.

    f: the share of the assignments that go to this expert. P: the mean of its probability over the
    tokens, whether it was chosen or not. Tokens that aren't `real` are padding and count in
    neither. The loss is 1 if all experts have equal shares, and grows if the experts with many
    assignments have large probabilities, too. Its gradient reaches the router through P, because f
    is a count. The arguments aren't changed. Raises ValueError if no token is real.
    Source: Fedus et al., section 2.2.
    """
    require_real(real)
    ### BEGIN SOLUTION
    experts = probs.shape[1]
    shares = F.one_hot(chosen[real], experts).to(probs.dtype).mean(dim=(0, 1))
    return experts * (shares * probs[real].mean(dim=0)).sum()
    ### END SOLUTION


def capacity(tokens: int, k: int, experts: int, factor: float) -> int:
    """Return how many assignments an expert takes: `factor` times its equal share, rounded up."""
    return math.ceil(factor * tokens * k / experts)


def keep(chosen: Int[Tensor, "tokens k"], experts: int, capacity: int) -> Bool[Tensor, "tokens k"]:
    """Return which assignments are kept if each expert takes at most `capacity`.

    All first choices come before all second choices, these before all third ones, and in each of
    these groups earlier tokens come first. In this order, each expert takes assignments until it is
    full. The others are dropped. There may be no tokens. `chosen` isn't changed. Raises ValueError
    if the capacity is below 0, or for a number outside the experts. Source: Lepikhin et al.,
    algorithm 1.
    """
    require_capacity(capacity)
    require_chosen(chosen, experts)
    ### BEGIN SOLUTION
    in_order = chosen.T.flatten()
    taken = F.one_hot(in_order, experts).cumsum(dim=0)  # after each assignment
    place = taken.gather(1, in_order[:, None])  # 1 for the first that asks for this expert
    return (place <= capacity).view(chosen.T.shape).T
    ### END SOLUTION


def capped(choose: Choose, factor: float) -> Choose:
    """Return a `choose` whose experts have a capacity. A dropped assignment gets weight 0."""

    def choose_within(
        logits: Float[Tensor, "tokens experts"], k: int
    ) -> tuple[Float[Tensor, "tokens k"], Int[Tensor, "tokens k"]]:
        weights, chosen = choose(logits, k)
        tokens, experts = logits.shape
        kept = keep(chosen, experts, capacity(tokens, k, experts, factor))
        return weights * kept, chosen

    return choose_within


# ------------------------------------------------------------------- experts from a dense model


def mixed(logits: Float[Tensor, "tokens experts"], k: int) -> tuple[Tensor, Tensor]:
    """Choose as Mixtral does: the weights of a token add up to 1."""
    return route(logits, k, renormalize=True)


def upcycled(model: Model, copies: int, k: int, choose: Choose = mixed) -> Model:
    """Return a model whose layers have copies of their MLP as experts, and random routers.

    Training would make the copies different. Source: Komatsuzaki et al., "Sparse upcycling", ICLR
    2023.
    """
    made = copy.deepcopy(model)
    for block in blocks_of(made):
        router = Linear(model.config.n_embd, copies).to(block.mlp.c_fc.weight)
        experts = [copy.deepcopy(block.mlp) for _ in range(copies)]
        block.mlp = MoE(router, experts, k, choose, moe_forward)
    return made


def split_mlp(
    w_in: Float[Tensor, "d f"],
    b_in: Float[Tensor, " f"],
    w_out: Float[Tensor, "f d"],
    expert_of: Int[Tensor, " f"],
    experts: int,
) -> tuple[
    Float[Tensor, "experts d f/experts"],
    Float[Tensor, "experts f/experts"],
    Float[Tensor, "experts f/experts d"],
]:
    """Split the f neurons of an MLP into experts; return the experts' w_in, b_in and w_out.

    Neuron i is column i of w_in, number i of b_in and row i of w_out, and it goes to expert
    `expert_of[i]`. The order of the neurons inside an expert doesn't matter, but it is the same in
    all three. Then gelu(x @ w_in + b_in) @ w_out of all experts adds up to that of the MLP. The
    MLP's output bias belongs to no expert. The results are copies. Raises ValueError if the experts
    don't get equal numbers of neurons. Source: Zhang et al.
    """
    require_equal_parts(expert_of, experts)
    ### BEGIN SOLUTION
    neurons = expert_of.argsort().view(experts, -1)
    return w_in[:, neurons].transpose(0, 1).contiguous(), b_in[neurons], w_out[neurons]
    ### END SOLUTION


def summed(logits: Float[Tensor, "tokens experts"], k: int) -> tuple[Tensor, Tensor]:
    """Choose for the parts of a split MLP. They were one sum, so each weight is 1."""
    weights, chosen = route(logits, k, renormalize=False)
    return torch.ones_like(weights), chosen


@torch.no_grad()
def split(model: Model, experts: int, k: int, inputs: Sequence[Float[Tensor, "tokens d"]]) -> Model:
    """Return a model whose MLPs are split into experts, with a linear router in each layer.

    inputs: what each layer's MLP reads on some text. Neurons that are active together get into one
    expert. The router predicts how large the experts' outputs are.
    """
    made = copy.deepcopy(model)
    for block, rows in zip(blocks_of(made), inputs, strict=True):
        mlp = block.mlp
        expert_of = cluster(activations(mlp, rows), experts)
        weights = mlp.c_fc.weight, mlp.c_fc.bias, mlp.c_proj.weight
        parts = split_mlp(*weights, expert_of, experts)
        own = [ExpertMLP(*part) for part in zip(*parts, strict=True)]
        bias = mlp.c_proj.bias.detach()
        block.mlp = MoE(linear_router(own, rows), own, k, summed, moe_forward, bias)
    return made


# --------------------------------------------------------------------- experts on several ranks

# What a rank computes for rows, their weights and their experts: the sum over its own experts
Local = Callable[
    [Float[Tensor, "rows d"], Float[Tensor, "rows k"], Int[Tensor, "rows k"]],
    Float[Tensor, "rows d"],
]


def local_experts(rank: int, experts: Sequence[Expert], owner: Int[Tensor, " experts"]) -> Local:
    """Return what a rank computes. The experts of other ranks add zeros to its sum."""
    own = [e if owner[i] == rank else torch.zeros_like for i, e in enumerate(experts)]
    return lambda rows, weights, chosen: moe_forward(rows, weights, chosen, own)


def exchange(
    hidden: Float[Tensor, "tokens d"],
    weights: Float[Tensor, "tokens k"],
    chosen: Int[Tensor, "tokens k"],
    owner: Int[Tensor, " experts"],
    local: Local,
    group: Group,
) -> Float[Tensor, "tokens d"]:
    """Compute a layer of experts that are on several ranks; return the rows of this rank's tokens.

    hidden, weights, chosen: of the tokens of this rank. Ranks may have different numbers of tokens,
    or none. owner: the rank of each expert. local(rows, weights, chosen): the weighted sum over
    this rank's own experts; experts of other ranks add nothing. A token's row goes once to each
    rank that owns one or more of its experts, and one row comes back from there. Call `local` once,
    with the rows of all ranks together. All ranks make the same calls of `group`, also those that
    have nothing to send. The arguments aren't changed. Raises ValueError if an owner isn't a rank
    of the group. Source: Lepikhin et al., section 3.
    """
    require_owners(owner, group.size)
    ### BEGIN SOLUTION
    ranks = owner[chosen]
    tokens = [(ranks == rank).any(dim=1).nonzero()[:, 0] for rank in range(group.size)]
    came = [group.all_to_all([part[own] for own in tokens]) for part in (hidden, weights, chosen)]
    made = local(*(torch.cat(parts) for parts in came))
    back = group.all_to_all(made.split([len(rows) for rows in came[0]]))
    outputs = torch.zeros_like(hidden)
    for own, rows in zip(tokens, back, strict=True):
        outputs[own] += rows  # a token is in `own` once
    return outputs
    ### END SOLUTION


def hops(routes: Int[Tensor, "tokens layers"], owner: Int[Tensor, "layers experts"]) -> int:
    """Return how often a token goes to another rank between one layer and the next.

    routes: the expert of each token in each layer. owner: the rank of each layer's experts. Count
    over all tokens and all pairs of neighboring layers. The arguments aren't changed. Source: Yao
    et al.
    """
    ### BEGIN SOLUTION
    ranks = owner[torch.arange(len(owner)), routes]
    return int((ranks[:, 1:] != ranks[:, :-1]).sum())
    ### END SOLUTION


# -------------------------------------------------------------------------------- input checks


def require_k(k: int, experts: int) -> None:
    if not 1 <= k <= experts:
        raise ValueError(f"A token goes to 1 to {experts} experts, as many as there are; not {k}.")


def require_chosen(chosen: Int[Tensor, "tokens k"], experts: int) -> None:
    if chosen.numel() and not 0 <= int(chosen.min()) <= int(chosen.max()) < experts:
        raise ValueError(
            f"The experts are numbered 0 to {experts - 1}; `chosen` holds numbers from "
            f"{int(chosen.min())} to {int(chosen.max())}."
        )


def require_real(real: Bool[Tensor, " tokens"]) -> None:
    if not real.any():
        raise ValueError("All tokens are padding: a balance needs at least one real token.")


def require_capacity(capacity: int) -> None:
    if capacity < 0:
        raise ValueError(f"An expert takes 0 or more assignments, not {capacity}.")


def require_equal_parts(expert_of: Int[Tensor, " f"], experts: int) -> None:
    require_chosen(expert_of[:, None], experts)
    counts = expert_of.bincount(minlength=experts).tolist()
    if len(set(counts)) > 1:
        raise ValueError(
            f"The experts would get {counts} neurons. Their weights are stacked, so give each "
            "expert the same number."
        )


def require_owners(owner: Int[Tensor, " experts"], size: int) -> None:
    if not 0 <= int(owner.min()) <= int(owner.max()) < size:
        raise ValueError(
            f"The ranks are numbered 0 to {size - 1}; the owners are {owner.tolist()}. Give each "
            "expert to one of these ranks."
        )
