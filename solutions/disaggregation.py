"""Lab 9: disaggregation. Prefill and decode are separated, first in time, then in space.

A long prompt that is computed in one step delays the next token of every other request. Cut into
chunks and computed together with the decodes of others, it delays none of them by more than the
budget, and gets its own first token a little later. Separated in space, prefill runs in one process
and decode in another, and the keys and values of the prompt are sent from one to the other.

Sources: Agrawal et al., "Taming throughput-latency tradeoff in LLM inference with Sarathi-Serve",
OSDI 2024; Zhong et al., "DistServe", OSDI 2024; Patel et al., "Splitwise", ISCA 2024.
"""

import collections.abc
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor

from solutions.engine.engine import Engine
from solutions.engine.scheduler import Plan, Scheduler
from solutions.engine.sequence import Sequence
from solutions.kv_cache import CachedLMHead, KVCache
from solutions.paged_attention import slot_mapping
from solutions.two_processes.messages import Prefilled

# ----------------------------------------------------------------------------- a prompt in chunks


@torch.inference_mode()
def prefill_in_chunks(
    model: CachedLMHead, kv_cache: KVCache, ids: Int[Tensor, "batch seq"], chunk: int
) -> Float[Tensor, "batch vocab"]:
    """Compute a prompt `chunk` tokens at a time; return the logits after its last token.

    They are the logits of a single prefill, because each chunk attends to all earlier chunks, which
    are in the cache. `kv_cache` is empty at first and holds the whole prompt at the end. The last
    chunk may be shorter. Raises ValueError for an empty prompt or a chunk below 1.
    """
    if chunk < 1 or ids.shape[1] < 1:
        raise ValueError(
            "A chunk and a prompt have at least one token each; these have "
            f"{chunk} and {ids.shape[1]}."
        )
    ### BEGIN SOLUTION
    for start in range(0, ids.shape[1], chunk):
        part = ids[:, start : start + chunk]
        positions = torch.arange(start, start + part.shape[1], device=ids.device)
        logits = model(part, positions.expand_as(part), kv_cache)
    return logits[:, -1]
    ### END SOLUTION


# ------------------------------------------------------------------------------------- the policies


class RequestLevel(Scheduler):
    """Admit new requests only when none is running, as static batching does (FasterTransformer)."""

    def schedule(self) -> Plan:
        self.is_open = not self.running
        return super().schedule()

    def admit(self) -> bool:
        return self.is_open and super().admit()


class PrefillFirst(Scheduler):
    """Compute whole prompts in steps of their own, whatever the budget (early vLLM, nano-vllm)."""

    def schedule(self) -> Plan:
        plan: Plan = {}
        while self.admit():
            newcomer = self.running[-1]
            plan[newcomer.number] = newcomer.next_count(len(newcomer.text))
        return plan or super().schedule()


class StallFree(Scheduler):
    """Decodes first, then chunks of prompts with the rest of the budget (Sarathi-Serve)."""

    def schedule(self) -> Plan:
        """Decide how many tokens of which requests the next forward pass computes.

        Three kinds of requests share one `token_budget`. First the requests that decode, then those
        whose prompt is partly computed, both in the order of `running`. Then new requests, while
        some budget is left and `admit` lets one in; but none in a step that has preempted a
        request. Each request gets its `next_count` under the budget that is left, and a running one
        only if `make_room` finds blocks for it. Leave out requests that get no tokens. Returns the
        tokens by request number. Source: Agrawal et al., algorithm 3.
        """
        ### BEGIN SOLUTION
        plan: Plan = {}
        budget, preemptions = self.token_budget, self.preemptions
        decoding = [sequence for sequence in self.running if self.decodes(sequence)]
        started = [sequence for sequence in self.running if not self.decodes(sequence)]
        for sequence in decoding + started:
            count = sequence.next_count(budget)
            if count > 0 and self.make_room(sequence, count):
                plan[sequence.number] = count
                budget -= count
        while budget > 0 and self.preemptions == preemptions and self.admit():
            newcomer = self.running[-1]
            plan[newcomer.number] = newcomer.next_count(budget)
            budget -= plan[newcomer.number]
        return plan
        ### END SOLUTION

    def decodes(self, sequence: Sequence) -> bool:
        """Whether only the newest token of a request, and its drafts, are not computed yet."""
        return sequence.num_computed_tokens >= len(sequence.ids) - 1


# ----------------------------------------------------------------------------------------- the gaps


