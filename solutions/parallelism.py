"""Lab 18: parallelism. One model on several processes, cut in four ways.

A process that computes a part of the work is a rank. Every rank runs the same code on its own part,
and the ranks exchange tensors through a group. Tensor parallelism cuts the weight matrices,
sequence parallelism the positions between them, pipeline parallelism the stack of blocks, and data
parallelism the batch. Each gives what one process gives. They differ in what a rank holds, and in
what it must send and how often.

Sources: Shoeybi et al., "Megatron-LM", 2019 (tensor); Korthikanti et al., "Reducing activation
recomputation in large transformer models", 2022 (sequence); Huang et al., "GPipe", 2019, and
Narayanan et al., "Efficient large-scale language model training on GPU clusters", 2021 (pipeline);
Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009 (the ring).
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from gpt import GPTConfig, GPTLMHead, require_ids, require_inputs
from solutions.ranks.group import Group, ring_bytes
from solutions.ranks.nano_batches import Operation, Run
from solutions.ranks.schedules import Order

# ------------------------------------------------------------------------------------- the ring


def ring_all_reduce(x: Float[Tensor, " n"], group: Group) -> Float[Tensor, " n"]:
    """Return the sum of every rank's `x`, with `send` and `recv` between neighbors only.

    The ranks form a ring: rank r sends to rank r + 1 and receives from rank r - 1, and the last
    rank sends to rank 0. Cut `x` into one part per rank (`tensor_split`; parts may be empty). In
    the first size - 1 steps each rank passes one part on and adds the one that comes in, so that
    each rank ends with one complete sum. In the next size - 1 steps the complete parts go around.
    Together the ranks send 2 * (size - 1) * n numbers. `send` returns only when its tensor has been
    received, so if all ranks send first, none goes on. `x` isn't changed. Source: Patarasuk and
    Yuan.
    """
    ### BEGIN SOLUTION
    rank, size = group.rank, group.size
    parts = list(x.tensor_split(size))
    for step in range(2 * (size - 1)):
        going, coming = (rank - step) % size, (rank - step - 1) % size
        if rank % 2 == 0:
            group.send(parts[going], (rank + 1) % size)
        received = group.recv(parts[coming], (rank - 1) % size)
        if rank % 2 == 1:
            group.send(parts[going], (rank + 1) % size)
        parts[coming] = received + parts[coming] if step < size - 1 else received
    return torch.cat(parts)
    ### END SOLUTION


# ------------------------------------------------------------------------- a rank's part of GPT-2


def shard(
    weights: Mapping[str, Tensor], rank: int, size: int, config: GPTConfig
) -> dict[str, Tensor]:
    """Return rank `rank`'s part of GPT-2's weights, under the same names.

    weights: the state_dict of a GPTModel ("wte.weight", "h.0.attn.c_attn.weight", ...). Linear
    weights are [in, out], and `c_attn` gives queries, keys and values side by side. Rank r gets the
    r-th of `size` equal, consecutive parts: of the heads, that is of the columns of the queries,
    of the keys and of the values of `c_attn`, each on its own, with their biases; of the columns of
    `c_fc` and its bias; of the rows of both `c_proj`; and of the rows of `wte`. All others are
    whole on every rank. What is cut is copied, so that the whole can be freed. `weights` isn't
    changed. Raises ValueError if the heads or the vocabulary don't divide by `size`. Source:
    Shoeybi et al., section 3.
    """
    require_divisible(config, rank, size)
    ### BEGIN SOLUTION
    part = {}
    for name, weight in weights.items():
        if ".c_attn." in name:
            qkv = weight.unflatten(-1, (3, -1))  # each of the three has all heads
            part[name] = qkv.chunk(size, dim=-1)[rank].flatten(-2).clone()
        elif ".c_fc." in name:
            part[name] = weight.chunk(size, dim=-1)[rank].clone()
        elif name.endswith("c_proj.weight") or name == "wte.weight":
            part[name] = weight.chunk(size, dim=0)[rank].clone()
        else:
            part[name] = weight
    return part
    ### END SOLUTION


# From queries, keys and values, [batch, heads, seq, head_dim] each, to what the queries attend to.
# A KV cache's `attend` is one once its layer is fixed.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def causal_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attend as gpt.py does, without a cache."""
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)


