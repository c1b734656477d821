"""Are the statements of the contract shown by tests?"""

import pytest

from tests.support.statements import coverage

# Areas that are built, with the least share of core and edge statements that tests have to name.
BUILT = {"R": (0.95, 0.85), "P": (0.95, 0.85), "L": (0.95, 0.85), "C": (0.95, 0.85), "S": (0.95, 0.85)}


@pytest.mark.parametrize("part", [each for each in coverage() if each.area in BUILT], ids=str)
def test_statements_are_shown(part):
    """Nearly every statement of a built area is named by a test."""
    core, edge = BUILT[part.area]

    assert part.share >= (core if part.flag == "core" else edge), f"{part}, not named: {' '.join(part.missing)}"
