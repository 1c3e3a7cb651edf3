"""Lab 21 in another style: arrays as a whole, other loops, a list in place of a stack."""


def self_times(events):
    ### BEGIN SOLUTION
    order = sorted(range(len(events)), key=lambda i: (events[i][1], -events[i][2]))
    own = {i: events[i][2] - events[i][1] for i in order}
    callers, outer = [], []
    for i in order:
        _, start, end = events[i]
        callers = [other for other in callers if events[other][2] > start]
        if callers:
            own[callers[-1]] -= end - start
        else:
            outer.append((start, end))
        callers.append(i)
    times = {}
    for i in order:
        calls, before = times.get(events[i][0], (0, 0))
        times[events[i][0]] = [calls + 1, before + own[i]]
    whole = max(end for _, end in outer) - outer[0][0]
    return times, whole - sum(end - start for start, end in outer)
    ### END SOLUTION


def floor_ms(bytes_read, flops, calls, machine):
    ### BEGIN SOLUTION
    reading = 1e3 * bytes_read / machine.bytes_per_second
    computing = 1e3 * flops / machine.flops
    calling = 1e3 * calls * machine.seconds_per_call
    return calling + (reading if reading > computing else computing)
    ### END SOLUTION


@compiled
def normalize(x, norm, eps, out):
    ### BEGIN SOLUTION
    mean = f32(x.sum()) / f32(x.size)
    out[:] = x - mean
    variance = f32((out * out).sum()) / f32(x.size)
    out[:] = out / np.sqrt(variance + eps) * norm[0] + norm[1]
    ### END SOLUTION


@compiled
def multiply(x, weight, scale, bias, first, last, out, added):
    ### BEGIN SOLUTION
    for j in range(last - 1, first - 1, -1):
        for r in range(x.shape[0]):
            total = f32(0)
            for i in range(x.shape[1]):
                total += f32(weight[j, i]) * x[r, i]
            if not added:
                out[r, j] = 0
            out[r, j] += total * scale[j] + bias[j]
    ### END SOLUTION


@compiled
def multiply4(x, weight, scale, bias, first, last, out, added):
    ### BEGIN SOLUTION
    j = first
    while j + 4 <= last:
        four = weight[j : j + 4]
        for r in range(x.shape[0]):
            totals = np.zeros(4, np.float32)
            for i in range(x.shape[1]):
                for k in range(4):
                    totals[k] += f32(four[k, i]) * x[r, i]
            for k in range(4):
                total = totals[k] * scale[j + k] + bias[j + k]
                out[r, j + k] = total + (out[r, j + k] if added else f32(0))
        j += 4
    multiply(x, weight, scale, bias, j, last, out, added)
    ### END SOLUTION


@compiled
def exponentiate(x, whole):
    powers = whole.view(np.float32)
    for i in range(len(x)):
        ### BEGIN SOLUTION
        t = x[i] * f32(1.44269504)
        if t < f32(-126):
            t = f32(-126)
        n = np.rint(t)
        whole[i] = i32(n) * i32(2**23) + i32(127 * 2**23)
        f = f32(0.69314718) * t - f32(0.69314718) * n
        ### END SOLUTION
        high = f32(1 / 24) + f * (f32(1 / 120) + f * f32(1 / 720))
        x[i] = f32(1) + f * (f32(1) + f * (f32(0.5) + f * (f32(1 / 6) + f * high)))
    for i in range(len(x)):
        x[i] *= powers[i]


@compiled
def attend(query, keys, values, table, start, stop, scores, whole, out):
    ### BEGIN SOLUTION
    size = keys.shape[1]
    for token in range(len(scores)):
        key = keys[table[token // size], token % size, start:stop]
        scores[token] = f32((query * key).sum()) / np.sqrt(f32(len(query)))
    softmax(scores, whole)
    for i in range(len(out)):
        out[i] = 0
    for token in range(len(scores)):
        out += scores[token] * values[table[token // size], token % size, start:stop]
    ### END SOLUTION


@compiled
def take_share(counters, phase, shares, before):
    taken, done = counters[0, phase : phase + 1], counters[1, phase : phase + 1]
    ### BEGIN SOLUTION
    if before >= 0:
        add(done, 1)
    mine = add(taken, 1)
    if mine >= shares:
        looks = 1
        while add(done, 0) != shares:
            rest(looks)
            looks += 1
        mine = OVER
    return mine
    ### END SOLUTION


@compiled
def mlp(counters, phase, hidden, norm, eps, c_fc, c_proj, normed, wide, exps, whole):
    ### BEGIN SOLUTION
    rows, n_inner = wide.shape
    n = hidden.shape[1]
    for r in range(rows):
        normalize(hidden[r], norm, eps, normed[r])
    share = OVER
    while True:
        share = take_share(counters, phase, SHARES, share)
        if share == OVER:
            break
        a, b = cut(n_inner, share), cut(n_inner, share + 1)
        multiply(normed, c_fc.weight, c_fc.scale, c_fc.bias, a, b, wide, False)
        for r in range(rows):
            gelu(wide[r, a:b], exps[: b - a], whole[: b - a])
    while True:
        share = take_share(counters, phase + 1, SHARES, share)
        if share == OVER:
            break
        a, b = cut(n, share), cut(n, share + 1)
        multiply(wide, c_proj.weight, c_proj.scale, c_proj.bias, a, b, hidden, True)
    ### END SOLUTION


def rows_of(batch, tables):
    ### BEGIN SOLUTION
    rows = [(chunk, place) for chunk in batch for place in range(len(chunk.ids))]
    ids = np.array([chunk.ids[place] for chunk, place in rows])
    positions = np.array([chunk.start + place for chunk, place in rows])
    width = max(len(tables[chunk.request]) for chunk, _ in rows)
    padded = [tables[chunk.request] + [0] * width for chunk, _ in rows]
    wanted = {chunk.request: [] for chunk in batch}
    for row, (chunk, place) in enumerate(rows):
        if place >= len(chunk.ids) - chunk.wanted:
            wanted[chunk.request].append(row)
    return ids, positions, np.array([table[:width] for table in padded]), wanted
    ### END SOLUTION


def most_rows(sizes, kernel, usual):
    ### BEGIN SOLUTION
    count = 0
    while count < min(len(kernel), len(usual)) and kernel[count] <= usual[count]:
        count += 1
    return sizes[count - 1] if count else 0
    ### END SOLUTION