def attend_heads(
    projected: Float[Tensor, "batch seq 3*width"], head_dim: int, attend: Attend = causal_attention
) -> Float[Tensor, "batch seq width"]:
    """Attend with the heads that are in `projected`, however many they are."""
    heads = projected.unflatten(-1, (3, -1, head_dim)).permute(2, 0, 3, 1, 4)
    return attend(*heads).transpose(1, 2).flatten(2)


def layer_weights(part: Mapping[str, Tensor], layer: int) -> dict[str, Tensor]:
    """Return the weights of one block, named as in the block: "attn.c_attn.weight"."""
    prefix = f"h.{layer}."
    return {k.removeprefix(prefix): weight for k, weight in part.items() if k.startswith(prefix)}


def layer_norm(
    hidden: Float[Tensor, "batch seq n_embd"], own: Mapping[str, Tensor], name: str, eps: float
) -> Float[Tensor, "batch seq n_embd"]:
    """Normalize each position with the weights `name` ("ln_1"), which every rank holds whole."""
    return F.layer_norm(hidden, hidden.shape[-1:], own[f"{name}.weight"], own[f"{name}.bias"], eps)


def tensor_parallel_block(
    hidden: Float[Tensor, "batch seq n_embd"],
    part: Mapping[str, Tensor],
    layer: int,
    config: GPTConfig,
    group: Group,
    attend: Attend = causal_attention,
) -> Float[Tensor, "batch seq n_embd"]:
    """Do what block `layer` does, GPTBlock.forward, with this rank's part of its weights.

    part: what `shard` returns for this rank. attend: called once, with the queries, keys and values
    of this rank's heads, [batch, heads / size, seq, head_dim] each; pass it on to `attend_heads`.
    `hidden` is the same on every rank, and so is the result. Column layers, `c_attn` and `c_fc`,
    need no exchange. A row layer, `c_proj`, gives a partial sum on each rank: the result takes
    exactly two `all_reduce`, each of [batch, seq, n_embd]. A row layer's bias counts once. `hidden`
    isn't changed. Source: Shoeybi et al., section 3.
    """
    own, eps = layer_weights(part, layer), config.layer_norm_epsilon
    ### BEGIN SOLUTION
    normed = layer_norm(hidden, own, "ln_1", eps)
    projected = normed @ own["attn.c_attn.weight"] + own["attn.c_attn.bias"]
    attended = attend_heads(projected, config.head_dim, attend)
    summed = group.all_reduce(attended @ own["attn.c_proj.weight"])
    hidden = hidden + summed + own["attn.c_proj.bias"]
    normed = layer_norm(hidden, own, "ln_2", eps)
    inner = F.gelu(normed @ own["mlp.c_fc.weight"] + own["mlp.c_fc.bias"], approximate="tanh")
    summed = group.all_reduce(inner @ own["mlp.c_proj.weight"])
    return hidden + summed + own["mlp.c_proj.bias"]
    ### END SOLUTION


# ----------------------------------------------------------------------------- a cut vocabulary


def vocab_parallel_embedding(
    ids: Int[Tensor, "batch seq"], part: Float[Tensor, "vocab/size n_embd"], group: Group
) -> Float[Tensor, "batch seq n_embd"]:
    """Look up the embedding of each id, where each rank holds some rows of the table.

    part: this rank's rows. Rank r holds the ids from r * len(part) up to (r + 1) * len(part),
    exclusive. Every rank gets the same ids and returns the whole result: one `all_reduce`, to which
    a rank gives zeros for the ids that it doesn't hold. There is at least one id. `ids` and `part`
    aren't changed. Raises ValueError for an id outside the vocabulary.
    """
    require_ids("token id", ids, group.size * len(part), "Is it the right tokenizer?")
    ### BEGIN SOLUTION
    rows = ids - group.rank * len(part)
    absent = (rows < 0) | (rows >= len(part))
    found = part[rows.masked_fill(absent, 0)]
    return group.all_reduce(found.masked_fill(absent[..., None], 0))
    ### END SOLUTION


