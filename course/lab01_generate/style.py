"""Lab 1 in another style: an iterator, positions by name, gaps between tokens."""

from dataclasses import dataclass
from itertools import islice, pairwise
from statistics import fmean


@dataclass
class Decoding:
    """Each `next` passes the whole text to the model, and gives the newest token of every row."""

    model: object
    ids: torch.Tensor

    def __iter__(self):
        return self

    def __next__(self):
        batch, seq = self.ids.shape
        if seq >= self.model.config.n_positions:
            raise StopIteration
        positions = torch.stack([torch.arange(seq)] * batch)
        newest = self.model(self.ids, position_ids=positions).select(1, -1).max(dim=-1).indices
        self.ids = torch.column_stack((self.ids, newest))
        return newest


def generate(model, input_ids, max_new_tokens, eos_token_id=None):
    ### BEGIN SOLUTION
    decoding = Decoding(model, input_ids)
    for newest in islice(decoding, max_new_tokens):
        if newest.tolist() == [eos_token_id]:
            break
    return decoding.ids
    ### END SOLUTION


def metrics(start, token_times):
    ### BEGIN SOLUTION
    first, *gaps = (after - before for before, after in pairwise([start, *token_times]))
    latency = first + sum(gaps)
    figures = {"ttft": first, "tpot": fmean(gaps) if gaps else None}
    return Metrics(**figures, latency=latency, throughput=(1 + len(gaps)) / latency)
    ### END SOLUTION
