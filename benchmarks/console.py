"""How fast is the console in a real browser? Measures the first paint, the size, and the live tail at 1,000 events a
second.

With --picture, the script also redraws docs/console.svg.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from nakadi.local import Broker

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache" / "console"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="how long the tail is kept busy")
    parser.add_argument("--picture", action="store_true", help="draw docs/console.svg")
    options = parser.parse_args()
    if not (CACHE / "built" / "index.html").exists():
        sys.exit("The console is not built: make console")
    script = ROOT / "tests" / "console" / ("test_still.mjs" if options.picture else "figures.mjs")
    told = {"SECONDS": str(options.seconds), "PICTURE": str(ROOT / "docs" / "console.svg")}
    with Broker(console=str(CACHE / "built")) as broker:
        return subprocess.run(
            [CACHE / "bin" / "node", "--test-reporter", script.with_name("reporter.mjs"), script],
            env={**os.environ, **told, "BROKER": broker.url},
            check=False,
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