def vocab_parallel_logprob(
    local: Float[Tensor, "rows vocab/size"], targets: Int[Tensor, " rows"], group: Group
) -> Float[Tensor, " rows"]:
    """Return the log-probability of each row's target, where each rank holds some of the logits.

    local: this rank's logits; rank r has those of the ids from r * width up to (r + 1) * width,
    exclusive, where width is local.shape[1]. targets: ids of the whole vocabulary, the same on
    every rank, as is the result. The logits are never gathered: a rank sends at most three numbers
    a row, all by `all_reduce`: for the largest logit, the sum of the exponentials, and the target's
    logit. Subtract the largest logit of all ranks before `exp`: logits may be 10,000. The arguments
    aren't changed. Raises ValueError for a target outside the vocabulary. Source: Megatron-LM's
    cross_entropy.py.
    """
    width = local.shape[1]
    require_ids("target", targets, group.size * width, "Is it the right tokenizer?")
    ### BEGIN SOLUTION
    largest = group.all_reduce(local.amax(dim=1), op="max")
    shifted = local - largest[:, None]
    total = group.all_reduce(shifted.exp().sum(dim=1))
    columns = targets - group.rank * width
    absent = (columns < 0) | (columns >= width)
    own = shifted.gather(1, columns.masked_fill(absent, 0)[:, None])[:, 0]
    return group.all_reduce(own.masked_fill(absent, 0)) - total.log()
    ### END SOLUTION


def vocab_parallel_argmax(local: Float[Tensor, "rows width"], group: Group) -> Int[Tensor, " rows"]:
    """Return the likeliest id of each row, the same on every rank, from two numbers a row.

    Ids go along as floating-point numbers, which are exact up to 2**24 in float32.
    """
    values, columns = local.max(dim=1)
    ids = (columns + group.rank * local.shape[1]).to(local.dtype)
    everyone = torch.stack(group.all_gather(torch.stack([values, ids])))
    winner = everyone[:, 0].argmax(dim=0)
    return everyone[:, 1].gather(0, winner[None])[0].long()


def tensor_parallel_logits(
    group: Group, part: Mapping[str, Tensor], config: GPTConfig, ids: Int[Tensor, "batch seq"]
) -> Float[Tensor, "batch seq vocab/size"]:
    """Run the whole model on this rank's part of it; return the logits of this rank's ids.

    It takes 2 * n_layer + 1 `all_reduce` of [batch, seq, n_embd]. The logits stay where they are.
    """
    hidden = embed_in_parallel(group, part, config, ids)
    for layer in range(config.n_layer):
        hidden = tensor_parallel_block(hidden, part, layer, config, group)
    hidden = layer_norm(hidden, part, "ln_f", config.layer_norm_epsilon)
    return hidden @ part["wte.weight"].T


def embed_in_parallel(
    group: Group, part: Mapping[str, Tensor], config: GPTConfig, ids: Int[Tensor, "batch seq"]
) -> Float[Tensor, "batch seq n_embd"]:
    positions = torch.arange(ids.shape[1], device=ids.device)
    require_inputs(config, ids, positions.expand_as(ids))
    return vocab_parallel_embedding(ids, part["wte.weight"], group) + part["wpe.weight"][positions]


# --------------------------------------------------------------------------- sequence parallelism


def sequence_parallel(
    hidden: Float[Tensor, "batch seq/size n_embd"],
    norm: Callable[[Tensor], Tensor],
    layer: Callable[[Tensor], Tensor],
    group: Group,
) -> Float[Tensor, "batch seq/size n_embd"]:
    """Return `hidden` plus what the layer adds to it, for this rank's positions only.

    hidden: this rank's positions; rank 0 has the first ones. norm: works on each position alone, so
    call it on this rank's positions only. layer: takes the normalized hidden states of all
    positions, [batch, seq, n_embd], and returns this rank's partial sum for all of them, as a
    column layer and a row layer do; call it once.
    One `all_gather` before the layer and one `reduce_scatter` after it put the same bytes on the
    wire as the `all_reduce` that they replace, and between layers a rank holds only its own
    positions. `hidden` isn't changed. Source: Korthikanti et al., section 4.2.2.
    """
    ### BEGIN SOLUTION
    normed = torch.cat(group.all_gather(norm(hidden)), dim=1)
    partial_sums = layer(normed).chunk(group.size, dim=1)
    return hidden + group.reduce_scatter(partial_sums)
    ### END SOLUTION


