"""The architecture page names existing parts of the package."""

import re
from pathlib import Path

from nakadi.delivery import lane_states
from nakadi.event_types import timeline_states
from nakadi.subscriptions.stream import partition_states, session_states
from tests.support.state_diagrams import state_diagram

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "layers/nakadi/python/nakadi"
PAGE = (ROOT / "docs/architecture.md").read_text()


def rooms() -> set[str]:
    """Folders of the package with modules in them; subfolders belong to the room."""
    found: set[str] = set()
    # After a move, the old folder may still contain compiled modules.
    for folder in sorted(module.parent for module in PACKAGE.rglob("*/__init__.py")):
        name = ".".join(folder.relative_to(PACKAGE).parts)
        has_code = any(folder.glob("[!_]*.py")) or (folder / "__init__.py").stat().st_size > 2000
        if has_code and not any(name.startswith(f"{room}.") for room in found):
            found.add(name)
    return found


def test_the_table_has_every_room_of_the_package_and_no_other():
    assert set(re.findall(r"^\| `([\w.]+)` \|", PAGE, re.MULTILINE)) == rooms()


def test_every_file_that_is_named_exists():
    named = set(re.findall(r"`(?!infra|glue_jobs|nakadi_c|scripts|tests)([\w/]+/\w+\.py)`", PAGE))
    assert len(named) > 30
    assert {name for name in named if not (PACKAGE / name).is_file()} == set()


def test_every_name_stands_in_the_file_where_it_is_said_to_be():
    """Each name on the page occurs in the file for which the page gives it; an outdated name would mislead readers."""
    said = re.findall(r"((?:`\w+`(?:, | and )?)+) in `([\w/]+\.py)`", PAGE)
    places = [(name, path) for names, path in said for name in re.findall(r"`(\w+)`", names)]
    assert len(places) > 10
    texts = {
        path: next(each for each in (PACKAGE / path, ROOT / path) if each.is_file()).read_text() for _, path in said
    }
    assert [place for place in places if not re.search(rf"\b{place[0]}\b", texts[place[1]])] == []


def test_the_diagrams_are_the_tables_of_the_states():
    """The diagrams match the tables of the state machines. If a table has changed, the failure shows the new
    diagram.
    """
    drawn = [
        state_diagram(session_states.TRANSITIONS, session_states.SessionState.STREAMING),
        state_diagram(
            partition_states.TRANSITIONS,
            partition_states.PartitionState.OPENING,
            "at work",
            partition_states.AT_WORK,
        ),
        state_diagram(timeline_states.TRANSITIONS, timeline_states.TimelineState.ANNOUNCED),
        state_diagram(lane_states.LANE_TRANSITIONS, lane_states.LaneState.READY),
        state_diagram(lane_states.DELIVERY_TRANSITIONS, lane_states.DeliveryState.DELIVERING),
    ]
    assert re.findall(r"```mermaid\n(stateDiagram.*?)\n```", PAGE, re.DOTALL) == drawn, "\n\n".join(drawn)