def token_gaps(
    trace: collections.abc.Sequence[collections.abc.Sequence[tuple[int, int, bool]]], request: int
) -> list[int]:
    """Count the tokens that the engine computed between two tokens of a request, for all requests.

    trace: for each step, (request, tokens computed, whether a token was sampled) of every request
    that it served. Returns one number for each step in which the request gains a token, except the
    first: the tokens computed since the step in which it gained one before, without that step and
    with this one.
    """
    ### BEGIN SOLUTION
    totals = [sum(tokens for _, tokens, _ in step) for step in trace]
    gaining = [n for n, step in enumerate(trace) if any(r == request and s for r, _, s in step)]
    return [sum(totals[one + 1 : other + 1]) for one, other in pairwise(gaining)]
    ### END SOLUTION


# ---------------------------------------------------------------------------- keys and values sent


def pack_kv(
    pool: Float[Tensor, "2 layers blocks block_size heads head_dim"],
    table: collections.abc.Sequence[int],
    start: int,
    end: int,
) -> Float[Tensor, "2 layers tokens heads head_dim"]:
    """Copy the keys and values of a request's tokens from `start` up to, but without, `end`.

    table: the request's blocks. The result is contiguous and has its own memory, without any other
    token in it, so it can be sent as it is, and later changes of the pool don't change it.
    """
    ### BEGIN SOLUTION
    slots = slot_mapping(torch.tensor([table]), torch.arange(start, end)[None], pool.shape[3])
    return pool.flatten(2, 3)[:, :, slots[0]]
    ### END SOLUTION


def unpack_kv(
    pool: Float[Tensor, "2 layers blocks block_size heads head_dim"],
    table: collections.abc.Sequence[int],
    start: int,
    kv: Float[Tensor, "2 layers tokens heads head_dim"],
) -> None:
    """Write keys and values of a request's tokens, beginning with token `start`, into its blocks.

    table: its blocks in this pool, whose block size may differ from the sender's. Changes no other
    slot.
    """
    ### BEGIN SOLUTION
    positions = torch.arange(start, start + kv.shape[2])[None]
    slots = slot_mapping(torch.tensor([table]), positions, pool.shape[3])
    pool.flatten(2, 3)[:, :, slots[0]] = kv
    ### END SOLUTION


def adopt(engine: Engine, number: int, message: Prefilled) -> None:
    """Let an engine continue a request whose prompt was computed elsewhere.

    The request holds blocks for its prompt here already, under `number`. The message brings the
    keys and values that are not in them yet. Afterwards the request runs as if it had been
    prefilled here: `engine.sequences` and the scheduler's `running` have it, its prompt is computed
    and published, and then it gains `message.first_token`, which goes out with the next step and
    may be its last.
    """
    sequence = message.sequence(number)
    ### BEGIN SOLUTION
    manager, pool = engine.scheduler.manager, engine.runner.kv_cache.cache.pool
    unpack_kv(pool, manager.tables[number], message.start, message.kv)
    sequence.num_computed_tokens = len(sequence.ids)
    manager.publish(number, sequence.ids, sequence.num_computed_tokens)
    engine.sequences[number] = sequence
    engine.scheduler.running.append(sequence)
    engine.gain(sequence, [message.first_token])
    ### END SOLUTION


class Leases:
    """Requests whose blocks are kept after their prefill, until they have arrived or time is up.

    seconds: how long a lease lasts. ends: for each request, when its lease ends, by one clock.
    """

    def __init__(self, seconds: float) -> None:
        if seconds <= 0:
            raise ValueError(f"A lease lasts more than 0 seconds, not {seconds}.")
        self.seconds = seconds
        self.ends: dict[int, float] = {}

    def hold(self, request: int, now: float) -> None:
        """Keep a request's blocks from now on. Raises ValueError if it has a lease already."""
        if request in self.ends:
            raise ValueError(f"Request {request} has a lease already.")
        self.ends[request] = now + self.seconds

    def due(self, now: float, confirmed: collections.abc.Sequence[int]) -> list[int]:
        """End the leases that are over; return their requests, whose blocks are to be freed now.

        First the requests confirmed to have arrived, in the order of `confirmed`; then those whose
        time is up, in the order in which they were held. Each is returned once, and has no lease
        afterwards. A confirmation may come twice, after the lease has ended, or for a request that
        never had a lease; then there is nothing to free.
        """
        ### BEGIN SOLUTION
        over = [request for request, end in self.ends.items() if end <= now]
        due = [r for r in dict.fromkeys([*confirmed, *over]) if r in self.ends]
        for request in due:
            del self.ends[request]
        return due
        ### END SOLUTION
