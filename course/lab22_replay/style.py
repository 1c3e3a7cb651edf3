"""Lab 22 in another style: loops instead of slices and searches, lists instead of dicts."""


class Graph:
    def replay(self):
        ### BEGIN SOLUTION
        for function, inputs, results in self.operations:
            for place, numbers in enumerate(function(*inputs)):
                results[place][...] = numbers
        self.device.launches = self.device.launches + 1
        return self.out
        ### END SOLUTION


def ladder(most):
    ### BEGIN SOLUTION
    sizes, size = [], 1
    while size < most:
        sizes.append(size)
        size = 2 * size if size < 8 else size + 8
    return [*sizes, most]
    ### END SOLUTION


def rows_computed(batches, sizes):
    ### BEGIN SOLUTION
    total = 0
    for rows in batches:
        place = bisect_left(sizes, rows)
        total += sizes[place] if place < len(sizes) else rows
    return total
    ### END SOLUTION


class Graphs:
    def run(self, ids, positions, tables):
        ### BEGIN SOLUTION
        fitting = [size for size in self.sizes if size >= len(ids)]
        if not fitting:
            return None
        self.tables.fill_(self.scratch)
        for row in range(len(ids)):
            self.ids[row] = ids[row]
            self.positions[row] = positions[row]
            self.tables[row, : len(tables[row])] = tables[row]
        for row in range(len(ids), fitting[0]):
            self.positions[row] = 0
        return torch.clone(self.graphs[fitting[0]].replay())[: len(ids)]
        ### END SOLUTION


class Guarded:
    def run(self, *args):
        ### BEGIN SOLUTION
        found = [code for guards, code in self.kept if False not in [g(*args) for g in guards]]
        if not found and len(self.kept) < self.limit:
            self.kept.append(self.trace(*args))
            found = [self.kept[-1][1]]
        return (found[0] if found else self.eager)(*args)
        ### END SOLUTION


def in_spans(worker, length, span, run):
    ### BEGIN SOLUTION
    tasks = []
    for first in range(0, length, span):
        tasks.append(lambda first=first: worker(first, min(length, first + span)))
    parts = [None] * len(tasks)
    for place, part in run(tasks):
        parts[place] = part
    outputs = torch.stack([output for output, _ in parts])
    return merge(outputs, torch.stack([lse for _, lse in parts]))
    ### END SOLUTION
