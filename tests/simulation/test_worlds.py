"""A hundred worlds, each from its own seed; `make simulate SEEDS=100000` runs many."""

import re
from pathlib import Path

import pytest

from nakadi.subscriptions.stream.session import SubscriptionSession
from tests.simulation.history import PromiseBroken
from tests.simulation.mutants import MUTANTS, PACKAGE, apply_mutation
from tests.simulation.world import World, run
from tests.support.engines import COORDINATIONS, a_coordination
from tests.support.everything import seeds

SEEDS_IN_A_TEST = 50
README = Path(__file__).with_name("README.md").read_text()


@pytest.mark.parametrize("first", seeds(100, 600)[::SEEDS_IN_A_TEST])
def test_worlds_keep_their_promises(first):
    """For any sessions, crashes, pauses, resets and lost answers, there is one owner, nothing is lost, nothing is out
    of order, nothing committed is sent again, and all work is completed. (S168, S239, S245, S312, S313, S314, S315,
    S316, S317, S318, S319, S206, S219, S249, S324, S329, S331)"""
    run_many(SEEDS_IN_A_TEST, first)


def test_a_world_can_be_lived_through_again():
    """A seed determines everything: the same seed gives the same world."""
    trails = []
    for _ in range(2):
        world = World(4711)
        world.run()
        trails.append(world.trail)
    assert trails[0] == trails[1]


def test_worlds_on_a_file_go_the_same_way(tmp_path):
    """The course of a world does not depend on the store. (S312, S314)"""
    for seed in range(2):
        (tmp_path / str(seed)).mkdir()
        with a_coordination(COORDINATIONS["sqlite"], tmp_path / str(seed)) as store:
            kept, remembered = World(seed, store), World(seed)
            kept.run()
            remembered.run()
        assert kept.trail == remembered.trail


@pytest.mark.long("tests/simulation/test_worlds.py::test_worlds_on_a_file_go_the_same_way")
def test_worlds_in_dynamodb_keep_their_promises(tmp_path):
    """In DynamoDB, conditional writes and transactions keep the promises that locks keep in the other engines.
    (S312, S313, S314, S317)
    """
    with a_coordination(COORDINATIONS["dynamodb"], tmp_path) as store:
        World(2, store).run()


def test_broken_promises_are_found(monkeypatch):
    """The simulation detects a session that continues without a lease, and reports its seed and the preceding moves.
    (S318)"""
    monkeypatch.setattr(SubscriptionSession, "_is_over", lambda self, _: self.end is not None)
    with pytest.raises(PromiseBroken, match=r"(?s)seed (\d+): (?:I[17]|hand-over): .* SEEDS=1 FIRST=\1$"):
        run_many(500)


def run_many(count, first=0):
    for seed in range(first, first + count):
        run(seed)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[each.what for each in MUTANTS])
def test_every_mutant_still_fits(mutant):
    """Each fault that the simulation was shown to detect can still be introduced into the code."""
    assert apply_mutation(mutant) != (PACKAGE / mutant.file).read_text()


def test_every_promise_was_broken_once():
    """For each invariant, and for each promise beyond them, there is a mutant that breaks it."""
    promises = {f"I{number}" for number in range(1, 9)} | {
        "at least once",
        "order",
        "hand-over",
        "time to commit",
        "once committed",
        "parking",
        "progress",
        "leaving",
        "release",
        "extension",
    }
    assert {each.breaks for each in MUTANTS} == promises


def test_the_readme_lists_the_mutants():
    """The table in the README names each fault with the promise that it breaks and its file."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in README.splitlines()]
    rows = {(each[0], each[1], each[2].strip("`")) for each in cells if len(each) == 5}
    wanted = {(each.breaks, each.what, each.file) for each in MUTANTS}
    assert wanted <= rows
    assert {row for row in rows if row[2].endswith(".py")} == wanted


def test_the_readme_names_classes_that_exist():
    """Each class that the README names as code under test exists in the package."""
    sentence = next(line for line in README.splitlines() if line.startswith("The code under test is"))
    sources = "".join(file.read_text() for file in PACKAGE.rglob("*.py"))
    for name in re.findall(r"`(\w+)`", sentence):
        assert re.search(rf"\bclass {name}\b", sources), name
