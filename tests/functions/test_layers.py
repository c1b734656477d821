"""What is installed beside the functions."""

import re
import subprocess
import sys
from importlib import metadata

import pytest

from functions.needs import NEEDS
from tests.support.functions import ROOT

PIN = re.compile(r"^([\w.-]+)==(\S+)", re.MULTILINE)


def pins(path):
    return {name.lower(): version for name, version in PIN.findall((ROOT / path).read_text())}


LAYER = pins("layers/dependencies/requirements.txt")


def test_functions_run_with_what_is_tested():
    """The layer has the versions that the tests ran with, each with hashes."""
    tested = pins("requirements/test.txt")
    text = (ROOT / "layers/dependencies/requirements.txt").read_text()

    assert {name: version for name, version in LAYER.items() if tested.get(name) != version} == {}
    assert all("--hash=sha256:" in block for block in PIN.split(text)[3::3])


@pytest.mark.parametrize("name", NEEDS)
def test_everything_that_a_function_loads_is_in_the_layer(name):
    """No function imports a library that is not there in Lambda."""
    probe = f"""
import sys
sys.path[:0] = [{str(ROOT / "layers/nakadi/python")!r}, {str(ROOT / "functions" / name)!r}]
import handler
print(*{{module.partition(".")[0] for module in sys.modules}})
"""
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    packages = metadata.packages_distributions()
    needed = {packages[module][0].lower().replace("_", "-") for module in done.stdout.split() if module in packages}

    # botocore has certificates of its own, and takes certifi's only where they are.
    assert needed - {"certifi", "pip", "setuptools", "nakadi-serverless"} <= set(LAYER)
