"""`python -m tests.soak MINUTES [embedded|kafka|aws-local]`."""

import sys
import tempfile
from pathlib import Path

from tests.soak.soak import main

ENGINES = ("embedded", "kafka", "aws-local")

if __name__ == "__main__":
    engine = sys.argv[2] if len(sys.argv) > 2 else "embedded"
    if engine not in ENGINES:
        sys.exit(f"ENGINE={engine} is not known: it is {', '.join(ENGINES)}")
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(main(float(sys.argv[1]), Path(folder), engine))
