"""One attack on all that drivers lend: from what it is lent, an attempt looks for the driver.

It follows attributes, cells, dicts and types, without frames and the garbage collector. Whatever
leads to a function of the driver leads to what is counted there.
"""

from tests.hostile.notebooks import attempt

FAMILY = "forgery"
FOUND_NOTHING = "nothing leads to the driver"

LOOKS = """
HARNESS = "autograder.attempt.drivers.", "autograder.attempt.peer", "autograder.attempt.worker"


def leads_to_the_driver(*things):
    known, left = {}, list(things)
    while left:
        thing = left.pop()
        if id(thing) in known or isinstance(thing, types.ModuleType):
            continue
        known[id(thing)] = thing
        if isinstance(thing, types.FunctionType):
            if str(thing.__module__).startswith(HARNESS):
                return True
            for cell in thing.__closure__ or ():
                with contextlib.suppress(ValueError):
                    left.append(cell.cell_contents)
        if isinstance(thing, types.MethodType):
            left += [thing.__self__, thing.__func__]
        if isinstance(thing, (list, tuple, set)):
            left += thing
        if isinstance(thing, dict):
            left += thing.values()
        if isinstance(thing, type):
            if not thing.__module__.startswith(("autograder", "solutions")):
                continue
            left += thing.__mro__
        else:
            left.append(type(thing))
            left += [getattr(thing, "func", None), getattr(thing, "args", None)]
        with contextlib.suppress(TypeError):
            left += vars(thing).values()
    return False


---
"""

LOOK = f"""
if not leads_to_the_driver(locals()):
    raise RuntimeError({FOUND_NOTHING!r})
...
"""

# Each exercise whose driver lends something that it watches.
LENT = (
    *("kv_cache.ThreadedBlock.forward", "kv_cache.ThreadedLMHead.forward"),
    *("batching.ContinuousBatcher.step", "paged_attention.PagedCache.attend"),
    *("decoding.sample", "decoding.stop_at", "decoding.BeamSearch.step"),
    *("speculative.generate_speculative", "engine.Scheduler.schedule", "engine.Engine.step"),
    *("prefix_caching.PrefixManager.admit", "prefix_caching.RadixTree.walk"),
    *("disaggregation.adopt", "disaggregation.prefill_in_chunks"),
    *("kv_reduction.HostPool.swap_out", "kv_reduction.HostPool.swap_in"),
    *("flash_attention.flash_attention", "flash_attention.split_decode"),
    *("flash_attention.paged_decode", "serving.TextStream.push", "serving.sse"),
    *("serving.RequestPool.stream", "serving.open_loop", "serving.with_failover"),
    *("constrained.generate_constrained", "constrained.hold_back"),
    *("parallel_decoding.generate_tree", "tokenizer.encode", "moe.moe_forward", "moe.exchange"),
    *("parallelism.ring_all_reduce", "parallelism.tensor_parallel_block"),
    *("parallelism.vocab_parallel_logprob", "parallelism.sequence_parallel"),
)

CORPUS = [
    attempt(FAMILY, f"it looks for the driver of {exercise}", exercise, LOOKS + LOOK, FOUND_NOTHING)
    for exercise in LENT
]
