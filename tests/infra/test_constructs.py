"""The constructs in another app: everything comes from the wheel, and nothing from this checkout."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hatchling.bridge.app import Application

from hatch_build import ConsoleHook
from tests.support.environment import plain_environment
from tests.support.functions import ROOT
from tests.support.installed import build_distribution, lean_environment
from tests.support.templates import Template

EXAMPLE = ROOT / "docs" / "examples" / "pipeline.py"

# Nothing may be built while an app is synthesized, because that would need a registry.
WITHOUT_A_NETWORK = json.dumps({"aws:cdk:bundling-stacks": []})


@pytest.fixture(scope="session")
def python(tmp_path_factory):
    """The Python of an environment with the requirements of `[cdk]`, and a wheel built from the source distribution."""
    folder = tmp_path_factory.mktemp("installed")
    with tarfile.open(build_distribution("sdist", ROOT, folder / "sdist")) as archive:
        # We have built the archive ourselves, so it is safe to extract without a filter, which Python before 3.11.4
        # lacks.
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    [source] = (each.parent for each in folder.glob("*/pyproject.toml"))
    return lean_environment(folder / "env", build_distribution("wheel", source, folder / "wheel"), "cdk")


@pytest.fixture(scope="session")
def site_packages(python):
    """The folder with the files that `pip install` would install."""
    [site] = python.parents[1].glob("lib/*/site-packages")
    return site


@pytest.mark.long
def test_a_wheel_serves_the_console_without_a_build(python, site_packages, tmp_path):
    """A wheel contains the console that was built before, and serves it by default; the layer for AWS does not contain
    it.
    """
    if not (ROOT / ".cache/console/built/index.html").exists():
        pytest.skip("the console is not built: `make console` does it")
    asking = (
        "import urllib.request, nakadi\n"
        "from nakadi.local import Broker\n"
        "with Broker() as broker:\n"
        "    print(nakadi.__file__)\n"
        "    print(urllib.request.urlopen(broker.url + '/console/').read().decode())"
    )
    done = subprocess.run(
        [str(python), "-c", asking],
        cwd=tmp_path,
        env=plain_environment(NAKADI_CONSOLE="", PYTHONDONTWRITEBYTECODE="1"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    file, _, page = done.stdout.partition("\n")
    assert Path(file).is_relative_to(site_packages)
    assert page.strip() == (ROOT / ".cache/console/built/index.html").read_text().strip()
    assert {each.parent.parent.name for each in site_packages.rglob("console_built/index.html")} == {"http"}


@pytest.mark.parametrize(
    ("folder", "target", "into"),
    [
        (".cache/console/built", "sdist", "console_built"),
        (".cache/console/built", "wheel", "nakadi/http/console_built"),
        ("console_built", "wheel", "nakadi/http/console_built"),
    ],
)
def test_a_build_takes_the_console_from_where_it_is(tmp_path, folder, target, into):
    """A checkout has the built console in its cache, and a source distribution in a separate folder."""
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "index.html").touch()
    assert list_added(tmp_path, target) == {str(tmp_path / folder): into}
    assert list_added(tmp_path, target, version="editable") == {}


def test_a_build_without_the_console_says_so(tmp_path, capsys):
    """The build still succeeds: a machine without node can install the package."""
    assert list_added(tmp_path, "wheel") == {}
    assert "`make wheel`" in capsys.readouterr().err


def list_added(root, target, version="standard"):
    hook = ConsoleHook(str(root), {}, None, None, str(root / "dist"), target, Application())
    data = {"force_include": {}}
    hook.initialize(version, data)
    return data["force_include"]


@pytest.fixture(scope="session")
def foreign_app(python, site_packages, tmp_path_factory):
    """The folder with the templates of the example, which has only the wheel with the requirements of `[cdk]`."""
    folder = tmp_path_factory.mktemp("foreign")
    (folder / "app.py").write_text(
        EXAMPLE.read_text() + "\nimport nakadi\nimport nakadi_cdk\n"
        "for each in (nakadi, nakadi_cdk):\n    print(each.__file__)\n"
    )
    done = subprocess.run(
        [str(python), "app.py"],
        cwd=folder,
        env=plain_environment(
            HOME=str(folder),
            CDK_CONTEXT_JSON=WITHOUT_A_NETWORK,
            CDK_OUTDIR=str(folder / "cdk.out"),
        ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(Path(line).is_relative_to(site_packages) for line in done.stdout.splitlines())
    return folder / "cdk.out"


def template(folder, pattern):
    [found] = folder.glob(pattern)
    return Template(found)


@pytest.mark.long
def test_another_app_gets_a_whole_broker(foreign_app, deployment):
    """An app that imports the construct has everything that our own three stacks have."""
    ours = [deployment.data, deployment.serving, deployment.analytics]
    theirs = template(foreign_app, "assembly-*Live/*.template.json")

    kinds = {each["Type"] for template in ours for each in template.resources.values()}
    assert kinds - {each["Type"] for each in theirs.resources.values()} == {
        # The example has neither a domain nor an address for alarms.
        "AWS::ApiGateway::BasePathMapping",
        "AWS::ApiGateway::DomainName",
        "AWS::SNS::Subscription",
    }
    assert set(theirs.functions()) == {name.replace("-test-", "-live-") for name in deployment.serving.functions()}


@pytest.mark.long
def test_what_is_deployed_comes_out_of_the_wheel(foreign_app):
    """Functions, layers, jobs and the sources of the image are in the wheel, without bytecode."""
    [manifest] = foreign_app.glob("assembly-*Live/*.assets.json")
    assets = json.loads(manifest.read_text())
    paths = [manifest.parent / each["source"]["path"] for each in assets["files"].values()]
    [image] = assets["dockerImages"].values()
    context = manifest.parent / image["source"]["directory"]
    deployed = [file for path in (*paths, context) for file in path.rglob("*")]

    assert all(each.exists() for each in paths)
    assert {str(each.relative_to(context)) for each in context.rglob("*.txt")} == {
        "services/streaming/requirements.txt"
    }
    assert (context / image["source"]["dockerFile"]).is_file()
    assert (context / "layers/nakadi/python/nakadi/app/broker.py").is_file()
    assert not [each for each in deployed if each.suffix == ".pyc" or each.name in ("__pycache__", "console_built")]


FINGERPRINTS = """
from aws_cdk import FileSystem
from nakadi_cdk.assets import COMPILED_FILES, JOBS, PACKAGE, assets_folder

