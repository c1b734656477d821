"""The synthesized templates, cached until one of their sources changes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from infra.laptop.processes import end_with_parent, start_process
from infra.laptop.templates import ACCOUNT, REGION, Deployment

ROOT = Path(__file__).resolve().parents[2]
CACHE_FOLDER = ROOT / ".cache" / "aws-local"
SOURCE_FOLDERS = ("infra", "nakadi_cdk", "functions", "services", "layers/nakadi")
STAGE = "laptop"
SINK_TARGETS = ",".join(
    f"arn:aws:{service}:{REGION}:{ACCOUNT}:{name}"
    for service, name in (("lambda", "function:*"), ("sqs", "*"), ("sns", "*"), ("events", "event-bus/*"))
)

# Synthesis copies and builds nothing: functions run from their source folders with the installed packages.
CONTEXT = {
    "stage": STAGE,
    "index_seconds": "1",
    "default_admin": "service=nakadi_admin",
    "sinks": "true",
    "sink_targets": SINK_TARGETS,
    "queries": "true",
    "aws:cdk:disable-asset-staging": "true",
    "aws:cdk:bundling-stacks": [],
}

PROGRAM = """
import json, sys
from infra.app import create_app
create_app(outdir=sys.argv[1], context=json.loads(sys.argv[2])).synth()
"""


class SynthesisFailed(Exception):
    """Raised if synthesis fails; the message is the CDK's."""


def synthesis_context() -> dict[str, Any]:
    """The CDK context, with the console if it is built."""
    folder = os.environ.get("NAKADI_CONSOLE", "")
    built = Path(folder, "index.html").is_file() if folder else False
    return {**CONTEXT, **({"console": "true", "NAKADI_CONSOLE": folder} if built else {})}


def synthesize_cached() -> Deployment:
    folder = CACHE_FOLDER / "cdk.out" / _fingerprint()
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
        _synthesize(unfinished)
        _move_into_place(unfinished, folder)
    return Deployment(folder, f"nakadi-{STAGE}")


def _move_into_place(unfinished: Path, folder: Path) -> None:
    try:
        unfinished.rename(folder)
    except OSError:
        # Another process has published the same templates meanwhile.
        shutil.rmtree(unfinished)
    for each in folder.parent.iterdir():
        if each != folder and not each.suffix:
            shutil.rmtree(each, ignore_errors=True)


def _synthesize(folder: Path) -> None:
    # node may be installed beside the interpreter.
    path = os.pathsep.join((os.environ["PATH"], str(Path(sys.executable).parent)))
    process = start_process(
        [sys.executable, "-c", PROGRAM, str(folder), json.dumps(synthesis_context())],
        cwd=ROOT,
        env={**os.environ, "PATH": path, "PYTHONPATH": f"{ROOT / 'layers/nakadi/python'}:{ROOT}"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=end_with_parent,
    )
    _, complaint = process.communicate()
    if process.returncode:
        raise SynthesisFailed(complaint.decode(errors="replace"))


def _fingerprint() -> str:
    context = synthesis_context()
    summary = hashlib.sha256(json.dumps(context).encode())
    for path in sorted((*_sources(), *_files_to_hash(context.get("NAKADI_CONSOLE", "")))):
        summary.update(str(path).encode())
        summary.update(path.read_bytes())
    return summary.hexdigest()[:16]


def _files_to_hash(console: str) -> Iterator[Path]:
    yield from (path for path in Path(console).rglob("*") if path.is_file()) if console else ()


def _sources() -> Iterator[Path]:
    for folder in SOURCE_FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            is_excluded = path.suffix == ".pyc" or "laptop" in path.relative_to(ROOT).parts
            if path.is_file() and not is_excluded:
                yield path
