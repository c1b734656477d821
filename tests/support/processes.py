"""Starting Python elsewhere, with the package in reach."""

import os
from pathlib import Path

import nakadi

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(nakadi.__file__).parents[1]), "PYTHONUNBUFFERED": "1"}
