"""The environment of a process that tests start: only the variables that it needs."""

import os
from collections.abc import Mapping

# These variables name the places of programs, settings and temporary files, and the encoding of text. Java, Spark,
# pyenv's Python and Node may be in unusual places, to which their own variables point. tests/conftest.py sets
# certificates and the cache of the CDK.
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
    """The variables of `PASSED_VARIABLES` that are set here, and `more`.

    Other variables of a machine, such as `PYTHONUNBUFFERED` or `MAKEFLAGS`, would change the results of tests.
    """
    return {**select_plain(os.environ), **more}


def select_plain(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: environment[name] for name in PASSED_VARIABLES if name in environment}
