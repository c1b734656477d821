"""Files that a build adds and git does not contain: the built console, if there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# The folder in which `make console` builds it, and its place in a source distribution.
CHECKOUT = Path(".cache", "console", "built")
DISTRIBUTED = "console_built"

IN_A_WHEEL = "nakadi/http/console_built"


class ConsoleHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the console to a wheel or a source distribution; an editable install serves the checkout's console."""
        if version == "editable":
            return
        folders = (Path(self.root) / each for each in (DISTRIBUTED, CHECKOUT))
        built = next((each for each in folders if (each / "index.html").is_file()), None)
        if built is None:
            self.app.display_warning("The console is not built, so this has none: `make wheel` builds it before.")
            return
        into = DISTRIBUTED if self.target_name == "sdist" else IN_A_WHEEL
        build_data["force_include"][str(built)] = into
