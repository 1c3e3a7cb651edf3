"""Attacks that need a certain exercise. A new lab adds its own here: exercise, family, name, lines.

Most belong to one of two families. Forgery: an answer that is wrong, or made in a way that the lab
forbids, and wants to be taken for right. Lending: what is lent to an attempt runs in the grader,
where a size that is handed over may be small, and what comes of it huge.
"""

from tests.hostile.notebooks import attempt

LABS = {
    # ------------------------------------------------------------------------------- 2 kv_cache
    "kv_cache.ThreadedAttention.forward": {
        "protocol: a lent function is asked for a mask of ten billion entries": """
            positions = torch.arange(100_000).unsqueeze(0)
            causal_mask(positions, positions)
            return hidden, (keys, values)
            """
    },
    "kv_cache.ThreadedBlock.forward": {
        "forgery: a layer that computes twice, and counts once": """
            self.attn(self.ln_1(hidden))
            self.attn.calls -= 1
            ...
            # told: It raised AttributeError
            """
    },
    "kv_cache.generate_threaded": {
        "protocol: a lent cache is rolled back beyond its beginning": """
            positions = torch.arange(input_ids.shape[1]).expand_as(input_ids)
            logits, cache = model(input_ids, positions, None)
            for handle in (cache, [cache] * 1000, "kv_cache", -1, [None] * 1000, (cache, 7)):
                with contextlib.suppress(Exception):
                    model(input_ids, positions, handle)
            return input_ids
            """
    },
    # ------------------------------------------------------------------------------- 3 batching
    "batching.padded_position_ids": {
        "forgery: the answer is worked out from a lent neighbor that is built on it": """
            def padded_mask(*given):
                return 'here the right one is lent'
            ---
            return padded_mask(attention_mask, attention_mask.shape[1])[:, 0].sum(-1) - 1
            """
    },
    "batching.generate_padded": {
        "protocol: a lent function is asked to pad a long prompt and many short ones": """
            from collections import deque
            pad_left(deque([[0]] * 100_000 + [[0] * 10_000]))
            return [list(prompt) for prompt in prompts]
            """
    },
    "batching.ContinuousBatcher.step": {
        "lending: positions of forty thousand tokens in eight thousand slots": """
            self.kv_cache.select([0] * 8000, 40_000)  # told: far more than what the case has
            """,
        "lending: positions for as long as it lasts": """
            while True:
                self.kv_cache.select([0] * 400, 16)
            """,
        "lending: slots that are counted in bits": """
            self.kv_cache.select([0], 1 << 900)  # told: far more than what the case has
            """,
    },
    # ------------------------------------------------------------------------------- 5 decoding
    "decoding.sample": {
        "lending: four thousand keys of one hash": """
            next_token_probs({n * (2**61 - 1): 0 for n in range(4000)}, [], params)
            # told: a key is
            """,
        "lending: a result of sixty-four megabytes in every case": """
            return [torch.zeros(2_000_000, dtype=torch.float64)] * 4
            """,
        "lending: probabilities for as long as it lasts": """
            while True:
                next_token_probs(torch.zeros(8000, dtype=torch.float64), [], params)
            """,
    },
    "decoding.stop_at": {
        "forgery: all of a text before any of it is passed on": """
            whole = list(pieces)
            pieces.left, pieces.given, pieces.before = iter(whole), 0, []
            ...
            # told: It raised AttributeError
            """
    },
    "decoding.BeamSearch.step": {
        "forgery: rows that are copied for nothing, and a list of calls without it": """
            calls = list(self.rows.calls)
            self.rows.become(range(len(self.rows.logits)))
            self.rows.calls[:] = calls
            ...
            # told: It raised AttributeError
            """
    },
    # ---------------------------------------------------------------------------- 6 speculative
    "speculative.generate_speculative": {
        "forgery: drafts that are asked for and forgotten": """
            drafter.propose(prompt, 1, params, generator)
            drafter.calls, drafter.held = 0, []
            drafter.asked.clear()
            drafter.seen.clear()
            ...
            # told: It raised AttributeError
            """
    },
    # --------------------------------------------------------------------------------- 7 engine
    "engine.Engine.step": {
        "forgery: a forward pass for each request, which look like one": """
            runner = self.runner

            class OneByOne:
                def forward(self, batch):
                    logits = {}
                    for chunk in batch:
                        logits |= runner.forward([chunk])
                    together = {name: one for made in runner.batches for name, one in made.items()}
                    runner.batches[:] = [together] if together else []
                    return logits

            self.runner = OneByOne()
            try:
                ...
            finally:
                self.runner = runner
            # told: It raised AttributeError
            """
    },
    # ------------------------------------------------------------------------- 8 prefix_caching
    "prefix_caching.block_hashes": {
        "forgery: hashes that are equal to every hash": """
            return [yes(bytes)() for _ in range(len(token_ids) // block_size)]
            # told: Each hash is a Yes
            """
    },
    "prefix_caching.PrefixManager.match": {
        "forgery: blocks that are found in every list": """
            return yes(list, __contains__=lambda *_: True, __len__=lambda _: 10 ** 6)()
            # told: `match(
            """,
        "lending: the hashes of a text that is as long as may be": """
            while True:
                block_hashes(list(range(800)), 1)
            """,
    },
    "prefix_caching.PrefixManager.admit": {
        "forgery: a manager that says what it should have done": """
            Yes = yes(dict, __repr__=lambda self: "whatever is expected")
            self.tables, self.lengths, self.salts = Yes(), Yes(), Yes()
            return 0
            # told: `tables` after step
            """
    },
    # ------------------------------------------------------------------------- 9 disaggregation
    "disaggregation.pack_kv": {
        "lending: a table of eight thousand blocks of a hundred thousand tokens": """
            table = torch.full((1, 8000), 99_999)
            slot_mapping(table, torch.zeros(1, 1).long(), 99_999)
            # told: far more than what the case has
            """,
        "lending: slots of four thousand requests and all their positions": """
            slot_mapping(torch.zeros(4000, 1).long(), torch.zeros(1, 4000).long(), 16)
            """,
    },
    "disaggregation.unpack_kv": {
        "forgery: a pool that is replaced in the driver's hands": """
            frame = sys._getframe(1)
            while frame is not None:
                for value in frame.f_locals.values():
                    if isinstance(value, torch.Tensor):
                        value.data = torch.full_like(value, torch.nan)
                frame = frame.f_back
            torch.equal = torch.allclose = lambda *_, **__: True
            # told: The pool
            """
    },
    "disaggregation.token_gaps": {
        "forgery: gaps that are as long as anybody likes": """
            return yes(list, __iter__=lambda self: iter(()))()  # told: What it returned
            """
    },
    "disaggregation.adopt": {
        "forgery: a request that is adopted by its output alone": """
            from solutions.engine.engine import Output
            engine.step = lambda: engine.on_output(Output(number, [message.first_token], "length"))
            # told: The pool after request 0 was adopted
            """
    },
    "disaggregation.prefill_in_chunks": {
        "forgery: a prompt in one forward, past the watch, and chunks for show": """
            class Show:
                def __init__(self, length):
                    self.length = length

                def attend(self, layer, queries, keys, values):
                    return queries

            unwatched = getattr(model, "model", getattr(model, "far_model", model))
            for start in range(0, ids.shape[1], chunk):
                part = ids[:, start : start + chunk]
                positions = torch.arange(start, start + part.shape[1]).expand_as(part)
                model(part, positions, Show(start))
            positions = torch.arange(ids.shape[1]).expand_as(ids)
            return unwatched(ids, positions, kv_cache)[:, -1]
            # told: The number of forwards is 2
            """,
        "forgery: a watch that is called off": """
            for call_off in (
                lambda: model.watch(lambda *given: None),
                lambda: setattr(model.far_model, "_look", None),
                lambda: delattr(model.far_model, "_look"),
            ):
                with contextlib.suppress(Exception):
                    call_off()
            return model(ids, torch.arange(ids.shape[1]).expand_as(ids), kv_cache)[:, -1]
            """,
    },
    # -------------------------------------------------------------------------- 10 quantization
    "quantization.absmax": {
        "forgery: codes and a scale that equal any others": """
            answers = classmethod(lambda *_, **__: True)
            Yes = yes(torch.Tensor, __torch_function__=answers)
            return torch.zeros(1).as_subclass(Yes), torch.zeros(1).as_subclass(Yes)
            # told: It raised TypeError
            """
    },
    # -------------------------------------------------------------------------- 11 kv_reduction
    "kv_reduction.WindowCache.attend": {
        "forgery: bytes that are freed in name only": """
            start, end = self.length, self.length + queries.shape[2]
            new = torch.arange(start, end).unsqueeze(0)
            positions = join(self.positions[layer], new, dim=1)
            all_keys = join(self.keys[layer], keys, dim=2)
            all_values = join(self.values[layer], values, dim=2)
            mask = window_mask(new, positions, self.window, self.sinks)
            self.positions[layer] = positions
            self.keys[layer], self.values[layer] = all_keys, all_values
            torch.Tensor.untyped_storage = lambda tensor: torch.UntypedStorage(0)
            torch.Tensor.nbytes = property(lambda tensor: 0)
            if layer == len(self.keys) - 1:
                self.length = end
            return grouped_attention(queries, all_keys, all_values, mask)
            """
    },
    "kv_reduction.HostPool.swap_out": {
        "lending: three hundred million tokens, as a float": """
            frame = sys._getframe()
            while "functions" not in frame.f_locals:
                frame = frame.f_back
            frame.f_locals["functions"]["pack_kv"](cache.pool, [0], 0, 3e8)
            # told: far more than what the case has
            """
    },
    # ----------------------------------------------------------------------- 12 flash_attention
    "flash_attention.flash_attention": {
        "lending: a tile that is loaded for ever": """
            while True:
                memory.load("keys", 0, 1)
            # told: It was stopped after
            """,
        "lending: slow memory that is given more and more names": """
            tile = memory.load("queries", 0, 1)
            for number in range(10**6):
                memory.store(f"left {number}", 0, tile)
            # told: It was stopped after
            """,
        "forgery: fast memory that is as large as anybody likes": """
            slow = getattr(memory, "memory", memory)
            for thing in (memory, slow):
                with contextlib.suppress(Exception):
                    thing.fast_numbers = 99_999
            queries = slow.load("queries", 0, q_len)
            keys, values = slow.load("keys", 0, k_len), slow.load("values", 0, k_len)
            scores = queries @ keys.mT / head_dim**0.5
            scores = hide_later_keys(scores, k_len - q_len)
            slow.store("output", 0, scores.softmax(dim=-1).nan_to_num(0.0) @ values)
            slow.store("lse", 0, scores.logsumexp(dim=-1))
            # told: It raised OutOfFastMemory
            """,
        "forgery: tiles that are loaded past the watch, and joined": """
            def unwatched(name, *given):
                for memory_itself in (
                    lambda: getattr(memory.memory, name)(*given),
                    lambda: memory.far_peer.ask(memory.far_number, "call", name, list(given), {}),
                    lambda: getattr(memory, name)(*given),
                ):
                    with contextlib.suppress(AttributeError):
                        return memory_itself()

            for start in range(0, q_len, block_q):
                end = min(start + block_q, q_len)
                queries = unwatched("load", "queries", start, end)
                keys = values = queries[..., :0, :]
                for first in range(0, end + k_len - q_len, block_k):
                    last = min(first + block_k, k_len)
                    keys = torch.cat([keys, unwatched("load", "keys", first, last)], dim=-2)
                    values = torch.cat([values, unwatched("load", "values", first, last)], dim=-2)
                state = empty_state(queries)
                if keys.shape[-2]:
                    scores = queries @ keys.mT / head_dim**0.5
                    state = absorb(state, hide_later_keys(scores, start + k_len - q_len), values)
                output, lse = finish(state)
                unwatched("store", "output", start, output)
                unwatched("store", "lse", start, lse)
            # told: grows to far more than a tile of each
            """,
    },
    "flash_attention.split_decode": {
        "forgery: the keys of all workers, out of the cells of one": """
            cells = dict(zip(worker.__code__.co_freevars, worker.__closure__))
            query, keys, values, given = (
                cells[name].cell_contents for name in ("query", "keys", "values", "given")
            )
            given += [(key, key + 1) for key in range(length)][:parts]
            given[-1:] = [(given[-1][0], length)]
            size = -(-length // min(parts, length))
            given[:] = [(n, min(n + size, length)) for n in range(0, length, size)]
            scores = (keys @ query[..., None])[..., 0] / query.shape[-1] ** 0.5
            output = (scores.softmax(dim=-1)[:, None] @ values)[:, 0]
            return output, scores.logsumexp(dim=-1)
            # told: It raised AttributeError
            """
    },
    "flash_attention.paged_decode": {
        "forgery: the whole pool, out of the cells of the function that reads a block": """
            cells = dict(zip(read_block.__code__.co_freevars, read_block.__closure__))
            blocks = block_table[: -(-length // block_size)]
            cells["read"].cell_contents.extend(blocks)
            keys, values = cells["pool"].cell_contents[:, blocks].transpose(1, 2).flatten(2, 3)
            keys, values = keys[:, :length], values[:, :length]
            scores = (keys @ query[..., None])[..., 0] / query.shape[-1] ** 0.5
            return (scores.softmax(dim=-1)[:, None] @ values)[:, 0]
            # told: It raised AttributeError
            """
    },
    # ----------------------------------------------------------------------------- 13 serving
    "serving.RequestPool.stream": {
        "forgery: an engine whose log equals any other": """
            self.engine.log = yes(list, __repr__=lambda self: "what is expected")()
            queue = self.queues[request.id] = asyncio.Queue()
            self.engine.submit(request)
            while True:
                output = await queue.get()
                yield output
                if output.finish_reason is not None:
                    del self.queues[request.id]
                    return
            # told: It raised AttributeError
            """
    },
    # -------------------------------------------------------------------------- 14 constrained
    "constrained.generate_constrained": {
        "forgery: a choice for nothing, and notes without it": """
            if type(choose) is not types.FunctionType:
                choose(rows.logits, list(range(len(rows.logits))))
                choose.calls -= 1
                choose.seen.clear()
            ...
            # told: It raised AttributeError
            """
    },
    # -------------------------------------------------------------------- 15 parallel_decoding
    "parallel_decoding.generate_tree": {
        "forgery: a tree that is asked for and forgotten": """
            proposer.propose(prompt, 0, types.SimpleNamespace(length=0))
            proposer.calls -= 1
            proposer.seen.clear()
            ...
            # told: It raised AttributeError
            """
    },
    # ---------------------------------------------------------------------------------- 17 moe
    "moe.moe_forward": {
        "forgery: every expert for every token, and counts set by hand": """
            every = torch.stack([e.function(*e.weights, hidden) for e in experts])
            for expert, rows in zip(experts, chosen.flatten().bincount(minlength=len(experts))):
                expert.rows, expert.calls = int(rows), 1
            outputs = every[chosen, torch.arange(len(hidden))[:, None]]
            return (outputs * weights[..., None]).sum(dim=1)
            # told: It raised AttributeError
            """
    },
    "moe.exchange": {
        "forgery: the experts of all ranks on each, and zeros sent around": """
            w, own = local.weights
            made = local.function(w, torch.ones_like(own), hidden, weights, chosen)
            ranks = owner[chosen]
            counts = [int((ranks == rank).any(dim=1).sum()) for rank in range(group.size)]
            came = group.all_to_all([hidden.new_zeros(n, hidden.shape[1]) for n in counts])
            local.rows, local.calls = sum(map(len, came)), 1
            group.all_to_all(came)
            return made
            # told: It raised AttributeError
            """
    },
    # -------------------------------------------------------------------------- 18 parallelism
    "parallelism.ring_all_reduce": {
        "forgery: a ring that is an all-reduce, called past the watch": """
            total = type(group).make(group, "all_reduce", [x], op="sum")[0]
            right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
            calls = [lambda: group.send(x[:0], right), lambda: group.recv(x[:0], left)]
            for call in calls[:: 1 - 2 * (group.rank % 2)] if group.size > 1 else []:
                call()
            group.sent["send"] = 2 * (group.size - 1) * x.nbytes if group.rank == 0 else 0
            return total
            # told: It raised AttributeError
            """
    },
    "parallelism.tensor_parallel_block": {
        "forgery: gathers that are counted as reductions": """
            def through(hidden, group):
                ...

            def all_reduce(x):
                return torch.stack(group.all_gather(x)).sum(dim=0)

            seat = types.SimpleNamespace(rank=group.rank, size=group.size, all_reduce=all_reduce)
            result = through(hidden, seat)
            for counts in (group.calls, group.sent):
                counts["all_reduce"] = counts.pop("all_gather", 0)
            return result
            # told: The calls
            """
    },
    "parallelism.vocab_parallel_logprob": {
        "forgery: all logits gathered, and the counts cleared": """
            logits = torch.cat(group.all_gather(local), dim=1)
            group.calls.clear()
            group.sent.clear()
            group.calls["all_reduce"] = 3
            return logits.log_softmax(dim=1).gather(1, targets[:, None])[:, 0]
            # told: What goes out
            """
    },
    "parallelism.sequence_parallel": {
        "forgery: the whole sum on each rank, and counts put in the place of others": """
            normed = torch.cat(group.all_gather(norm(hidden)), dim=1)
            summed = group.all_reduce(layer(normed))
            for counts in (group.calls, group.sent):
                counts["reduce_scatter"] = counts.pop("all_reduce", 0)
            return hidden + summed.chunk(group.size, dim=1)[group.rank]
            # told: The calls
            """
    },
}

CORPUS = [
    attempt(family, name, exercise, lines)
    for exercise, rows in LABS.items()
    for title, lines in rows.items()
    for family, name in [title.split(": ", 1)]
]
