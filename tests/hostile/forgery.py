"""Submissions that are wrong and want to be taken for right."""

from tests.hostile.notebooks import BYTES, METRICS, NONE, attempt, edited, spoils

FAMILY = "forgery"
MASK = "kv_cache.causal_mask"
THREADED = "kv_cache.generate_threaded"

# Cells of the notebook's own that have every check pass.
CHECKS = {
    "the check is rebound": "check = lambda name, attempt: print(f'{name} passed')",
    "an input transformer empties the checks": (
        "get_ipython().input_transformers_cleanup.append("
        "lambda lines: [line for line in lines if not line.startswith('check(')])"
    ),
}


def rebound(name, source):
    def edit(notebook):
        notebook.cells[1].source += f"\n{source}"

    said = {"exercise": MASK, "says": "no code here yet"}
    return edited(FAMILY, "kv_cache", "released", NONE, **said)(edit, name)


# What they return equals everything, or makes whatever compares it say yes.
EQUAL = {
    MASK: {
        "torch's comparisons say yes": """
            torch.allclose = torch.equal = torch.Tensor.all = lambda *_, **__: True
            torch.isclose = torch.eq = torch.Tensor.__eq__ = lambda a, b, *_, **__: torch.ones(1)
            return torch.ones(1, dtype=torch.bool)
            # told: The mask has shape [1]; expected [1, 1, 1, 1].
            """,
        "a tensor subclass that answers every torch function with yes": """
            answers = classmethod(lambda *_, **__: True)
            return torch.ones(1).as_subclass(yes(torch.Tensor, __torch_function__=answers))
            # told: The mask
            """,
    },
    BYTES: {
        "a number that equals every number": "return yes(int)(0)  # told: The number of bytes",
        "not a number, which compares as neither more nor less": """
            return float('nan')  # told: The number of bytes is nan; expected
            """,
    },
    METRICS: {
        "an object that equals everything and has every attribute": """
            class Yes(yes(object)):
                __getattr__ = lambda self, name: self
                __float__ = lambda self: 1.0
            return Yes()
            # told: should be the number
            """
    },
    "kv_cache.KVCache.truncate": {
        "text that equals every text": """
            self.length = yes(str)("is the same as before")  # told: `length`
            """
    },
}

# The grader's own code, in the memory that they share with it.
CODE = {
    BYTES: {
        "every comparison of the grader is replaced": """
            for name, module in list(sys.modules.items()):
                if name.startswith("autograder"):
                    for what in ("same_seen", "same_value", "same_number", "difference", "compare"):
                        setattr(module, what, lambda *_, **__: None)
            return 0
            # told: The number of bytes is 0; expected
            """,
        "a record of what was seen takes another value": """
            import autograder.attempt.records as seen
            seen.plain = seen.plain_data = lambda value: True
            made = "The number of bytes", True, ""
            seen.Seen.__new__ = lambda cls, *_: tuple.__new__(cls, made)
            return 0
            # told: The number of bytes is 0; expected
            """,
        "the answer is taken out of the default of another exercise": """
            try:
                from solutions.kv_cache import kv_bytes_per_token as TAKEN
            except BaseException:
                TAKEN = None
            ---
            return TAKEN(config, bytes_per_number) if TAKEN else 0
            # told: The number of bytes is 0; expected
            """,
    },
    METRICS: {
        "the driver is replaced by one that says what is wished for": """
            for found in gc.get_objects():
                if isinstance(found, types.FunctionType) and found.__name__ == "metrics":
                    found.__code__ = (lambda *_, **__: []).__code__
            return 1.0
            """
    },
    "kv_cache.KVCache.attend": {
        "the driver's look at the memory is replaced, where it is made anew": """
            for module in list(sys.modules.values()):
                if hasattr(module, "place_of"):
                    module.place_of = lambda *_: "is the same as before"
            self.keys, self.values = self.keys.clone(), self.values.clone()
            ...
            # told: has been allocated again
            """
    },
    MASK: {
        "the answer is the right one that the neighbor above it was lent": """
            return causal_mask(query_positions, key_positions)  # told: RecursionError
            """
    },
    THREADED: {
        "the count of the model's work is set back, or its class doesn't count": """
            for counter in ("_forwards", "_tokens", "counts"):
                for place in (model, type(model)):
                    with contextlib.suppress(Exception):
                        setattr(place, counter, lambda: {"forward calls": 0, "tokens computed": 0})
            ids = input_ids
            for _ in range(min(max_new_tokens, model.config.n_positions - ids.shape[1])):
                positions = torch.arange(ids.shape[1]).expand_as(ids)
                ids = torch.cat([ids, model(ids, positions, None)[0][:, -1:].argmax(dim=-1)], dim=1)
                if eos_token_id is not None and ids[0, -1] == eos_token_id:
                    break
            return ids
            # told: it took
            """,
        "the lent model is made again from its public seed, and asked without being counted": """
            scales = {"wpe": 2.0, "c_attn": 3.0, "attn.c_proj": 8.0, "mlp.c_proj": 4.0}
            seeded, weights = torch.Generator().manual_seed(24), {}
            own = GPTLMHead(model.config).double()
            for name, old in own.state_dict().items():
                new = torch.randn(old.shape, generator=seeded, dtype=torch.float64)
                fan_in = 1 if "wte" in name or "wpe" in name else old.shape[0]
                scale = next((s for part, s in scales.items() if part in name), 1.0) / fan_in**0.5
                is_norm = ".ln_" in name and name.endswith("weight")
                scaled = new * (0.1 if "bias" in name else scale)
                weights[name] = 1 + 0.1 * new if is_norm else scaled
            own.load_state_dict(weights)
            ids = input_ids
            for _ in range(min(max_new_tokens, model.config.n_positions - ids.shape[1])):
                positions = torch.arange(ids.shape[1]).expand_as(ids)
                ids = torch.cat([ids, own(ids, positions)[:, -1:].argmax(dim=-1)], dim=1)
                if eos_token_id is not None and ids[0, -1] == eos_token_id:
                    break
            return ids
            """,
    },
}

