"""Settings that every test shares."""

import os

# The tests run side by side, one process a core; threads inside each would only get in the way.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import settings  # after the above, which torch reads when it is imported

# No deadline: a slow machine is no failure. The same cases every time; `make soak` draws others.
settings.register_profile("default", deadline=None, derandomize=True)
settings.register_profile("soak", deadline=None, max_examples=3000)
settings.load_profile("default")
