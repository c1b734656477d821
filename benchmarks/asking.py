"""The command line of benchmarks with several questions."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

Figures = dict[str, float]


class Question(Protocol):
    def __call__(self, engine: str, *, quick: bool) -> Figures: ...


def answer_questions(about: str | None, questions: Mapping[str, Question], *, engine: str) -> None:
    """Answer the requested questions, or all of them."""
    arguments = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("questions", nargs="*", choices=[*questions, []], default=[])
    arguments.add_argument("--engine", choices=["memory", "sqlite"], default=engine)
    arguments.add_argument("--quick", action="store_true", help="fewer rounds: for trying, not for figures")
    arguments.add_argument("--json", type=Path, help="also write the figures to this file")
    options = arguments.parse_args()
    figures: Figures = {}
    for question in options.questions or questions:
        found = questions[question](options.engine, quick=options.quick)
        for name, figure in found.items():
            print(f"{options.engine} {name} {figure:,.2f}", flush=True)
        figures |= found
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))
