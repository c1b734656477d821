"""The Lambda layers with the packages that functions need."""

import marshal
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

import pytest

from tests.support.functions import PIN, ROOT, read_pins

# The interface to Lambda's runtime, which only an image needs.
RUNTIME = {"awslambdaric", "simplejson", "snapshot-restore-py"}


@pytest.mark.parametrize("folder", ["layers/dependencies", "functions/queries"])
def test_functions_run_with_what_is_tested(folder):
    """The layer, and the image of queries, have the same versions of packages as the tests, each with hashes."""
    tested = read_pins("requirements/test.txt")
    text = (ROOT / folder / "requirements.txt").read_text()
    pins = read_pins(f"{folder}/requirements.txt")

    assert {
        name: version for name, version in pins.items() if tested.get(name) != version and name not in RUNTIME
    } == {}
    assert all("--hash=sha256:" in block for block in PIN.split(text)[3::3])


@pytest.fixture
def build_layers(monkeypatch):
    """The build script of the layers, set to compile with the Python that runs the tests."""
    path = ROOT / "scripts" / "build-layers"
    spec = spec_from_loader("build_layers", SourceFileLoader("build_layers", str(path)))
    script = module_from_spec(spec)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "compiler", lambda: (sys.executable, ""))
    return script


def a_module(folder):
    (folder / "part").mkdir(parents=True)
    (folder / "part" / "module.py").write_text("def known(each):\n    return each in {'a', 'b', 'c', 'd'}\n")
    return folder


def test_layers_are_compiled_to_the_same_bytes(build_layers, tmp_path):
    """A layer has the same bytes wherever and whenever it is compiled. Its compiled modules contain their paths in
    Lambda and no times, so Lambda can use them unchanged; it cannot compile others, because a layer is read-only.
    """
    compiled = []
    for folder in (a_module(tmp_path / "one"), a_module(tmp_path / "another")):
        build_layers.compile_modules(folder)
        [made] = folder.rglob("*.pyc")
        compiled.append(made.read_bytes())
    assert compiled[0] == compiled[1]
    unchecked_hash = 0b01
    assert int.from_bytes(compiled[0][4:8], "little") == unchecked_hash
    assert marshal.loads(compiled[0][16:]).co_filename == "/opt/python/part/module.py"


def test_layers_without_a_compiler_are_reported(build_layers, monkeypatch, tmp_path, capsys):
    """Without a Python of the right version, the script builds layers without compiled modules, and prints what that
    costs.
    """
    monkeypatch.setattr(build_layers, "compiler", tuple)
    build_layers.compile_modules(a_module(tmp_path / "one"))
    assert [*tmp_path.rglob("*.pyc")] == []
    assert "There is no Python 3.13 here" in capsys.readouterr().err


def test_the_package_is_copied_without_what_this_machine_compiled(build_layers, monkeypatch, tmp_path):
    """Modules that another Python has compiled in a checkout are not copied into a layer."""
    package = a_module(tmp_path / "package")
    (package / "part" / "__pycache__").mkdir()
    (package / "part" / "__pycache__" / "module.cpython-38.pyc").write_text("old")
    monkeypatch.setattr(build_layers, "PACKAGE", package)
    build_layers.copy_package(tmp_path / "layer")
    assert [each.name for each in (tmp_path / "layer").rglob("*.*")] == ["module.py"]
