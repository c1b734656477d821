"""Generate a client in Java with Maven, and let it use a broker: `python -m tests.clients folder`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from nakadi import openapi
from nakadi.local import Broker

PROJECT = Path(__file__).with_name("java")


def main(folder: Path) -> int:
    maven = shutil.which("mvn")
    if maven is None:
        print("Maven and a JDK of version 17 or newer are needed.", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    description = folder.absolute() / "openapi.json"
    description.write_bytes(openapi.document_json())
    with Broker() as broker:
        settings = {
            "description": description,
            "target": folder.absolute() / "target",
            "maven.repo.local": folder.absolute() / "maven",
            "exec.args": broker.url,
        }
        given = [f"-D{name}={value}" for name, value in settings.items()]
        command = [maven, "-B", "-q", "-f", str(PROJECT / "pom.xml"), *given, "clean", "compile", "exec:java"]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
