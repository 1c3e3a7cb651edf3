"""Lab 19 in another style: lists of matrices, loops over tokens, searches instead of formulas."""


def mlp(shape, neurons):
    return [shape.width * neurons] * (3 if shape.gated else 2)


def norm_numbers(shape):
    return shape.width * (2 if shape.biases else 1)


def projected(columns, target):
    """The best factors of the columns, and the sum of squares that is left."""
    size = columns.norm(dim=0)
    factors = torch.linalg.pinv(columns / size) @ target / size
    return factors, float(((columns @ factors - target) ** 2).sum())


def within(exponent):
    return min(max(exponent, 1e-4), 2)


def loss_terms(alpha, beta, params, tokens):
    """Powers of sizes around 1, so that the columns are of one order of magnitude."""
    return torch.stack([torch.ones_like(params), params**-alpha, tokens**-beta], dim=1)


def parameters(shape):
    ### BEGIN SOLUTION
    outputs = shape.heads * shape.head_dim
    narrow = shape.kv_heads * shape.head_dim
    matrices, vectors = 0, norm_numbers(shape)
    for layer in range(shape.layers):
        matrices += shape.latent_weights or sum(shape.width * n for n in [outputs, narrow] * 2)
        vectors += 2 * norm_numbers(shape) + shape.more_vectors
        if layer < shape.dense_layers:
            matrices += sum(mlp(shape, shape.ff))
        if shape.biases:
            vectors += outputs + narrow + narrow + shape.width + shape.ff + shape.width
    counts = {
        "embedding": shape.vocab * shape.width + shape.positions * shape.width,
        "matrices": matrices + expert_matrices(shape),
        "vectors": vectors,
        "head": int(not shape.tied) * shape.vocab * shape.width,
    }
    counts["total"] = sum(counts.values())
    sleeping = shape.experts - shape.experts_per_token
    counts["active"] = counts["total"] - sleeping * expert_weights(shape)
    return counts
    ### END SOLUTION


def forward_flops(shape, new, context):
    require_tokens(new, context)
    ### BEGIN SOLUTION
    numbers = parameters(shape)
    idle = numbers["total"] - numbers["active"]
    flops = 0
    for place in range(context, context + new):
        flops += 2 * (numbers["matrices"] - idle)
        flops += 2 * shape.width * shape.vocab
        for _ in range(shape.layers):
            seen = place + 1
            per_head = 2 * seen * shape.head_dim + 2 * seen * shape.head_dim
            flops += 2 * seen * shape.latent_products or shape.heads * per_head
    return flops
    ### END SOLUTION


def kv_bytes(shape, tokens, width):
    ### BEGIN SOLUTION
    if shape.latent_width:
        return tokens * shape.layers * shape.latent_width * width
    keys = values = tokens * shape.layers * shape.kv_heads * shape.head_dim
    return (keys + values) * width
    ### END SOLUTION


def step_time(shape, machine, batch, new, context, width):
    require_batch(batch)
    ### BEGIN SOLUTION
    numbers = parameters(shape)
    touched = experts_touched(shape, new * batch)
    always = numbers["matrices"] - shape.experts * expert_weights(shape)
    read = always + touched * expert_weights(shape)
    read += numbers["vectors"] + shape.vocab * shape.width
    traffic = read * width + sum(kv_bytes(shape, new + context, width) for _ in range(batch))
    reading = traffic / machine.bandwidth
    computing = forward_flops(shape, new, context) / machine.flops * batch
    return reading if reading > computing else computing
    ### END SOLUTION


def plan(shape, machine, context, width, tpot_limit):
    require_tokens(context, 0)
    ### BEGIN SOLUTION
    left, batch, slowest = machine.memory - parameters(shape)["total"] * width, 0, 0.0
    while left >= kv_bytes(shape, context, width):
        seconds = step_time(shape, machine, batch + 1, 1, context - 1, width)
        if seconds > tpot_limit:
            break
        left, batch, slowest = left - kv_bytes(shape, context, width), batch + 1, seconds
    if not batch:
        return 0, float("inf")
    tokens_per_hour = 3600 * batch / slowest
    return batch, machine.price_per_hour / (tokens_per_hour / 1e6)
    ### END SOLUTION


def max_rate(slots, ttft, tpot, new_tokens):
    require_batch(slots)
    ### BEGIN SOLUTION
    busy = ttft
    for _ in range(1, new_tokens):
        busy += tpot
    return 1 / busy * slots
    ### END SOLUTION


def fit_law(params, tokens, loss):
    require_runs(params, tokens, loss)
    ### BEGIN SOLUTION
    params, tokens, loss = (numbers.to(torch.float64) for numbers in (params, tokens, loss))
    unit, other = params.log().mean().exp(), tokens.log().mean().exp()

    def left(pair):
        return projected(loss_terms(*pair, params / unit, tokens / other), loss)[1]

    starts = [(alpha, beta) for alpha in (0.3, 0.6, 1.2) for beta in (0.3, 0.6, 1.2)]
    best, step, last = min(starts, key=left), 0.1, (0.0, 0.0)
    while step > 1e-6:
        moves = [(a * step, b * step) for a in (-1, 0, 1) for b in (-1, 0, 1)] + [last]
        last = min(moves, key=lambda m: left((within(best[0] + m[0]), within(best[1] + m[1]))))
        moved = within(best[0] + last[0]), within(best[1] + last[1])
        step, best = (step, moved) if left(moved) < left(best) else (step / 2, best)
    floor, a, b = projected(loss_terms(*best, params / unit, tokens / other), loss)[0]
    a, b = a * unit ** best[0], b * other ** best[1]
    return {"E": floor, "A": a, "B": b, "alpha": best[0], "beta": best[1]}
    ### END SOLUTION


def compute_optimal(law, flops):
    ### BEGIN SOLUTION
    low, high = 0.0, math.log(flops / 6)
    for _ in range(200):
        middle = (low + high) / 2
        params, tokens = math.exp(middle), flops / 6 / math.exp(middle)
        gained = law["alpha"] * law["A"] * params ** -law["alpha"]
        lost = law["beta"] * law["B"] * tokens ** -law["beta"]
        low, high = (middle, high) if gained > lost else (low, middle)
    return [params, tokens]
    ### END SOLUTION
