"""The examples of `docs/types.md` work, in their order, with a broker."""

from __future__ import annotations

import re
import shlex
import shutil

from tests.support.pages import ROOT

PAGE = (ROOT / "docs/types.md").read_text()
BLOCKS = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def test_every_example_runs(run, api, tmp_path, monkeypatch):
    """Each pasted command succeeds, and prints the output on the page."""
    shutil.copytree(ROOT / "events", tmp_path / "events")
    for name in ("order.placed", "shipment.delayed"):
        api.delete(f"/event-types/{name}")
    monkeypatch.chdir(tmp_path)
    shown = ""
    for language, block in BLOCKS.findall(PAGE):
        if language == "sh":
            shown = "".join(run_line(run, line, tmp_path) for line in block.splitlines())
        else:
            assert all(line.strip() in shown for line in block.splitlines()), block


def run_line(run, line, folder):
    """Run a line of commands with pipes, and perhaps a file at its end, and return the output."""
    commands, _, file = line.partition(" > ")
    done = None
    for command in commands.split(" | "):
        words = shlex.split(command)
        assert words[0] == "nakadi"
        done = run(*words[1:], stdin=done.out if done else "")
        assert done.code == 0, f"{command}: {done.err}"
        if "--to" in words and "--check" not in words:
            return (folder / words[words.index("--to") + 1]).read_text()
    if file:
        (folder / file).write_text(done.out)
    return done.out
