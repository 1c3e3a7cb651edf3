"""Lab 21, given: `compiled`, numba's compiler where it is installed.

Without numba, or with NUMBA_DISABLE_JIT=1, functions run as Python: slowly, and with errors in
place of crashes. Checks run this form.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64
from platformdirs import user_cache_path

from solutions.engine.products import processor

ON = find_spec("numba") is not None and not os.environ.get("NUMBA_DISABLE_JIT")
LOOKS = 2000 if ON else 0  # at a counter, before a thread naps between two looks
NAP = 50  # microseconds
HERE = Path(__file__)
SOURCES = [HERE, HERE.with_name("one_kernel.py"), *sorted(HERE.with_name("compiled").glob("*.py"))]
KEPT = user_cache_path("inference-workbook") / "kernels"

Counter = Int64[np.ndarray, "1"]


def cache_folder(base: Path = KEPT, sources: list[Path] = SOURCES) -> Path:
    """Return where compiled code is kept. numba would not see a change in a file that is called."""
    text = b"".join(path.read_bytes() for path in sources)
    return base / sha256(text).hexdigest()[:16]


ONE_STREAM = False  # whether weights are read faster one row after the other than four at a time

if ON:
    import numba
    from numba import njit, types
    from numba.extending import intrinsic

    numba.config.CACHE_DIR = str(cache_folder())
    # A sum may be added up in any order, so that eight numbers are added at once. NaN stays NaN.
    ORDER = {"reassoc", "contract", "nsz", "arcp"}
    # AMD's Zen fetches ahead along one stream of memory; four short rows take it thrice as long.
    ONE_STREAM = "AMD" in processor()

    def compiled(f: Callable[..., Any]) -> Any:
        """Compile a function; what is kept for later processes is the solutions' code alone."""
        is_solution, file = f.__module__.startswith("solutions."), Path(f.__code__.co_filename)
        is_kept = is_solution and file.exists()  # a misconception has no file
        return njit(fastmath=ORDER, error_model="numpy", nogil=True, cache=is_kept)(f)

    @intrinsic
    def add(context: Any, array: Any, value: Any) -> Any:
        """Add to array[0], so that no other thread's addition is lost; return what it held."""

        def code_of(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            counter = context.make_array(signature.args[0])(context, builder, args[0])
            return builder.atomic_rmw("add", counter.data, args[1], "seq_cst")

        return types.int64(types.Array(types.int64, 1, "C"), types.int64), code_of

    if sys.platform == "win32":

        @compiled
        def nap() -> None:
            """There is no usleep: go on looking."""
    else:
        usleep = types.ExternalFunction("usleep", types.int32(types.uint32))

        @compiled
        def nap() -> None:
            """Let another thread have this core for a moment."""
            usleep(np.uint32(NAP))

else:
    LOCK = threading.Lock()

    def compiled(f: Callable[..., Any]) -> Any:
        """Return the function as it is."""
        return f

    def add(array: Counter, value: int) -> int:
        """Add to array[0], so that no other thread's addition is lost; return what it held."""
        with LOCK:
            before = int(array[0])
            array[0] += value
        return before

    def nap() -> None:
        """Let another thread have this core for a moment."""
        time.sleep(NAP / 1e6)


@contextmanager
def announced(seconds: float = 2.0) -> Iterator[None]:
    """Say that the kernel is being compiled, if the block takes longer than reading it back."""
    line = "Compiling lab 21's kernel. It is kept, so the next start is quick."
    timer = threading.Timer(seconds, print, [line], {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@compiled
def rest(looks: int) -> None:
    """Let other threads run while this one waits: after many looks, nap before the next one."""
    if looks > LOOKS:
        nap()


def python_of(f: Any) -> Any:
    """Return the function as it was written."""
    return getattr(f, "py_func", f)
