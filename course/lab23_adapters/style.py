"""Lab 23 in another style: einsum, loops over rows, a search in place of sets."""


def delta(hidden, added):
    ### BEGIN SOLUTION
    rank = len(added.b)
    thin = torch.einsum("ri,ik->rk", hidden, added.a / rank)
    return added.alpha * torch.einsum("rk,ko->ro", thin, added.b)
    ### END SOLUTION


def merged(weight, added, sign=1):
    ### BEGIN SOLUTION
    a, b, alpha = added
    result = weight.clone()
    result.addmm_(a, b, alpha=sign * alpha / len(b))
    return result
    ### END SOLUTION


def stacked(adapters):
    ### BEGIN SOLUTION
    most = max(len(added.b) for added in adapters)
    padded = [(torch.zeros_like(adapters[0].a[:, :1]), torch.zeros_like(adapters[0].b[:1]))]
    padded += [(added.a, added.b * added.alpha / len(added.b)) for added in adapters]
    sides = [
        (
            torch.nn.functional.pad(a, (0, most - a.shape[1])),
            torch.nn.functional.pad(b, (0, 0, 0, most - len(b))),
        )
        for a, b in padded
    ]
    return torch.stack([a for a, _ in sides]), torch.stack([b for _, b in sides])
    ### END SOLUTION


def adapter_rows(batch, adapter_of):
    ### BEGIN SOLUTION
    order = sorted(range(len(batch)), key=lambda place: (batch[place].shape, place))
    numbers = torch.tensor([adapter_of[batch[place].request] for place in order])
    return numbers.repeat_interleave(torch.tensor([len(batch[place].ids) for place in order]))
    ### END SOLUTION


def gathered(hidden, all_a, all_b, numbers):
    ### BEGIN SOLUTION
    thin = torch.einsum("ri,rik->rk", hidden, all_a.index_select(0, numbers))
    return torch.einsum("rk,rko->ro", thin, all_b.index_select(0, numbers))
    ### END SOLUTION


def in_segments(hidden, all_a, all_b, numbers, product=torch.matmul):
    ### BEGIN SOLUTION
    order = numbers.argsort(stable=True)
    counts = numbers.bincount(minlength=len(all_a)).tolist()
    pieces = []
    for number, its in enumerate(hidden[order].split(counts)):
        if number == 0 or len(its) == 0:
            pieces.append(hidden.new_zeros(len(its), all_b.shape[2]))
        else:
            pieces.append(product(product(its, all_a[number]), all_b[number]))
    return torch.cat(pieces)[order.argsort()]
    ### END SOLUTION


class AdapterCache:
    def take(self, adapter):
        ### BEGIN SOLUTION
        slot = self.slots.get(adapter)
        if slot is None:
            taken = list(self.slots.values())
            for slot in range(1, self.size + 1):
                if slot not in taken:
                    break
            else:
                for oldest in self.slots:
                    if not self.users[oldest]:
                        break
                else:
                    raise NoSlot
                slot = self.slots.pop(oldest)
                del self.users[oldest]
            self.load(adapter, slot)
        self.slots[adapter] = slot
        self.slots.move_to_end(adapter)
        self.users[adapter] = self.users.get(adapter, 0) + 1
        return slot
        ### END SOLUTION

    def release(self, adapter):
        ### BEGIN SOLUTION
        self.users.update({adapter: self.users[adapter] - 1})
        self.slots[adapter] = self.slots.pop(adapter)
        ### END SOLUTION


def salted(salt, adapter, version):
    ### BEGIN SOLUTION
    whose = ("base",) if adapter is None else ("adapter", adapter, version)
    return repr((salt, whose)).encode()
    ### END SOLUTION


def next_request(waiting, running, passed, most, patience):
    ### BEGIN SOLUTION
    def fits(number):
        there = {other for other in running if other}
        return number == 0 or number in there or len(there) < most

    for place, number in enumerate(waiting):
        if passed[place] > patience:
            return place if fits(number) else None
    return next((place for place, number in enumerate(waiting) if fits(number)), None)
    ### END SOLUTION


def served(model, base, versions):
    ### BEGIN SOLUTION
    if model == base:
        return None, 0
    for adapter, version in versions.items():
        if model == base + ":" + adapter:
            return adapter, version
    raise LookupError(f"{base} and {', '.join(base + ':' + name for name in versions)}")
    ### END SOLUTION
