"""Lab 18 in another style: other parts first, whole names, a bias on rank 0, masks by product."""


def ring_all_reduce(x, group):
    ### BEGIN SOLUTION
    size, here = group.size, group.rank
    following, preceding = (here + 1) % size, (here - 1) % size
    sums = [part.clone() for part in x.tensor_split(size)]

    def exchanged(own, like):
        """Rank 0 receives last, so that the others can go on one after the other."""
        if here == 0:
            group.send(own, following)
            return group.recv(like, preceding)
        incoming = group.recv(like, preceding)
        group.send(own, following)
        return incoming

    mine = (here + 1) % size
    for _ in range(size - 1):
        previous = (mine - 1) % size
        sums[previous] += exchanged(sums[mine], sums[previous])
        mine = previous
    for _ in range(size - 1):
        previous = (mine - 1) % size
        sums[previous] = exchanged(sums[mine], sums[previous])
        mine = previous
    return torch.cat(sums)
    ### END SOLUTION


def shard(weights, rank, size, config):
    require_divisible(config, rank, size)

    ### BEGIN SOLUTION
    def own(length):
        return slice(rank * length // size, (rank + 1) * length // size)

    part = dict(weights)
    for name in weights:
        whole = weights[name]
        *_, kind, what = f"model.{name}".split(".")
        if kind == "c_attn":
            thirds = whole.split(config.n_embd, dim=-1)
            part[name] = torch.cat([third[..., own(config.n_embd)] for third in thirds], dim=-1)
        elif kind == "c_fc":
            part[name] = whole[..., own(4 * config.n_embd)].detach().clone()
        elif (kind, what) in {("c_proj", "weight"), ("wte", "weight")}:
            part[name] = torch.empty_like(whole[own(len(whole))]).copy_(whole[own(len(whole))])
    return part
    ### END SOLUTION


def tensor_parallel_block(hidden, part, layer, config, group, attend=causal_attention):
    own, eps = layer_weights(part, layer), config.layer_norm_epsilon

    ### BEGIN SOLUTION
    def linear(given, name):
        return torch.nn.functional.linear(given, own[f"{name}.weight"].T, own[f"{name}.bias"])

    def row_layer(given, name):
        bias = own[f"{name}.bias"] if group.rank == 0 else 0
        return group.all_reduce(given @ own[f"{name}.weight"] + bias)

    projected = linear(layer_norm(hidden, own, "ln_1", eps), "attn.c_attn")
    after = hidden + row_layer(attend_heads(projected, config.head_dim, attend), "attn.c_proj")
    inner = linear(layer_norm(after, own, "ln_2", eps), "mlp.c_fc")
    return after + row_layer(torch.nn.GELU("tanh")(inner), "mlp.c_proj")
    ### END SOLUTION


def vocab_parallel_embedding(ids, part, group):
    require_ids("token id", ids, group.size * len(part), "Is it the right tokenizer?")
    ### BEGIN SOLUTION
    start = group.rank * len(part)
    found = part.new_zeros(*ids.shape, part.shape[1])
    mine = torch.isin(ids, torch.arange(start, start + len(part)))
    found[mine] = part[ids[mine] - start]
    return group.all_reduce(found)
    ### END SOLUTION


def vocab_parallel_logprob(local, targets, group):
    width = local.shape[1]
    require_ids("target", targets, group.size * width, "Is it the right tokenizer?")
    ### BEGIN SOLUTION
    top = group.all_reduce(local.max(dim=1).values, "max")
    is_target = torch.arange(width)[None] + group.rank * width == targets[:, None]
    weights = (local - top[:, None]).exp()
    logits = torch.where(is_target, local, 0.0).sum(dim=1)
    total, logit = group.all_reduce(torch.stack([weights.sum(dim=1), logits]))
    return logit - top - torch.log(total)
    ### END SOLUTION


def sequence_parallel(hidden, norm, layer, group):
    ### BEGIN SOLUTION
    own = hidden.shape[1]
    added = layer(torch.hstack(group.all_gather(norm(hidden))))
    for_each = [added[:, start : start + own] for start in range(0, added.shape[1], own)]
    return group.reduce_scatter(tuple(for_each)).add(hidden)
    ### END SOLUTION


def pipeline(stages, microbatches, kind):
    require_pipeline(stages, microbatches, kind)

    ### BEGIN SOLUTION
    def order(most):
        """Go forward while fewer than `most` are held, else back."""
        done = {"F": 0, "B": 0}
        while done["B"] < microbatches:
            held = done["F"] - done["B"]
            way = "F" if held < most and done["F"] < microbatches else "B"
            yield way, done[way]
            done[way] += 1

    limits = [microbatches if kind == "gpipe" else stages - stage for stage in range(stages)]
    return [list(order(limit)) for limit in limits]
    ### END SOLUTION


def data_parallel_gradient(local_sum, tokens, group):
    ### BEGIN SOLUTION
    count = local_sum.new_tensor([tokens])
    *sums, total = group.all_reduce(torch.cat([local_sum.flatten(), count]))
    require_tokens(round(total.item()))
    return torch.stack(sums).reshape(local_sum.shape) / total
    ### END SOLUTION


def timeline(batches):
    ### BEGIN SOLUTION
    """A clock that jumps to the next end; each resource has a queue."""
    next_up, since = [0] * len(batches), [0] * len(batches)
    until, now, runs = {}, 0, []
    while True:
        for ready, batch in sorted((since[n], n) for n in range(len(batches))):
            if next_up[batch] == len(batches[batch]) or ready > now:
                continue
            resource, takes = batches[batch][next_up[batch]]
            if until.get(resource, 0) <= now:
                until[resource] = since[batch] = now + takes
                runs.append(Run(batch, next_up[batch], resource, now, now + takes))
                next_up[batch] += 1
        later = [time for time in (*until.values(), *since) if time > now]
        if not later:
            return runs
        now = min(later)
    ### END SOLUTION


def split_plan(tokens, ways):
    require_ways(ways)
    ### BEGIN SOLUTION
    where = {}
    while len(where) < len(tokens):
        most = max((t, -r) for r, t in enumerate(tokens) if r not in where)
        so_far = [sum(tokens[r] for r in where if where[r] == part) for part in range(ways)]
        where[-most[1]] = min(range(ways), key=so_far.__getitem__)
    found = [[r for r in range(len(tokens)) if where[r] == part] for part in range(ways)]
    return list(filter(None, found))
    ### END SOLUTION