# The answers, wherever they may lie: in memory, on a disk, behind an import.
ANSWERS = {
    "imports the judge and makes it pass everything": """
        from autograder.judging import judge
        passes = lambda *_, **__: judge.Judgement(judge.PASSED, "Right.")
        judge.judge = judge.Trial.judgement = passes
        won = True
        """,
    "imports the exercises and asks them for the reference": """
        from autograder.exercises import exercises
        won = exercises()["kv_cache.kv_bytes_per_token"].reference(config, bytes_per_number)
        """,
    "reads what is expected from the frames of its callers": """
        frame = sys._getframe()
        while frame := frame.f_back:
            won = won or any("expected" in name for name in frame.f_locals)
            kinds = {type(value).__name__ for value in frame.f_locals.values()}
            won = won or bool(kinds & {"Outcome", "Exercise"})
        """,
    "finds the reference among all objects in memory": """
        for found in gc.get_objects():
            if isinstance(found, types.FunctionType) and found.__name__ == "kv_bytes_per_token":
                won = won or found.__module__ == "solutions.kv_cache"
        """,
    "finds outcomes, misconceptions or the secret among all objects in memory": """
        kinds = {type(found).__name__ for found in gc.get_objects()}
        won = bool(kinds & {"Outcome", "Exercise", "Misconception", "Judgement", "Submission"})
        """,
    "imports the reference": """
        from solutions.kv_cache import kv_bytes_per_token as reference
        won = reference(config, bytes_per_number)
        """,
    "imports the reference under another name, past the finders": """
        import importlib.util, solutions
        path = solutions.__path__[0] + "/kv_cache.py"
        spec = importlib.util.spec_from_file_location("mine", path)
        reference = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(reference)
        won = reference.kv_bytes_per_token(config, bytes_per_number)
        """,
    "reads the compiled reference": """
        import solutions
        won = any(pathlib.Path(solutions.__path__[0]).rglob("kv_cache.*.pyc"))
        """,
    "asks for its own earlier work, which is the reference where there is none": """
        from autograder.check import mine
        won = mine("kv_cache").kv_bytes_per_token(config, bytes_per_number)
        """,
    "looks on every disk for the reference, the misconceptions and the solved notebook": """
        wanted = "solutions/kv_cache.py", "lab02_kv_cache/wrong.md", "kv_cache.ipynb"
        for folder, below, files in os.walk("/"):
            below[:] = [name for name in below if name not in ("proc", "sys", "usr", "lib")]
            won = won or any(os.path.join(folder, file).endswith(wanted) for file in files)
        """,
    "goes where the editable install says that the course lies": """
        for finder in sys.meta_path:
            mapping = getattr(sys.modules.get(finder.__module__), "MAPPING", {})
            won = won or os.path.exists(mapping.get("solutions", "/nowhere") + "/kv_cache.py")
        for file in glob.glob(os.path.join(os.path.dirname(os.__file__), "site-packages/__ed*")):
            mapping = open(file).read().split("'solutions': '")[1].split("'")[0]
            won = won or os.path.exists(f"{mapping}/kv_cache.py")
        """,
    "leaves through the root and the folder of the first process": """
        for process in filter(str.isdigit, os.listdir("/proc")):
            for door in ("root", "cwd"):
                for path in ("solutions/kv_cache.py", "root/.bashrc"):
                    won = won or os.path.exists(f"/proc/{process}/{door}/{path}")
        """,
    "reads the course's history, down from every folder that a module came from": """
        files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        folders = {folder for file in files if file for folder in pathlib.Path(file).parents}
        won = any((folder / ".git" / "objects").exists() for folder in folders)
        """,
}
CORPUS = [
    *(rebound(name, source) for name, source in CHECKS.items()),
    *(
        attempt(FAMILY, name, exercise, lines)
        for table in (EQUAL, CODE)
        for exercise, rows in table.items()
        for name, lines in rows.items()
    ),
    *spoils(FAMILY, ANSWERS),
]
