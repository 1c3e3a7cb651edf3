"""Submissions that are wrong and want to be taken for right."""

import textwrap
from functools import partial

from tests.hostile.notebooks import (
    BYTES,
    RIGHT,
    Hostile,
    attempt,
    edited,
    guarded,
    right_lines,
    spoils,
)

FAMILY = "forgery"
forged = partial(attempt, FAMILY)
wins_if = partial(spoils, FAMILY)

MASK = "kv_cache.causal_mask"
WRONG_MASK = "The mask has shape [1]; expected [1, 1, 1, 1]."
WRONG_BYTES = "The number of bytes is 0; expected"

FLASH, PREFILL = "flash_attention.flash_attention", "disaggregation.prefill_in_chunks"
STEP, MAKE_ROOM = "batching.ContinuousBatcher.step", "paged_attention.PagedBatcher.make_room"
ALL_AT_ONCE = """
def all_at_once(slow, queries, keys, values):
    scores = queries @ keys.mT / queries.shape[-1] ** 0.5
    scores = hide_later_keys(scores, keys.shape[-2] - queries.shape[-2])
    slow.store("output", 0, scores.softmax(dim=-1).nan_to_num(0.0) @ values)
    slow.store("lse", 0, scores.logsumexp(dim=-1))
"""


def reaches(name: str, exercise: str, *ways: str) -> Hostile:
    """A submission that is right only if one of these statements does something."""
    attack = "\n".join(
        f"try:\n    {way}\n    won = True\nexcept Exception:\n    pass" for way in ways
    )
    body = f"{guarded(attack)}\nif won:\n" + textwrap.indent(right_lines(exercise), "    ")
    return attempt(FAMILY, name, exercise, body)


@edited(FAMILY, "kv_cache", "released", "none", exercise=MASK, says="no code here yet")
def the_check_is_rebound(notebook):
    notebook.cells[1].source += "\ncheck = lambda name, attempt: print(f'{name} passed')"


@edited(FAMILY, "kv_cache", "released", "none", exercise=MASK, says="no code here yet")
def an_input_transformer_empties_the_checks(notebook):
    notebook.cells[1].source += (
        "\nget_ipython().input_transformers_cleanup.append("
        "lambda lines: [line for line in lines if not line.startswith('check(')])"
    )


@edited(FAMILY, "kv_cache", "released", "none", exercise=MASK, says="no code here yet")
def the_check_cell_is_edited(notebook):
    for cell in notebook.cells:
        cell.source = cell.source.replace('check("kv_cache', 'print("kv_cache')


