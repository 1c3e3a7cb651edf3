"""The engine's process in a sandbox: python -m timing.speedrun.confined USER LIMITS FOLDER ...

USER is whom to become where this is started as root, before anything but the standard library is
imported. LIMITS are the process's, as JSON. The rest is for timing.speedrun.engine.
"""

import json
import sys
from importlib import import_module

from autograder.attempt.rights import become

if __name__ == "__main__":
    _, user, limits, *arguments = sys.argv
    become(int(user))
    import_module("autograder.attempt.worker").limit(json.loads(limits))
    import_module("timing.speedrun.engine").main(*arguments)
