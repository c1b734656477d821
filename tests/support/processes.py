"""Starting Python elsewhere, with the package in reach, and waiting for what others start."""

import os
import socket
from pathlib import Path

import nakadi

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(nakadi.__file__).parents[1]), "PYTHONUNBUFFERED": "1"}
# With what stands beside the package in the checkout as well.
ROOT = Path(__file__).parents[2]
ROOT_ENVIRONMENT = {**ENVIRONMENT, "PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}{os.pathsep}{ROOT}"}


def listens(port: int) -> bool:
    """Whether somebody listens on this port of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