CORPUS = [
    the_check_is_rebound,
    an_input_transformer_empties_the_checks,
    the_check_cell_is_edited,
    # ------------------------------------------------------------------- what compares is rebound
    forged(
        "torch's comparisons say yes, from within the function",
        MASK,
        """
        torch.allclose = torch.equal = torch.Tensor.all = lambda *_, **__: True
        torch.isclose = torch.eq = torch.Tensor.__eq__ = lambda a, b, *_, **__: torch.ones(1)
        return torch.ones(1, dtype=torch.bool)
        """,
        says=WRONG_MASK,
    ),
    forged(
        "torch's comparisons say yes, from a default argument",
        MASK,
        "return yes()",
        above="""
        def yes(torch=torch):
            torch.allclose = torch.equal = torch.isclose = lambda *_, **__: torch.tensor(True)
            return torch.ones(1, dtype=torch.bool)

        yes()
        """,
        says=WRONG_MASK,
    ),
    forged(
        "a number that equals every number",
        BYTES,
        """
        class Yes(int):
            __eq__ = __le__ = __ge__ = lambda self, other: True
            __ne__ = __lt__ = __gt__ = lambda self, other: False
            __hash__ = int.__hash__
        return Yes(0)
        """,
        says="The number of bytes",
    ),
    forged(
        "an object that equals everything and has every attribute",
        "generate.metrics",
        """
        class Yes:
            __eq__ = lambda self, other: True
            __getattr__ = lambda self, name: self
            __float__ = lambda self: 1.0
        return Yes()
        """,
        says="should be the number",
    ),
    forged(
        "a tensor subclass that answers every torch function with yes",
        MASK,
        """
        class Yes(torch.Tensor):
            @classmethod
            def __torch_function__(cls, function, types, args=(), kwargs=None):
                return True
        return torch.ones(1, dtype=torch.bool).as_subclass(Yes)
        """,
        says="The mask",
    ),
    forged(
        "text that equals every text",
        "kv_cache.KVCache.truncate",
        """
        class Yes(str):
            __eq__ = lambda self, other: True
            __hash__ = str.__hash__
        self.length = Yes("is the same as before")
        """,
        says="`length`",
    ),
    forged(
        "not a number, which compares as neither more nor less",
        BYTES,
        "return float('nan')",
        says="The number of bytes is nan; expected",
    ),
    # ------------------------------------------------------------- the grader's own code in memory
    forged(
        "every comparison of the grader is replaced",
        BYTES,
        """
        import sys
        for name, module in list(sys.modules.items()):
            if name.startswith("autograder"):
                for what in ("same_seen", "same_value", "same_number", "difference", "compare"):
                    setattr(module, what, lambda *_, **__: None)
        return 0
        """,
        says=WRONG_BYTES,
    ),
    wins_if(
        "imports the judge and makes it pass everything",
        """
        from autograder.judging import judge
        passes = lambda *_, **__: judge.Judgement(judge.PASSED, "Right.")
        judge.judge = judge.Trial.judgement = passes
        won = True
        """,
    ),
    wins_if(
        "imports the exercises and asks them for the reference",
        """
        from autograder.exercises import exercises
        won = exercises()["kv_cache.kv_bytes_per_token"].reference(config, bytes_per_number)
        """,
    ),
    forged(
        "the driver is replaced by one that says what is wished for",
        "generate.metrics",
        """
        import gc, sys, types
        for found in gc.get_objects():
            if isinstance(found, types.FunctionType) and found.__name__ == "metrics":
                found.__code__ = (lambda *_, **__: []).__code__
        return 1.0
        """,
    ),
    forged(
        "a record of what was seen takes another value",
        BYTES,
        """
        import autograder.drivers.seen as seen
        seen.plain = seen.plain_data = lambda value: True
        seen.Seen.__new__ = lambda cls, *_: tuple.__new__(cls, ("The number of bytes", True, ""))
        return 0
        """,
        says=WRONG_BYTES,
    ),
    forged(
        "the driver's look at the memory is replaced, where it is made anew",
        "kv_cache.KVCache.attend",
        """
        import sys
        for module in list(sys.modules.values()):
            if hasattr(module, "place_of"):
                module.place_of = lambda *_: "is the same as before"
        self.keys, self.values = self.keys.clone(), self.values.clone()
        all_keys, all_values = self.keys[layer], self.values[layer]
        all_keys[:, :, start:end], all_values[:, :, start:end] = keys, values
        if layer == len(self.keys) - 1:
            self.length = end
        mask = self.mask(start, end)
        return F.scaled_dot_product_attention(
            queries, all_keys[:, :, :end], all_values[:, :, :end], attn_mask=mask
        )
        """,
        says="has been made anew",
    ),
    # ------------------------------------------------------------------- the answers, from memory
    wins_if(
        "reads what is expected from the frames of its callers",
        """
        import sys
        frame = sys._getframe()
        while frame := frame.f_back:
            won = won or any("expected" in name for name in frame.f_locals)
        """,
    ),
    wins_if(
        "looks through inspect.stack for the case's neighbours and their answers",
        """
        import inspect
        for frame in inspect.stack()[1:]:
            kinds = [type(value).__name__ for value in frame.frame.f_locals.values()]
            won = won or "Outcome" in kinds or "Exercise" in kinds
        """,
    ),
    wins_if(
        "finds the reference among all objects in memory",
        """
        import gc, types
        for found in gc.get_objects():
            if isinstance(found, types.FunctionType) and found.__name__ == "kv_bytes_per_token":
                won = won or found.__module__ == "solutions.kv_cache"
        """,
    ),
    wins_if(
        "finds outcomes, misconceptions or the secret among all objects in memory",
        """
        import gc
        kinds = {type(found).__name__ for found in gc.get_objects()}
        won = bool(kinds & {"Outcome", "Exercise", "Misconception", "Judgement", "Submission"})
        """,
    ),
    # --------------------------------------------------------------------- the answers, from disk
    wins_if(
        "imports the reference",
        """
        from solutions.kv_cache import kv_bytes_per_token as reference
        won = reference(config, bytes_per_number)
        """,
    ),
    wins_if(
        "imports the reference under another name, past the finders",
        """
        import importlib.util, solutions
        path = solutions.__path__[0] + "/kv_cache.py"
        spec = importlib.util.spec_from_file_location("mine", path)
        reference = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(reference)
        won = reference.kv_bytes_per_token(config, bytes_per_number)
        """,
    ),
    wins_if(
        "reads the compiled reference",
        """
        import pathlib, solutions
        won = any(pathlib.Path(solutions.__path__[0]).rglob("kv_cache.*.pyc"))
        """,
    ),
    wins_if(
        "asks for its own earlier work, which is the reference where there is none",
        """
        from autograder.check import mine
        won = mine("kv_cache").kv_bytes_per_token(config, bytes_per_number)
        """,
    ),
    wins_if(
        "looks on every disk for the reference, the misconceptions and the solved notebook",
        """
        import os
        wanted = "solutions/kv_cache.py", "misconceptions/kv_cache.md", "kv_cache.ipynb"
        for folder, below, files in os.walk("/"):
            below[:] = [name for name in below if name not in ("proc", "sys", "usr", "lib")]
            won = won or any(os.path.join(folder, file).endswith(wanted) for file in files)
        """,
    ),
    wins_if(
        "goes where the editable install says that the course lies",
        """
        import glob, os, sys
        for finder in sys.meta_path:
            mapping = getattr(sys.modules.get(finder.__module__), "MAPPING", {})
            won = won or os.path.exists(mapping.get("solutions", "/nowhere") + "/kv_cache.py")
        for file in glob.glob(os.path.join(os.path.dirname(os.__file__), "site-packages/__ed*")):
            mapping = open(file).read().split("'solutions': '")[1].split("'")[0]
            won = won or os.path.exists(f"{mapping}/kv_cache.py")
        """,
    ),
    wins_if(
        "leaves through the root and the folder of the first process",
        """
        import os
        for process in filter(str.isdigit, os.listdir("/proc")):
            for door in ("root", "cwd"):
                place = f"/proc/{process}/{door}"
                won = won or any(
                    os.path.exists(f"{place}/{path}")
                    for path in ("solutions/kv_cache.py", "root/.bashrc")
                )
        """,
    ),
    wins_if(
        "reads the course's history, down from every folder that a module came from",
        """
        import pathlib, sys
        files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        folders = {folder for file in files if file for folder in pathlib.Path(file).parents}
        won = any((folder / ".git" / "objects").exists() for folder in folders)
        """,
    ),
    # ------------------------------------------------------------- the answers, by what is lent
    forged(
        "the lent model is made again from its public seed, and asked without being counted",
        "kv_cache.generate_threaded",
        """
        scales = {"wpe": 2.0, "c_attn": 3.0, "attn.c_proj": 8.0, "mlp.c_proj": 4.0}
        seeded, weights = torch.Generator().manual_seed(24), {}
        own = GPTLMHead(model.config).double()
        for name, old in own.state_dict().items():
            new = torch.randn(old.shape, generator=seeded, dtype=torch.float64)
            fan_in = 1 if "wte" in name or "wpe" in name else old.shape[0]
            scale = next((s for part, s in scales.items() if part in name), 1.0) / fan_in**0.5
            is_norm = ".ln_" in name and name.endswith("weight")
            weights[name] = 1 + 0.1 * new if is_norm else new * (0.1 if "bias" in name else scale)
        own.load_state_dict(weights)
        ids = input_ids
        for _ in range(min(max_new_tokens, model.config.n_positions - ids.shape[1])):
            positions = torch.arange(ids.shape[1]).expand_as(ids)
            ids = torch.cat([ids, own(ids, positions)[:, -1:].argmax(dim=-1)], dim=1)
            if eos_token_id is not None and ids[0, -1] == eos_token_id:
                break
        return ids
        """,
    ),
    forged(
        "the count of the model's work is set back",
        "kv_cache.generate_threaded",
        """
        ids = input_ids
        for _ in range(min(max_new_tokens, model.config.n_positions - ids.shape[1])):
            positions = torch.arange(ids.shape[1]).expand_as(ids)
            logits, _ = model(ids, positions, None)
            for counter in ("_forwards", "_tokens"):
                try:
                    setattr(model, counter, 0)
                except Exception:
                    pass
            ids = torch.cat([ids, logits[:, -1:].argmax(dim=-1)], dim=1)
            if eos_token_id is not None and ids[0, -1] == eos_token_id:
                break
        return ids
        """,
        says="it took",
    ),
    forged(
        "the model's class is replaced by one that doesn't count",
        "kv_cache.generate_threaded",
        """
        try:
            model.counts = lambda: {"forward calls": 0, "tokens computed": 0}
            type(model).counts = model.counts
        except Exception:
            pass
        ids = input_ids
        for _ in range(min(max_new_tokens, model.config.n_positions - ids.shape[1])):
            positions = torch.arange(ids.shape[1]).expand_as(ids)
            ids = torch.cat([ids, model(ids, positions, None)[0][:, -1:].argmax(dim=-1)], dim=1)
            if eos_token_id is not None and ids[0, -1] == eos_token_id:
                break
        return ids
        """,
        says="it took",
    ),
    forged(
        "the answer is worked out from a lent neighbour that is built on it",
        "batching.padded_position_ids",
        "return padded_mask(attention_mask, attention_mask.shape[1])[:, 0].sum(-1) - 1",
        above="def padded_mask(*given):\n    return 'here the right one is lent'",
    ),
    forged(
        "the answer is the right one that the neighbour above it was lent",
        "kv_cache.causal_mask",
        "return causal_mask(query_positions, key_positions)",
        says="RecursionError",
    ),
    forged(
        "the answer is taken out of the default of another exercise",
        BYTES,
        f"return TAKEN(config, bytes_per_number) if TAKEN else 0 * {RIGHT}",
        above="""
        try:
            from solutions.kv_cache import kv_bytes_per_token as TAKEN
        except BaseException:
            TAKEN = None
        """,
        says=WRONG_BYTES,
    ),
    # ------------------------------------------------------------------------- labs 8 and 9
    forged(
        "hashes that are equal to every hash",
        "prefix_caching.block_hashes",
        """
        class Yes(bytes):
            __eq__ = lambda self, other: True
            __ne__ = lambda self, other: False
            __hash__ = lambda self: 0
        return [Yes() for _ in range(len(token_ids) // block_size)]
        """,
        says="The list of hashes of text",
    ),
    forged(
        "blocks that are found in every list",
        "prefix_caching.PrefixManager.match",
        """
        class Found(list):
            __eq__ = __contains__ = lambda self, other: True
            __len__ = lambda self: 10 ** 6
        return Found()
        """,
        says="`match(",
    ),
    forged(
        "a manager that says what it should have done",
        "prefix_caching.PrefixManager.admit",
        """
        class Yes(dict):
            __eq__ = lambda self, other: True
            __repr__ = __str__ = lambda self: "whatever is expected"
        self.tables, self.lengths, self.salts = Yes(), Yes(), Yes()
        return 0
        """,
        says="`tables` after step",
    ),
    forged(
        "a leaf that may always go",
        "prefix_caching.RadixTree.evict",
        """
        class Any(int):
            __eq__ = __le__ = __ge__ = lambda self, other: True
            __hash__ = int.__hash__
        return [Any(0)] * needed
        """,
        says="The list of blocks",
    ),
    forged(
        "a choice that is every place",
        "prefix_caching.choose_next",
        """
        class Every(int):
            __eq__ = lambda self, other: True
            __hash__ = int.__hash__
        return Every(len(matched))
        """,
        says="The place",
    ),
    forged(
        "keys and values that equal any others",
        "disaggregation.pack_kv",
        """
        class Yes(torch.Tensor):
            @classmethod
            def __torch_function__(cls, function, types, args=(), kwargs=None):
                return True
        return torch.zeros(1).as_subclass(Yes)
        """,
        says="What it returned",
    ),
    forged(
        "a pool that is replaced in the driver's hands",
        "disaggregation.unpack_kv",
        """
        import sys
        frame = sys._getframe(1)
        for name, value in frame.f_locals.items():
            if isinstance(value, torch.Tensor):
                value.data = torch.full_like(value, torch.nan)
        torch.equal = torch.allclose = lambda *_, **__: True
        """,
        says="The pool",
    ),
    forged(
        "gaps that are as long as anybody likes",
        "disaggregation.token_gaps",
        """
        class Elastic(list):
            __eq__ = lambda self, other: True
            __iter__ = lambda self: iter(())
        return Elastic()
        """,
        says="What it returned",
    ),
    forged(
        "a request that is adopted by its output alone",
        "disaggregation.adopt",
        """
        from solutions.engine.engine import Output
        engine.step = lambda: engine.on_output(Output(number, [message.first_token], "length"))
        """,
        says="The pool after request 0 was adopted",
    ),
    forged(
        "a lease that is over whenever it is asked",
        "disaggregation.Leases.due",
        """
        class Whoever(list):
            __eq__ = lambda self, other: True
        return Whoever(self.ends)
        """,
        says="What came",
    ),
    # --------------------------------------------------------------------- labs 10 to 12
    forged(
        "codes and a scale that equal any others",
        "quantization.absmax",
        """
        class Yes(torch.Tensor):
            @classmethod
            def __torch_function__(cls, function, types, args=(), kwargs=None):
                return True
        return torch.zeros(1).as_subclass(Yes), torch.zeros(1).as_subclass(Yes)
        """,
        says="It raised TypeError",
    ),
    forged(
        "a layer that makes its answer of the driver's own numbers",
        "quantization.QuantizedLinear.forward",
        """
        import sys
        frame = sys._getframe(1)
        while frame is not None:
            for value in frame.f_locals.values():
                if isinstance(value, torch.Tensor) and value.is_floating_point():
                    value.data = torch.zeros_like(value)
            frame = frame.f_back
        return torch.zeros(*hidden.shape[:-1], self.codes.shape[1], dtype=hidden.dtype)
        """,
    ),
    forged(
        "a cache that is as long as anybody likes",
        "kv_reduction.WindowCache.attend",
        """
        class Yes(int):
            __eq__ = lambda self, other: True
            __hash__ = int.__hash__
        self.length = Yes(10 ** 6)
        return torch.zeros_like(queries)
        """,
        says="The output",
    ),
    forged(
        "bytes that are freed in name only",
        "kv_reduction.WindowCache.attend",
        """
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
        """,
    ),
    forged(
        "a slow memory whose count is set back",
        "flash_attention.flash_attention",
        """
        naive_attention(memory, q_len, k_len, head_dim)
        for name in ("moved", "_most", "fast_numbers"):
            try:
                setattr(memory, name, 0)
            except Exception:
                pass
        memory.store("lse", 0, torch.zeros(q_len, dtype=torch.float64))
        """,
    ),
    forged(
        "parts that nobody has computed",
        "flash_attention.split_decode",
        """
        class Every(torch.Tensor):
            @classmethod
            def __torch_function__(cls, function, types, args=(), kwargs=None):
                return True
        return torch.zeros(1).as_subclass(Every), torch.zeros(1).as_subclass(Every)
        """,
    ),
    # --------------------------------------------------------------- what is lent, and its watch
    forged(
        "fast memory that is as large as anybody likes",
        FLASH,
        """
        slow = getattr(memory, "memory", memory)
        for thing in (memory, slow):
            try:
                thing.fast_numbers = 99_999
            except Exception:
                pass
        queries = slow.load("queries", 0, q_len)
        keys, values = slow.load("keys", 0, k_len), slow.load("values", 0, k_len)
        all_at_once(slow, queries, keys, values)
        """,
        above=ALL_AT_ONCE,
        says="It raised OutOfFastMemory",
    ),
    forged(
        "slow memory that is read and not loaded",
        FLASH,
        """
        slow = getattr(memory, "memory", memory)
        names = "queries", "keys", "values"
        for read in (
            lambda: slow.tensors,
            lambda: {name: slow.named(name) for name in names},
            lambda: {name: slow.result(name) for name in names},
        ):
            try:
                queries, keys, values = (read()[name] for name in names)
                break
            except Exception:
                pass
        all_at_once(slow, queries, keys, values)
        """,
        above=ALL_AT_ONCE,
    ),
    forged(
        "tiles that are loaded past the watch, and joined",
        FLASH,
        """
        def unwatched(name, *given):
            for memory_itself in (
                lambda: getattr(memory.memory, name)(*given),
                lambda: memory.far_peer.ask(memory.far_number, "call", name, list(given), {}),
                lambda: getattr(memory, name)(*given),
            ):
                try:
                    return memory_itself()
                except AttributeError:
                    pass

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
        """,
        says="grows to far more than a tile of each",
    ),
    forged(
        "results that are stored and not counted, by what only looks like a tensor",
        FLASH,
        """
        class LooksLike:
            def __init__(self, tensor):
                self.tensor, self.ndim, self.shape = tensor, tensor.ndim, tuple(tensor.shape)

            def new_full(self, shape, value):
                return self.tensor

        class Box:
            outputs, lses = [], []

        box = Box()
        for start in range(0, q_len, block_q):
            end = min(start + block_q, q_len)
            memory.load("queries", start, end)
            queries = memory.load("queries", start, end) / head_dim**0.5
            state = empty_state(queries)
            for first in range(0, end + k_len - q_len, block_k):
                last = min(first + block_k, k_len)
                scores = queries @ memory.load("keys", first, last).mT
                scores = hide_later_keys(scores, start + k_len - q_len - first)
                state = absorb(state, scores, memory.load("values", first, last))
            output, lse = finish(state)
            box.outputs.append(output)
            box.lses.append(lse)
        for name, parts, dim in (("output", box.outputs, -2), ("lse", box.lses, -1)):
            try:
                memory.store(name, 0, LooksLike(torch.cat(parts, dim=dim)))
            except TypeError:
                pass
        """,
    ),
    forged(
        "a prompt in one forward, past the watch, and chunks for show",
        PREFILL,
        """
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
        """,
        says="The number of forwards is 2",
    ),
    forged(
        "a watch that is called off",
        PREFILL,
        """
        watched = getattr(model, "far_model", model)
        for call_off in (
            lambda: model.watch(lambda *given: None),
            lambda: setattr(watched, "_look", None),
            lambda: delattr(watched, "_look"),
        ):
            try:
                call_off()
                return model(ids, torch.arange(ids.shape[1]).expand_as(ids), kv_cache)[:, -1]
            except Exception:
                pass
        """,
    ),
    reaches(
        "the slow memory's books",
        FLASH,
        "memory.tensors",
        "memory.moved",
        "memory.trace",
        "memory.places",
        "memory._most",
        "memory._look",
        "memory.lends",
        "memory.named('keys')",
        "memory.result('keys')",
        "memory.counts()",
        "memory.limit({'numbers moved': 10**9})",
        "memory.watch(lambda: None)",
        "memory.moved = 0",
        "memory._most = 10**9",
        "memory._look = None",
        "memory.lends = None",
        "memory.load = memory.load",
        "memory.result = memory.load",
        "memory.fast_numbers = 99_999",
        "del memory.fast_numbers",
        "memory.far_peer.ask(memory.far_number, 'get', '__dict__')",
        "memory.far_peer.ask(memory.far_number, 'set', 'fast_numbers', 99_999)",
        "memory.far_peer.ask(memory.far_number, 'call', '__init__', [1, 2, 3], {})",
        "memory.far_peer.ask(memory.far_number, 'call', '__setattr__', ['moved', 0], {})",
    ),
    reaches(
        "the block manager's books",
        MAKE_ROOM,
        "self.manager.tables = self.manager.tables",
        "self.manager.lengths = self.manager.lengths",
        "self.manager.free_blocks = self.manager.free_blocks",
        "self.manager.num_blocks = self.manager.num_blocks",
        "self.manager.raises = None",
        "self.manager.holders = []",
        "self.manager.holders",
        "self.manager._asked = 0",
        "self.manager._most",
        "self.manager.limit({'calls of `can_append`': 10**9})",
        "self.manager.take_block",
        "self.manager.allocate",
        "self.manager.fork",
        "del self.manager.tables",
    ),
    reaches(
        "the slots' keys and values",
        STEP,
        "self.kv_cache.keys",
        "self.kv_cache.values",
        "self.kv_cache.selected",
        "self.kv_cache.keys = self.kv_cache.keys",
        "self.kv_cache.lengths = self.kv_cache.lengths",
        "self.kv_cache.max_length = 99",
        "del self.kv_cache.lengths",
    ),
    reaches(
        "the model behind the one that is shown",
        "kv_cache.generate_threaded",
        "model.far_model.config",
        "model.far_model.config = model.config",
        "model.far_model.transformer",
        "model.far_model.parameters()",
        "model.far_model._model",
        "model.far_model._forwards = 0",
        "model.far_model._most",
        "model.far_model.counts()",
        "model.far_model.limit({})",
        "model.far_model.untouched()",
        "model.far_model.forward(input_ids, input_ids, None)",
        "del model.far_model.config",
    ),
    reaches(
        "the function behind a right neighbor",
        "batching.padded_mask",
        "padded_position_ids.function",
        "padded_position_ids.function = lambda mask: mask",
        "padded_position_ids.lends",
        "padded_position_ids.__dict__['function']",
        "del padded_position_ids.function",
        "padded_position_ids.far_peer.ask(padded_position_ids.far_number, 'get', '__globals__')",
    ),
    forged(
        "books that are edited where they lie",
        MAKE_ROOM,
        """
        manager = self.manager
        for request in list(self.running):
            while request in self.running and not manager.can_append(request.number):
                newest = self.running.pop()
                newest.num_computed_tokens = 0
                self.waiting.appendleft(newest)
                self.preemptions += 1
                del manager.lengths[newest.number]
                for block in manager.tables.pop(newest.number):
                    manager.ref_counts[block] = 0
                    manager.free_blocks.append(block)
            if request in self.running:
                manager.append(request.number)
        """,
        says="`running`, by number, is []",
    ),
]
