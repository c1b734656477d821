"""`python -m tests.soak MINUTES [aws-local]`."""

import sys
import tempfile
from pathlib import Path

from tests.soak.soak import main

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(main(float(sys.argv[1]), Path(folder), in_aws=sys.argv[2:] == ["aws-local"]))