def sequence_parallel_block(
    hidden: Float[Tensor, "batch seq/size n_embd"],
    part: Mapping[str, Tensor],
    layer: int,
    config: GPTConfig,
    group: Group,
) -> Float[Tensor, "batch seq/size n_embd"]:
    """Do what `tensor_parallel_block` does, but hold and return this rank's positions only."""
    own, eps = layer_weights(part, layer), config.layer_norm_epsilon

    def attention(normed: Tensor) -> Tensor:
        qkv = normed @ own["attn.c_attn.weight"] + own["attn.c_attn.bias"]
        return attend_heads(qkv, config.head_dim) @ own["attn.c_proj.weight"]

    def mlp(normed: Tensor) -> Tensor:
        inner = normed @ own["mlp.c_fc.weight"] + own["mlp.c_fc.bias"]
        return F.gelu(inner, approximate="tanh") @ own["mlp.c_proj.weight"]

    norm_1, norm_2 = (partial(layer_norm, own=own, name=n, eps=eps) for n in ("ln_1", "ln_2"))
    hidden = sequence_parallel(hidden, norm_1, attention, group) + own["attn.c_proj.bias"]
    return sequence_parallel(hidden, norm_2, mlp, group) + own["mlp.c_proj.bias"]


def sequence_parallel_logits(
    group: Group, part: Mapping[str, Tensor], config: GPTConfig, ids: Int[Tensor, "batch seq"]
) -> Float[Tensor, "batch seq vocab/size"]:
    """Do what `tensor_parallel_logits` does; between the layers, hold seq / size positions."""
    seq, size = ids.shape[1], group.size
    if seq % size:
        raise ValueError(f"{seq} positions don't divide among {size} ranks: pad the text.")
    hidden = embed_in_parallel(group, part, config, ids).chunk(size, dim=1)[group.rank]
    for layer in range(config.n_layer):
        hidden = sequence_parallel_block(hidden, part, layer, config, group)
    hidden = layer_norm(hidden, part, "ln_f", config.layer_norm_epsilon)
    return torch.cat(group.all_gather(hidden), dim=1) @ part["wte.weight"].T


# --------------------------------------------------------------------------- pipeline parallelism


def pipeline(stages: int, microbatches: int, kind: str) -> list[Order]:
    """Return what each stage of a pipeline does in training, in order.

    ("F", i) is the forward pass of microbatch i through a stage, ("B", i) its backward pass. Each
    stage does both once for every i from 0, each in ascending order. kind "gpipe": all forwards,
    then all backwards. kind "1f1b": first as many forwards as there are stages after this one, or
    all of them if there are fewer microbatches; then one forward and one backward in turns, while
    forwards are left; then the backwards that remain. So stage s never holds more than stages - s
    microbatches. Raises ValueError for fewer than one stage or microbatch, and for another kind.
    Sources: Huang et al.; Narayanan et al., section 2.2.
    """
    require_pipeline(stages, microbatches, kind)
    ### BEGIN SOLUTION
    schedule = []
    for stage in range(stages):
        ahead = microbatches if kind == "gpipe" else min(stages - stage - 1, microbatches)
        order = [("F", i) for i in range(ahead)]
        for i in range(ahead, microbatches):
            order += [("F", i), ("B", i - ahead)]
        order += [("B", i) for i in range(microbatches - ahead, microbatches)]
        schedule.append(order)
    return schedule
    ### END SOLUTION


