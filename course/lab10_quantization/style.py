"""Lab 10 in another style: rows one by one, limits as a pair, an inverse that shrinks."""


def ends(bits):
    """The first and the last code with a sign, as far from 0 on both sides."""
    half = 1 << bits - 1
    return 1 - half, half - 1


def absmax(weight, bits, dim=0):
    require_numbers(weight, bits)
    ### BEGIN SOLUTION
    _, last = ends(bits)
    match dim:
        case None:
            sizes = weight.abs().max().reshape(1, 1)
        case 0:
            sizes = torch.stack([column.abs().max() for column in weight.T]).unsqueeze(0)
        case _:
            sizes = torch.stack([row.abs().max() for row in weight]).unsqueeze(1)
    scale = (sizes / last).masked_fill(sizes == 0, 1)
    return torch.round(weight * scale.reciprocal()).char(), scale
    ### END SOLUTION


def affine(groups, bits):
    require_numbers(groups, bits)
    ### BEGIN SOLUTION
    codes, scales, zeros = [], [], []
    for group in groups.tolist():
        low, high = min(0.0, *group), max(0.0, *group)
        scale = (high - low) / (2**bits - 1) or 1.0
        zero = round(-low / scale)
        last = 2**bits - 1
        codes.append([min(max(zero + round(number / scale), 0), last) for number in group])
        scales.append([scale])
        zeros.append([zero])
    whole = {"dtype": torch.uint8}
    return (
        torch.tensor(codes, **whole),
        torch.tensor(scales, dtype=groups.dtype),
        torch.tensor(zeros, **whole),
    )
    ### END SOLUTION


def calibrate(values, bits, scales):
    require_numbers(values, bits)
    ### BEGIN SOLUTION
    first, last = ends(bits)

    def loss(scale):
        codes = torch.clip(torch.round(values / scale), first, last)
        return torch.sum((values - scale * codes) ** 2).item()

    return min(scales, key=loss)
    ### END SOLUTION


def pack(codes):
    ### BEGIN SOLUTION
    low, high = codes.unflatten(0, (-1, 2)).unbind(dim=1)
    return low + 16 * high
    ### END SOLUTION


def unpack(packed):
    ### BEGIN SOLUTION
    codes = packed.repeat_interleave(2, dim=0)
    codes[0::2] %= 16
    codes[1::2] //= 16
    return codes
    ### END SOLUTION


def shared(values):
    """The scale of those who share one, in 8 bits; 1 where all of them are 0."""
    peak = values.abs().max()
    return peak / 127 if peak else torch.ones_like(peak)


# -------------------------------------------------------------------------------- weights alone


class QuantizedLinear:
    def forward(self, hidden):
        ### BEGIN SOLUTION
        weight = (self.codes * self.scale).to(hidden.dtype)
        return torch.nn.functional.linear(hidden, weight.T, self.bias)
        ### END SOLUTION


# ------------------------------------------------------------------------ weights and activations


def int8_matmul(hidden, codes, scale):
    ### BEGIN SOLUTION
    products = []
    for token in hidden:
        own = shared(token)
        whole = torch.round(token / own).long() @ codes.long()
        products.append(whole * (own * scale.squeeze(0)))
    return torch.stack(products)
    ### END SOLUTION


def split_outliers(hidden, codes, scale, threshold=6.0):
    ### BEGIN SOLUTION
    reach = torch.amax(torch.abs(hidden), 0)
    kept = torch.where(reach < threshold, torch.zeros_like(hidden), hidden)
    return kept @ (scale * codes) + int8_matmul(hidden - kept, codes, scale)
    ### END SOLUTION


def smooth(gain, bias, weight, peaks, alpha=0.5):
    ### BEGIN SOLUTION
    largest = torch.stack([weight.max(1).values, -weight.min(1).values]).max(0).values
    factors = torch.ones_like(peaks)
    moved = (peaks * largest).nonzero().flatten()
    factors[moved] = peaks[moved].pow(alpha) * largest[moved].pow(alpha - 1)
    return gain * factors.reciprocal(), bias * factors.reciprocal(), factors.diag() @ weight
    ### END SOLUTION


# --------------------------------------------------------------------- rounding that looks ahead


def gptq(weight, hessian, scale, bits):
    ### BEGIN SOLUTION
    most = 2 ** (bits - 1) - 1
    damped = hessian.clone()
    damped.diagonal().add_(0.01 * hessian.trace() / len(hessian))
    inverse, rest = damped.inverse(), weight.double()
    steps = scale.double().repeat(len(weight) // len(scale), 1)
    codes = torch.zeros_like(weight, dtype=torch.int8)
    for i in range(len(weight)):
        codes[i] = torch.clip(torch.round(rest[i] / steps[i]), -most, most)
        column = inverse[:, i] / inverse[i, i]
        rest = rest - torch.outer(column, rest[i] - codes[i] * steps[i])
        inverse = inverse - torch.outer(column, inverse[i])
    return codes
    ### END SOLUTION


def keep_largest(scores, share):
    ### BEGIN SOLUTION
    count = round(share * scores.numel())
    order = torch.zeros(scores.numel(), dtype=torch.long)
    order[torch.sort(scores.reshape(-1)).indices] = torch.arange(scores.numel())
    return (order >= count).reshape(scores.shape)
    ### END SOLUTION


def two_of_four(scores):
    ### BEGIN SOLUTION
    n_in, n_out = scores.shape
    by_four = scores.reshape(n_in // 4, 4, n_out)
    places = by_four.argsort(dim=1, descending=True).argsort(dim=1)
    return (places < 2).reshape(n_in, n_out)
    ### END SOLUTION


def compressed(weight, kept):
    ### BEGIN SOLUTION
    n_in, n_out = weight.shape
    values = torch.zeros(n_in // 2, n_out, dtype=weight.dtype)
    packed = torch.zeros(n_in // 8, n_out, dtype=torch.uint8)
    for column in range(n_out):
        count = 0
        for row in range(n_in):
            if kept[row, column]:
                values[count, column] = weight[row, column]
                packed[count // 4, column] += (row % 4) * 4 ** (count % 4)
                count += 1
    return values, packed
    ### END SOLUTION


def sparse_gpt(weight, hessian, choose, block=64):
    require_hessian(hessian, len(weight))
    ### BEGIN SOLUTION
    size = len(weight)
    damped = hessian.clone()
    damped.diagonal().add_(DAMPING * hessian.diagonal().mean())
    lower = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(damped)))
    left, done = weight.to(lower.dtype), []
    for start in range(0, size, block):
        end = min(start + block, size)
        kept = choose(left[: end - start] ** 2 / lower.diagonal()[start:end, None] ** 2)
        for i in range(start, end):
            row = left[0]
            done.append(torch.where(kept[i - start], row, 0))
            wrong = (row - done[-1]) / lower[i, i]
            left = left[1:] - torch.outer(lower[i + 1 :, i], wrong)
    return torch.stack(done).to(weight.dtype)
    ### END SOLUTION


def without_heads(weight, bias, out, n_head, kept):
    ### BEGIN SOLUTION
    size = len(out) // n_head
    spans = [slice(head * size, (head + 1) * size) for head in kept]
    kinds, biases = weight.split(len(out), dim=1), bias.split(len(out))
    return (
        torch.cat([kind[:, span] for kind in kinds for span in spans], dim=1),
        torch.cat([kind[span] for kind in biases for span in spans]),
        torch.cat([out[span] for span in spans]),
    )
    ### END SOLUTION
