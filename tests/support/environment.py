"""The environment of a process of the tests: a newcomer's, and variables that are passed on by name."""

import os
from collections.abc import Mapping

# The places of programs, settings and temporary files, and the encoding of text. Java and Spark, pyenv's Python and
# Node are found by their own variables on machines that have them in unusual places. Certificates and the cache of
# the CDK are set by tests/conftest.py.
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

    Other variables of a machine, such as `PYTHONUNBUFFERED` or `MAKEFLAGS`, would affect tests elsewhere.
    """
    return {**select_plain(os.environ), **more}


def select_plain(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: environment[name] for name in PASSED_VARIABLES if name in environment}
