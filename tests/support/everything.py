"""Whether all tests run, also those that take long and repeat on another engine or at other moments what others show:
`make test-all`."""

import os

WANTED = os.environ.get("TEST_ALL") == "1"
