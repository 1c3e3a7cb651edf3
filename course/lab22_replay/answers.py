"""Answers to lab 22's exercises: replays, sizes, graphs over blocks, guards, spans."""

import torch

from solutions.flash_attention import merge
from solutions.replay import Graph, Graphs, in_spans, ladder
from tests.common.attempts import right, wrong, wrong_result

wrong_result(Graph.replay, lambda out: None, "not None. Is a `return` missing?")
wrong_result(ladder, tuple, "What it returned should be a list, not a tuple.")
wrong_result(Graphs.run, lambda hidden: None, "not None. Is a `return` missing?")
wrong_result(in_spans, lambda part: part[0], "in_spans returns output and lse; this is a Tensor.")


@right(Graph.replay)
def with_a_copy_returned(self):
    for function, inputs, results in self.operations:
        for memory, numbers in zip(results, function(*inputs), strict=True):
            memory[:] = numbers
    self.device.launches += 1
    return self.out.clone()


@right(Graphs.run)
def with_all_memory_filled_first(self, ids, positions, tables):
    rows, blocks = tables.shape
    size = min((size for size in self.sizes if size >= rows), default=None)
    if size is None:
        return None
    self.ids.zero_()
    self.positions.zero_()
    self.tables[...] = self.scratch
    self.ids[:rows].copy_(ids)
    self.positions[:rows].copy_(positions)
    self.tables[:rows, :blocks].copy_(tables)
    return self.graphs[size].replay()[:rows].detach().clone()


@wrong(Graphs.run, "The device in step 1 waits; expected: it computes 1 row.")
def never(self, ids, positions, tables):
    return None


@wrong(in_spans, "The list of spans differs first at [1].")
def with_one_key_each(worker, length, span, run):
    tasks = [lambda at=at: worker(at, at + 1) for at in range(length)]
    found = dict(run(tasks))
    parts = [found[place] for place in range(length)]
    return merge(torch.stack([one for one, _ in parts]), torch.stack([two for _, two in parts]))


# ------------------------------------------------------------- mutants that do the same by right

EQUIVALENT = {
    "replay.Graphs.run": {
        "self.tables[rows:size] -> self.tables[rows:]": "the graph doesn't read the rows after it",
    },
}
