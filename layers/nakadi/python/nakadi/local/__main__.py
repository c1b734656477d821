"""`python -m nakadi.local`."""

import sys

from nakadi.local.signals import Signals

if __name__ == "__main__":
    signals = Signals()
    signals.install()

    from nakadi.local.program import main  # takes a second, in which signals may come

    sys.exit(main(signals=signals))