@torch.no_grad()
def pipeline_logits(
    group: Group, model: GPTLMHead, microbatches: Sequence[Int[Tensor, "batch seq"]]
) -> list[Float[Tensor, "batch seq vocab"]]:
    """Run a model whose blocks are cut into one stage per rank; the last rank returns the logits.

    The others return nothing. A rank uses only its own blocks. Each rank but the last sends one
    hidden state per token.
    """
    first, last, gpt = group.rank == 0, group.rank == group.size - 1, model.transformer
    blocks = stage_of(gpt.h, group.rank, group.size)
    logits = []
    for ids in microbatches:
        if first:
            hidden = gpt.embed(ids, torch.arange(ids.shape[1], device=ids.device).expand_as(ids))
        else:
            like = gpt.wte.weight.new_empty(*ids.shape, model.config.n_embd)
            hidden = group.recv(like, group.rank - 1)
        for block in blocks:
            hidden = block(hidden)
        if last:
            logits.append(gpt.ln_f(hidden) @ gpt.wte.weight.T)
        else:
            group.send(hidden, group.rank + 1)
    return logits


def stage_of(blocks: nn.ModuleList, stage: int, stages: int) -> nn.ModuleList:
    """Return the consecutive blocks of one stage. Raises ValueError if they don't divide."""
    if stages < 1 or len(blocks) % stages:
        raise ValueError(f"{len(blocks)} layers don't divide among {stages} stages: change one.")
    each = len(blocks) // stages
    return blocks[stage * each : (stage + 1) * each]


# ------------------------------------------------------------------------------- data parallelism


def data_parallel_gradient(
    local_sum: Float[Tensor, "*shape"], tokens: int, group: Group
) -> Float[Tensor, "*shape"]:
    """Return the gradient of the mean loss over the tokens of all ranks.

    local_sum: the gradient of the sum of the losses of this rank's tokens. tokens: how many those
    are; it differs from rank to rank and may be 0. Every rank returns the same, as if one process
    held all tokens. `local_sum` isn't changed. Raises ValueError if no rank has a token (call
    `require_tokens` with the number of all tokens).
    """
    ### BEGIN SOLUTION
    total = group.all_reduce(torch.tensor(tokens, device=local_sum.device))
    require_tokens(int(total))
    return group.all_reduce(local_sum) / total
    ### END SOLUTION


def data_parallel_step(
    group: Group, model: GPTLMHead, texts: Sequence[Int[Tensor, " seq"]], rate: float
) -> GPTLMHead:
    """Return a copy of the model after one step of gradient descent on all texts.

    Rank r computes every size-th text, from text r on. A text of n tokens has n - 1 losses. All
    weights travel as one vector, which saves calls: PyTorch's DDP has buckets for the same reason.
    """
    model = copy.deepcopy(model).requires_grad_()
    weights = list(model.parameters())
    own = [ids for ids in texts[group.rank :: group.size] if len(ids) > 1]  # others have no loss
    local_sum = torch.zeros_like(parameters_to_vector(weights))
    for ids in own:
        with torch.enable_grad():
            loss = sum_of_losses(model, ids)
        local_sum += parameters_to_vector(torch.autograd.grad(loss, weights))
    gradient = data_parallel_gradient(local_sum, sum(len(ids) - 1 for ids in own), group)
    with torch.no_grad():
        vector_to_parameters(parameters_to_vector(weights) - rate * gradient, weights)
    return model


def sum_of_losses(model: GPTLMHead, ids: Int[Tensor, " seq"]) -> Float[Tensor, ""]:
    positions = torch.arange(len(ids) - 1, device=ids.device)
    logits = model(ids[None, :-1], positions[None])[0]
    return F.cross_entropy(logits, ids[1:], reduction="sum")


# ----------------------------------------------------------------------------------- nano-batches


