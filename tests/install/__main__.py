"""`python -m tests.install [--lowest] [--python VERSION] [EXTRA...]`: installs the wheel, with its requirements from a
registry.

For each Python on this machine and each extra, it creates an environment, installs the wheel with only this extra, and
runs the checks of `tests/install/test_extras.py`: imports, a broker, the fixture, the command line and types. With
`--lowest`, it installs the oldest versions that the metadata allows.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nakadi_cli import __version__
from tests.support import install_probes
from tests.support.installed import EXTRAS, PLAIN, build_wheel

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
UV = str(Path(sys.executable).with_name("uv"))

# Spark 3.5 supports no Python after 3.11, and Glue has 3.11.
NOT_FOR = {"jobs": VERSIONS[1:]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help=f"plain, {', '.join(EXTRAS)}; all unless named")
    parser.add_argument("--lowest", action="store_true", help="the oldest versions that the metadata allows")
    parser.add_argument("--python", action="append", help="a version, such as 3.12; all on this machine unless named")
    chosen = parser.parse_args()
    extras = [PLAIN if each == "plain" else each for each in chosen.extras] or [PLAIN, *EXTRAS]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        wheel = build_wheel(Path(folder, "wheel"))
        for python in find_pythons(chosen.python or VERSIONS):
            for extra in extras:
                if version_of(python) in NOT_FOR.get(extra, ()):
                    continue
                environment = Path(folder, "env")
                faults = list(
                    find_install_faults(
                        create_environment(environment, python, wheel, extra, lowest=chosen.lowest), extra
                    )
                )
                shutil.rmtree(environment)
                print(f"{version_of(python):6} {extra or 'plain':6} {'fine' if not faults else 'FAILED'}", flush=True)
                for each in faults:
                    print(f"    {each}", flush=True)
                failed += bool(faults)
    return 1 if failed else 0


def find_pythons(versions: list[str] | tuple[str, ...]) -> Iterator[str]:
    """The Pythons of these versions that this machine has."""
    for version in versions:
        command = [UV, "python", "find", "--no-python-downloads", "--system", version]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        if found.returncode == 0:
            yield found.stdout.strip()


def version_of(python: str) -> str:
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def create_environment(folder: Path, python: str, wheel: Path, extra: str, *, lowest: bool) -> Path:
    """Create an environment with the wheel and pytest, which the fixture needs, and return its Python."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    made = folder / "bin" / "python"
    wanted = f"nakadi-serverless[{extra}] @ {wheel.as_uri()}" if extra else f"nakadi-serverless @ {wheel.as_uri()}"
    pip = [str(made), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    uv = [UV, "pip", "install", "-q", "--python", str(made), "--resolution", "lowest-direct"]
    # pip gets the environment of this process, which may name a proxy for the registry.
    for packages in ([wanted], ["pytest>=8"]):
        command = [*(uv if lowest else pip), *packages]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": ""})
    return made


def find_install_faults(python: Path, extra: str) -> Iterator[str]:
    """Run the checks in an environment, and return what failed."""
    yield from install_probes.failed_imports(python, extra)
    if (offset := install_probes.newest_offset(python)) != "0":
        yield f"Broker(): {offset}"
    if "1 passed" not in (told := install_probes.fixture_outcome(python)):
        yield f"nakadi_broker: {told}"
    code, said = install_probes.report_version(python)
    if (code, said) != (0, f"nakadi {__version__}") and (extra == "cli" or "nakadi-serverless[cli]" not in said):
        yield f"nakadi --version: {code} {said}"
    if extra == PLAIN and "Success" not in (types := install_probes.report_types(sys.executable, python)):
        yield f"mypy: {types}"


if __name__ == "__main__":
    sys.exit(main())
