"""Answers to lab 18's exercises: a ring, parts of a model, a cut vocabulary, stages, a batch."""

from dataclasses import replace

import torch
import torch.nn.functional as F

from solutions.parallelism import (
    attend_heads,
    causal_attention,
    data_parallel_gradient,
    layer_norm,
    layer_weights,
    pipeline,
    ring_all_reduce,
    sequence_parallel,
    shard,
    tensor_parallel_block,
    timeline,
    vocab_parallel_logprob,
)
from tests.common.attempts import right, wrong, wrong_result


@wrong(ring_all_reduce, "`send` on rank 0 of 2 isn't called; expected: it goes to rank 1.")
def by_the_group(x, group):
    return group.all_reduce(x)


@wrong(ring_all_reduce, "`send` on rank 0 of 3 goes to rank 1 and 2; expected: it goes to rank 1.")
def without_a_ring(x, group):
    """Each part goes straight to the rank that adds it up, and from there to all."""
    rank, size, parts = group.rank, group.size, list(x.tensor_split(group.size))

    def exchanged(gap, going, coming):
        for turn in range(size):
            if turn == rank:
                group.send(parts[going], (rank + gap) % size)
            if turn == (rank - gap) % size:
                came = group.recv(parts[coming], turn)
        return came

    for gap in range(1, size):
        parts[rank] = parts[rank] + exchanged(gap, (rank + gap) % size, rank)
    for gap in range(1, size):
        parts[(rank - gap) % size] = exchanged(gap, rank, (rank - gap) % size)
    return torch.cat(parts)


@wrong(ring_all_reduce, "Rank 0 has returned", "and rank 1 waits in send of float64 [2] to rank 0")
def rank_0_only_sends(x, group):
    if group.rank == 0 and group.size > 1:
        group.send(x.tensor_split(group.size)[0], 1)
        return x
    return ring_all_reduce(x, group)


@wrong(shard, "A call for rank 0 of 2 with 7 heads", "went through; expected: it was refused")
def heads_that_do_not_divide(weights, rank, size, config):
    return shard(weights, rank, size, replace(config, n_head=size))


wrong_result(
    shard,
    lambda part: list(part.values()),
    "shard returns a dict of weights by name; this is a list.",
)


def block_with(summed):
    """A block whose row layers are summed in a certain way; `summed(partial, bias, group)`."""

    def block(hidden, part, layer, config, group, attend=causal_attention):
        own, eps = layer_weights(part, layer), config.layer_norm_epsilon
        normed = layer_norm(hidden, own, "ln_1", eps)
        projected = normed @ own["attn.c_attn.weight"] + own["attn.c_attn.bias"]
        attended = attend_heads(projected, config.head_dim, attend)
        bias = own["attn.c_proj.bias"]
        hidden = hidden + summed(attended @ own["attn.c_proj.weight"], bias, group)
        normed = layer_norm(hidden, own, "ln_2", eps)
        inner = F.gelu(normed @ own["mlp.c_fc.weight"] + own["mlp.c_fc.bias"], approximate="tanh")
        bias = own["mlp.c_proj.bias"]
        return hidden + summed(inner @ own["mlp.c_proj.weight"], bias, group)

    return block


right(tensor_parallel_block)(block_with(lambda x, b, group: group.all_reduce(x + b / group.size)))
wrong(tensor_parallel_block, "The calls on rank 0 of 2 are 2 of `all_gather`")(
    block_with(lambda x, bias, group: sum(group.all_gather(x)) + bias)
)
wrong(
    tensor_parallel_block,
    "ank 0 waits in all_reduce",
    "all ranks must make the same collective calls",
)(block_with(lambda x, b, g: (g.all_gather if g.rank else g.all_reduce)(x)[0] + b))


@wrong(vocab_parallel_logprob, "is 14 numbers for 2 rows, by `all_gather` and `all_reduce`")
def gathered_probabilities(local, targets, group):
    logprobs = vocab_parallel_logprob(local, targets, group)
    group.all_gather(logprobs[:, None].expand(local.shape).contiguous())
    return logprobs


@wrong(sequence_parallel, "The number of calls of `layer`")
def a_layer_for_each_rank(hidden, norm, layer, group):
    normed = torch.cat(group.all_gather(norm(hidden)), dim=1)
    parts = [layer(normed).chunk(group.size, dim=1)[rank] for rank in range(group.size)]
    return hidden + group.reduce_scatter(parts)


wrong_result(
    pipeline,
    lambda orders: [[f"{kind}{i}" for kind, i in order] for order in orders],
    "Each step of a stage is a tuple like (\"F\", 0); this is 'F0'.",
)
wrong(pipeline, "The schedule is a generator expression", "write `[")(
    lambda *given: (order for order in pipeline(*given))
)
wrong_result(
    pipeline,
    lambda orders: [(step for step in order) for order in orders],
    "Stage 0 is a generator expression",
)


wrong_result(
    timeline,
    lambda runs: [run[2:] for run in runs],
    "timeline returns a list of `Run(batch, step, resource, start, end)`.",
)
right(timeline)(lambda batches: [tuple(run) for run in timeline(batches)])


wrong(data_parallel_gradient, "has the right numbers in torch.float64; expected torch.float32")(
    lambda local_sum, *given: data_parallel_gradient(local_sum.double(), *given)
)

GATHERED = "shifted.gather(1, columns.masked_fill(absent, 0)[:, None])[:, {}]"
EQUIVALENT = {
    "parallelism.timeline": {
        "free.get(resource, 0) -> free.get(resource, -1)": "no nano-batch is ready before 0",
    },
    "parallelism.split_plan": {
        "[0] * ways -> [-1] * ways": "only differences of the sums count",
        "[0] * ways -> [1] * ways": "only differences of the sums count",
    },
    "parallelism.shard": {
        "weight.chunk(size, dim=0) -> weight.chunk(size)": "0 is the default",
    },
    "parallelism.vocab_parallel_embedding": {
        "rows.masked_fill(absent, 0) -> rows.masked_fill(absent, -1)": "zeros replace that row",
    },
    "parallelism.vocab_parallel_logprob": {
        f"{GATHERED.format(0)} -> {GATHERED.format(-1)}": "there is one column",
    },
}
