"""Lab 9: disaggregation. Prefill and decode are kept apart, first in time, then in space.

A long prompt that is computed in one step stops everybody's next token. In chunks, beside the
decodes of others, it stops nobody, and comes to its own first token a little later. Kept apart in
space, prefill runs in one process and decode in another, and what they share is sent: the prompt's
keys and values.

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
    """Compute a prompt by `chunk` tokens at a time; return the logits after its last token.

    They are those of one prefill: each chunk attends to all before it, which are in the cache. It
    is empty at first, and holds the prompt in the end. The last chunk may be shorter.
    """
    if chunk < 1 or ids.shape[1] < 1:
        raise ValueError(
            "A chunk has one token or more, and so has a prompt; these have "
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
    """Newcomers wait until all who run have ended, as static batches do (FasterTransformer)."""

    def schedule(self) -> Plan:
        self.is_open = not self.running
        return super().schedule()

    def admit(self) -> bool:
        return self.is_open and super().admit()


class PrefillFirst(Scheduler):
    """Newcomers' whole prompts, whatever the budget; else decodes (vLLM at first, nano-vllm)."""

    def schedule(self) -> Plan:
        plan: Plan = {}
        while self.admit():
            newcomer = self.running[-1]
            plan[newcomer.number] = newcomer.next_count(len(newcomer.text))
        return plan or super().schedule()


class StallFree(Scheduler):
    """Decodes first, then prompts in chunks of what is left of the budget (Sarathi-Serve)."""

    def schedule(self) -> Plan:
        """How many tokens of which request the next forward computes.

        Three kinds take from one `token_budget`, each kind in the order of `running`: first those
        who decode; then those whose prompt has been computed in part; then newcomers, while
        something is left and `admit` lets one in, but nobody in a step that has preempted somebody.
        Each gets its `next_count` under what is left, and a request that runs only if `make_room`
        finds blocks for it. A request that gets no tokens is not in the plan.
        Source: Agrawal et al., algorithm 3.
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
        """Whether a request lacks nothing but its newest token, and drafts."""
        return sequence.num_computed_tokens >= len(sequence.ids) - 1


# ----------------------------------------------------------------------------------------- the gaps


def token_gaps(
    trace: collections.abc.Sequence[collections.abc.Sequence[tuple[int, int, bool]]], request: int
) -> list[int]:
    """How much the engine computed between two tokens of a request: the tokens of everybody.

    trace: for each step, (request, tokens computed, whether a token was sampled) of all it served.
    For each step in which the request gains a token, but the first of those: what was computed in
    the steps since the one before, this one included.
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
    """The keys and values of a request's tokens `start` to `end`, the last excluded, to be sent.

    table: its blocks. They are a copy in one stretch of memory: what becomes of the pool later
    doesn't change them, and there is nothing else among them.
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
    """Write keys and values of a request's tokens, from its token `start` on, into its blocks.

    table: its blocks in this pool, which may have another size than where they come from. No other
    slot is changed.
    """
    ### BEGIN SOLUTION
    positions = torch.arange(start, start + kv.shape[2])[None]
    slots = slot_mapping(torch.tensor([table]), positions, pool.shape[3])
    pool.flatten(2, 3)[:, :, slots[0]] = kv
    ### END SOLUTION


def adopt(engine: Engine, number: int, message: Prefilled) -> None:
    """Let an engine go on with a request whose prompt was computed elsewhere.

    It holds blocks for its prompt here, under `number`; what is not in them yet, the message
    brings. From now on it runs, as if it had been prefilled here: the prompt's tokens are computed
    and published, the first new token goes out with the next step, and may be the last.
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
    """Requests whose blocks stay after their prefill: until they have arrived, or time is up.

    seconds: how long a lease lasts. ends: by request, when its lease ends; by one clock.
    """

    def __init__(self, seconds: float) -> None:
        if seconds <= 0:
            raise ValueError(f"A lease lasts some time; {seconds} seconds are none.")
        self.seconds = seconds
        self.ends: dict[int, float] = {}

    def hold(self, request: int, now: float) -> None:
        """Let a request's blocks stay, from now on."""
        if request in self.ends:
            raise ValueError(f"Request {request} has a lease already.")
        self.ends[request] = now + self.seconds

    def due(self, now: float, confirmed: collections.abc.Sequence[int]) -> list[int]:
        """The requests whose blocks are to be freed now, each once in its life.

        Those that are confirmed to have arrived, in that order; then those whose time is up, in the
        order in which they were held. A confirmation may come twice, or when the lease has ended,
        or for a request that never had one: then there is nothing to free.
        """
        ### BEGIN SOLUTION
        over = [request for request, end in self.ends.items() if end <= now]
        due = [r for r in dict.fromkeys([*confirmed, *over]) if r in self.ends]
        for request in due:
            del self.ends[request]
        return due
        ### END SOLUTION
