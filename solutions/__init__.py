"""The reference solutions: one importable module a lab, in the order of the course."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType

# Names under which learners' copies of older labs import what stands elsewhere now.
MOVED = {
    **{name: f"engine.{name}" for name in ("scheduler", "sequence", "runner")},
    "hooks": "engine.managers",
    **{name: f"two_processes.{name}" for name in ("messages", "sides", "router")},
    "wire": "two_processes.transport",
    "apart": "two_processes.processes",
    "bits": "quality.bits_per_byte",
    "streamed": "quality.streamed",
    "quantized": "quantized_model",
    "codes": "kv_variants.packed_rows",
    "grouped": "kv_variants.grouped_model",
    "masked": "kv_variants.masked_cache",
    "windowed": "kv_variants.window_engine",
    "swapping": "kv_variants.swapping_engine",
    **{name: f"kernels.{name}" for name in ("slow_memory", "triton_attention")},
    "server.on_ray": "router.on_ray",  # named in the configurations of clusters
}


class Moved(MetaPathFinder, Loader):
    """Imports a module by the name that it had: the same objects, in a module of that name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        known = fullname.removeprefix(f"{__name__}.") in MOVED
        return ModuleSpec(fullname, self) if known else None

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code that `python -m` runs."""
        spec = find_spec(f"{__name__}.{MOVED[fullname.removeprefix(f'{__name__}.')]}")
        return spec.loader.get_code(spec.name)  # type: ignore[union-attr]

    def exec_module(self, module: ModuleType) -> None:
        place = MOVED[module.__name__.removeprefix(f"{__name__}.")]
        names = vars(import_module(f"{__name__}.{place}"))
        vars(module).update({n: v for n, v in names.items() if not n.startswith("__")})


sys.meta_path.append(Moved())
