"""`python -m infra.laptop`."""

import sys

from infra.laptop.processes import stop_all
from nakadi.app.shutdown import SignalHandler

if __name__ == "__main__":
    signals = SignalHandler(before_a_sudden_end=stop_all)
    signals.install()

    from infra.laptop.program import main  # the import takes a second, in which signals may arrive

    sys.exit(main(signals=signals))
