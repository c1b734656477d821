"""What a process of the tests finds in its environment: what a newcomer's has, and what is handed on by name."""

import os
from collections.abc import Mapping

# Where programs, settings and temporary files are, and how text is written. Java and Spark, pyenv's Python and Node are
# found by theirs on machines that have them in places of their own. Certificates and the cache of the CDK are set by
# tests/conftest.py.
PASSED_VARIABLES = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "JAVA_HOME",
    "PYENV_ROOT",
    "PYENV_VERSION",
    "SSL_CERT_DIR",
    "JSII_RUNTIME_PACKAGE_CACHE",
    "NAKADI_CONSOLE",
)


def plain_environment(**more: str) -> dict[str, str]:
    """The variables of `HANDED_ON` that are set here, and `more`.

    What else is set on a machine, such as `PYTHONUNBUFFERED` or `MAKEFLAGS`, would decide about tests elsewhere.
    """
    return {**select_plain(os.environ), **more}


def select_plain(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: environment[name] for name in PASSED_VARIABLES if name in environment}
