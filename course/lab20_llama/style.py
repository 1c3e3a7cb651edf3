"""Lab 20 in another style: complex numbers, comprehensions, loops over heads and blocks."""

import itertools

import numpy as np


def rms_norm(hidden, gain, eps):
    ### BEGIN SOLUTION
    is_short = hidden.dtype in (torch.float16, torch.bfloat16)
    numbers = hidden.to(torch.float32) if is_short else hidden
    root = torch.sqrt((numbers * numbers).sum(-1, keepdim=True) / hidden.size(-1) + eps)
    return (numbers / root * gain.to(numbers.dtype)).type_as(hidden)
    ### END SOLUTION


def frequencies(head_dim, theta, scaling=None):
    ### BEGIN SOLUTION
    kind = (scaling or {}).get("rope_type", "default")
    found = []
    for pair in range(head_dim // 2):
        frequency = 1 / theta ** (2 * pair / head_dim)
        if kind == "linear":
            frequency /= scaling["factor"]
        elif kind == "llama3":
            low, high = (scaling[f"{end}_freq_factor"] for end in ("low", "high"))
            turns = scaling["original_max_position_embeddings"] * frequency / (2 * math.pi)
            kept = min(max((turns - low) / (high - low), 0), 1)
            frequency *= kept + (1 - kept) / scaling["factor"]
        found.append(frequency)
    return torch.tensor(found, dtype=torch.float32)
    ### END SOLUTION


def rotate(heads, positions, radians):
    ### BEGIN SOLUTION
    angles = torch.einsum("bs,h->bsh", positions.float(), radians).unsqueeze(1)
    cos = torch.cat([angles.cos(), angles.cos()], dim=3).type_as(heads)
    sin = torch.cat([angles.sin(), angles.sin()], dim=3).type_as(heads)
    half = heads.size(3) // 2
    across = torch.cat((-heads[..., half:], heads[..., :half]), dim=3)
    return heads * cos + across * sin
    ### END SOLUTION


def attend_in_groups(attend, queries, keys, values, mask):
    ### BEGIN SOLUTION
    batch, heads, q_len, head_dim = queries.shape
    kv_heads = keys.size(1)
    folded = queries.reshape(batch, kv_heads, heads // kv_heads * q_len, head_dim)
    rows = torch.cat([mask] * (heads // kv_heads), dim=2)
    return attend(folded, keys, values, rows).reshape(batch, heads, q_len, head_dim)
    ### END SOLUTION


def swiglu(hidden, gate_up, down):
    ### BEGIN SOLUTION
    both = gate_up(hidden)
    middle = both.size(-1) // 2
    gate = both[..., :middle]
    return down(gate * torch.sigmoid(gate) * both[..., middle:])
    ### END SOLUTION


def dequantize(raw, kind):
    ### BEGIN SOLUTION
    table = raw.contiguous().numpy()
    scale = np.ascontiguousarray(table[:, :2]).view("<f2").astype(np.float32)
    if kind == "Q8_0":
        codes = np.ascontiguousarray(table[:, 2:]).view(np.int8).astype(np.float32)
        return torch.from_numpy(codes * scale)
    packed = table[:, 4 if kind == "Q4_1" else 2 :]
    codes = np.concatenate([packed % 16, packed // 16], axis=1).astype(np.float32)
    if kind == "Q4_1":
        minimum = np.ascontiguousarray(table[:, 2:4]).view("<f2").astype(np.float32)
        return torch.from_numpy(codes * scale + minimum)
    return torch.from_numpy((codes - 8) * scale)
    ### END SOLUTION


def from_gguf(tensors, heads, kv_heads, kind):
    ### BEGIN SOLUTION
    weights = {}
    for name, tensor in tensors.items():
        parts = name.split(".")
        count = {"attn_q": heads, "attn_k": kv_heads}.get(parts[2] if len(parts) > 2 else "")
        if kind == "llama" and count:
            pieces = [(head[0::2], head[1::2]) for head in tensor.chunk(count)]
            tensor = torch.cat(list(itertools.chain(*pieces)))
        weights[our_name(name)] = tensor
    return joined(weights)
    ### END SOLUTION


def chat_ids(messages, tokenizer, control):
    ### BEGIN SOLUTION
    turns = [(m["role"], m["content"]) for m in messages]
    if turns[0][0] != "system":
        turns.insert(0, ("system", SYSTEM))
    ids = []
    for role, content in turns:
        ids.append(control["<|im_start|>"])
        ids.extend(tokenizer.encode(role + "\n" + content))
        ids.append(control["<|im_end|>"])
        ids.extend(tokenizer.encode("\n"))
    ids.append(control["<|im_start|>"])
    ids.extend(tokenizer.encode("assistant\n"))
    return ids
    ### END SOLUTION
