"""The templates, synthesized anew whenever what they are made of has changed."""

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

from infra.laptop.processes import end_with_the_starter, started
from infra.laptop.templates import Deployment

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / ".cache" / "aws-local"
MADE_OF = ("infra", "nakadi_cdk", "functions", "services", "layers/nakadi")
STAGE = "laptop"

# Nothing is copied or built: functions run from where they are written, with what is installed here.
CONTEXT = {
    "stage": STAGE,
    "index_seconds": "1",
    "default_admin": "service=nakadi_admin",
    "aws:cdk:disable-asset-staging": "true",
    "aws:cdk:bundling-stacks": [],
}

PROGRAM = """
import json, sys
from infra.app import application
application(outdir=sys.argv[1], context=json.loads(sys.argv[2])).synth()
"""


class NotSynthesized(Exception):
    """Raised when there are no templates; the message is what the CDK said."""


def context() -> dict[str, Any]:
    """What the CDK is given: with a console where one is built."""
    folder = os.environ.get("NAKADI_CONSOLE", "")
    built = Path(folder, "index.html").is_file() if folder else False
    return {**CONTEXT, **({"console": "true", "NAKADI_CONSOLE": folder} if built else {})}


def synthesized() -> Deployment:
    folder = KEPT / "cdk.out" / _fingerprint()
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
        _synthesize(unfinished)
        _put(unfinished, folder)
    return Deployment(folder, f"nakadi-{STAGE}")


def _put(unfinished: Path, folder: Path) -> None:
    try:
        unfinished.rename(folder)
    except OSError:
        # Somebody else was faster, with the same.
        shutil.rmtree(unfinished)
    for each in folder.parent.iterdir():
        if each != folder and not each.suffix:
            shutil.rmtree(each, ignore_errors=True)


def _synthesize(folder: Path) -> None:
    # Where the machine has no node, it is beside the interpreter.
    path = os.pathsep.join((os.environ["PATH"], str(Path(sys.executable).parent)))
    process = started(
        [sys.executable, "-c", PROGRAM, str(folder), json.dumps(context())],
        cwd=ROOT,
        env={**os.environ, "PATH": path, "PYTHONPATH": f"{ROOT / 'layers/nakadi/python'}:{ROOT}"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=end_with_the_starter,
    )
    _, complaint = process.communicate()
    if process.returncode:
        raise NotSynthesized(complaint.decode(errors="replace"))


def _fingerprint() -> str:
    chosen = context()
    summary = hashlib.sha256(json.dumps(chosen).encode())
    for path in sorted((*_sources(), *_files(chosen.get("NAKADI_CONSOLE", "")))):
        summary.update(str(path).encode())
        summary.update(path.read_bytes())
    return summary.hexdigest()[:16]


def _files(console: str) -> Iterator[Path]:
    yield from (path for path in Path(console).rglob("*") if path.is_file()) if console else ()


def _sources() -> Iterator[Path]:
    for folder in MADE_OF:
        for path in (ROOT / folder).rglob("*"):
            made_by_python = path.suffix == ".pyc" or "laptop" in path.relative_to(ROOT).parts
            if path.is_file() and not made_by_python:
                yield path