for each in (PACKAGE, JOBS, "functions", "nakadi_sql", "services/streaming"):
    print(each, FileSystem.fingerprint(str(assets_folder() / each), exclude=COMPILED_FILES))
"""


@pytest.mark.long
def test_a_wheel_deploys_the_same_as_a_checkout(python, site_packages, tmp_path):
    """The deployed assets have the same hashes as in a checkout, even after modules were compiled, and no copy is
    left behind."""
    compiled = site_packages / "nakadi" / "app" / "__pycache__" / "broker.cpython-399.pyc"
    compiled.parent.mkdir(exist_ok=True)
    compiled.touch()
    checkout = os.pathsep.join(str(ROOT / each) for each in (".", "layers/nakadi/python"))
    told = [
        subprocess.run(
            [program, "-c", FINGERPRINTS],
            cwd=tmp_path,
            env=plain_environment(TMPDIR=str(tmp_path), **more),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for program, more in ((str(python), {}), (sys.executable, {"PYTHONPATH": checkout}))
    ]

    assert told[0] == told[1]
    assert len(told[0].splitlines()) == 5
    assert not list(tmp_path.glob("nakadi-cdk-*"))


@pytest.mark.long
def test_the_broker_waits_for_data_of_its_own(foreign_app):
    """In one stack, the tables and streams are created before their readers."""
    live = template(foreign_app, "assembly-*Live/*.template.json")
    stream = next(name for name, each in live.resources.items() if each["Type"] == "AWS::Kinesis::Stream")
    [mapping] = (each for each in live.resources.values() if each["Type"] == "AWS::Lambda::EventSourceMapping")

    assert stream in mapping["DependsOn"]


@pytest.mark.long
def test_the_example_is_a_pipeline_that_deploys_the_broker(foreign_app):
    """The pipeline publishes the assets of the wheel, waits for a person's approval, deploys, and checks that the
    broker is up.
    """
    stages = template(foreign_app, "ShopPipeline.template.json").one("AWS::CodePipeline::Pipeline")["Stages"]
    actions = {stage["Name"]: [action["Name"] for action in stage["Actions"]] for stage in stages}

    assert list(actions) == ["Source", "Build", "UpdatePipeline", "Assets", "Live"]
    assert actions["Live"] == ["GoLive", "Events.Prepare", "Events.Deploy", "IsItUp"]