def timeline(batches: Sequence[Sequence[Operation]]) -> list[Run]:
    """Return when each operation of several nano-batches runs, in the order of their starts.

    batches: for each nano-batch what it does, in order: (resource, how long it takes). An operation
    starts as soon as the one before it in its nano-batch has ended and its resource is free; a
    resource does one operation at a time. If several wait for the same resource, the one that has
    been ready longest comes first, then that of the lower nano-batch. All times begin at 0. A
    nano-batch may be empty. Source: Zhu et al., "NanoFlow", 2024.
    """
    ### BEGIN SOLUTION
    ready, done, free, runs = [0.0] * len(batches), [0] * len(batches), dict[str, float](), []
    while left := [n for n, batch in enumerate(batches) if done[n] < len(batch)]:
        starts = []
        for n in left:
            resource, _ = batches[n][done[n]]
            starts.append((max(ready[n], free.get(resource, 0)), ready[n], n))
        start, _, n = min(starts)
        resource, seconds = batches[n][done[n]]
        ready[n] = free[resource] = start + seconds
        runs.append(Run(n, done[n], resource, start, ready[n]))
        done[n] += 1
    return runs
    ### END SOLUTION


def split_plan(tokens: Sequence[int], ways: int) -> list[list[int]]:
    """Return which requests go into each of `ways` nano-batches, as even as whole requests allow.

    tokens: how many new tokens each request computes. The request with the most tokens comes first
    (of equal ones the earlier), and goes to the nano-batch with the fewest tokens so far (of equal
    ones the first). Nano-batches without a request are left out. In each, the requests' numbers
    ascend. Raises ValueError for fewer than one nano-batch.
    """
    require_ways(ways)
    ### BEGIN SOLUTION
    parts, sums = [list[int]() for _ in range(ways)], [0] * ways
    for request in sorted(range(len(tokens)), key=lambda request: -tokens[request]):
        fewest = sums.index(min(sums))
        parts[fewest].append(request)
        sums[fewest] += tokens[request]
    return [sorted(part) for part in parts if part]
    ### END SOLUTION


# ----------------------------------------------------------------------------- what the wire costs


def wire_bytes(group: Group) -> float:
    """Return the bytes that this rank has put on the wire, if all collectives are rings."""
    return sum(ring_bytes(kind, payload, group.size) for kind, payload in group.sent.items())


def bytes_per_token(config: GPTConfig, size: int, itemsize: int = 4) -> dict[str, float]:
    """Return how many bytes a rank puts on the wire for each token of a forward pass.

    itemsize: bytes per number. "tensor": 2 all-reduces a layer and one for the embedding, as
    `tensor_parallel_logits` does. "sequence": the same bytes, and a last gather. "pipeline": one
    hidden state, except on the last rank. "data": nothing, until a training step sends the gradient
    of every weight.
    """
    hidden = config.n_embd * itemsize
    tensor = (2 * config.n_layer + 1) * ring_bytes("all_reduce", hidden, size)
    return {
        "data": 0,
        "tensor": tensor,
        "sequence": tensor + ring_bytes("all_gather", hidden, size) / size,
        "pipeline": hidden if size > 1 else 0,
    }


# -------------------------------------------------------------------------------- input checks


def require_divisible(config: GPTConfig, rank: int, size: int) -> None:
    if not 0 <= rank < size:
        raise ValueError(f"Ranks are numbered from 0; there is no rank {rank} of {size}.")
    for what, number in (("heads", config.n_head), ("tokens of the vocabulary", config.vocab_size)):
        if number % size:
            raise ValueError(
                f"{number} {what} don't divide among {size} ranks: choose a number of ranks that "
                "divides them, or pad them."
            )


def require_pipeline(stages: int, microbatches: int, kind: str) -> None:
    if stages < 1 or microbatches < 1:
        have = f"{stages} and {microbatches}"
        raise ValueError(f"A pipeline has at least one stage and one microbatch, not {have}.")
    if kind not in ("gpipe", "1f1b"):
        raise ValueError(f'The kind of a schedule is "gpipe" or "1f1b", not {kind!r}.')


def require_ways(ways: int) -> None:
    if ways < 1:
        raise ValueError(f"A batch is split into at least one nano-batch, not {ways}.")


def require_tokens(total: int) -> None:
    if total < 1:
        raise ValueError("No rank has a token, so there is no mean: give at least one text.")
