"""`python -m nakadi.local`."""

import sys

from nakadi.local.program import main

sys.exit(main())
