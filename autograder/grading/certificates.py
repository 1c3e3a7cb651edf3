"""A key and a certificate for your own cluster; docs/cluster.md explains how to use them.

The scheduler, the workers and the grader find them without further settings, encrypt what they
send, and refuse connections from any process without the key.
"""

import json
import os
from pathlib import Path

import dask
from distributed.security import Security

from autograder.grading.refused import Refused, not_written

NAME = "tls.json"
ROLES = "scheduler", "worker", "client"


def new_certificate() -> Path:
    """Write a key and its certificate, valid for a year, into Dask's configuration folder.

    Both are in one file that only its owner can read, in the folder set by DASK_CONFIG or in
    ~/.config/dask. Raises Refused if the file exists. Source: distributed.dask.org, "TLS/SSL".
    """
    path = Path(dask.config.PATH, NAME)
    if path.exists():
        raise Refused(
            f"{path} exists and was not changed. If you need a new key, move this file "
            "away, run the command again, and copy the new file to every machine of the cluster."
        )
    made = json.dumps(configuration(Security.temporary()), indent=1)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(made)
    except OSError as error:
        or_else = ", or set DASK_CONFIG to another folder"
        raise Refused(not_written(path.parent, error, or_else)) from None
    return path


def configuration(made: Security) -> dict:
    """Return Dask's configuration for one key that every process of the cluster uses."""
    pairs = {role: made.get_tls_config_for_role(role) for role in ROLES}
    tls = {role: {"cert": pair["cert"], "key": pair["key"]} for role, pair in pairs.items()}
    comm = {"require-encryption": True, "tls": {"ca-file": made.tls_ca_file, **tls}}
    return {"distributed": {"comm": comm}}
