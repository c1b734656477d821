"""Worlds of publishers keep their promises, and break one if any step of the append is wrong."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import ModuleType

import pytest

from nakadi.publishing import claimed_append
from tests.simulation.publishing import MAX_SKEW_SECONDS, PromiseBroken, World
from tests.support import everything

SOURCE = Path(claimed_append.__file__).read_text()
MAX_WORLDS = 6000
"""After this number of worlds, a mutant counts as not found; most are found among the first fifty."""
WORLDS_WITH_RIGHT_CLOCKS = 500

KNOWN_WORLDS = {
    "claims are removed though the outcome is unknown": 61,
    "what was refused is over at once": 60,
    "refused events are confirmed": 130,
    "events in front of the claim are taken for its own": 2663,
    "a claim begins in front of events of an earlier window": 309,
    "a claim that was found begins its window anew": 314,
}
"""The worlds that show the rarer mutants. The test tries them first, because a search takes up to half a minute. If
the simulation or the append changes, other worlds show these mutants; the search finds them, and the test prints
them.
"""

MUTANTS = {
    "claims of others are not in the way": (
        "index: found[each.key] for index, each in self.wanted.items() if each.key in found",
        "index: found[each.key] for index, each in self.wanted.items() if False",
    ),
    "what is claimed counts as stored": ("if claim.is_stored and now - claim", "if now - claim"),
    "the log is not asked": ("found = yield from self._find_events(unconfirmed, limit=None)", "found = {}"),
    "an earlier attempt is not awaited": ("claim.is_stored or now >= claim.settled_at", "True"),
    "a claim that is lost to another is used": (
        "if self.wanted[index].key not in taken]",
        "if False]",
    ),
    "an append begins however late": ("> CLAIMS_HOLD_FOR.total_seconds()", "> 1e9"),
    "claims are removed though the outcome is unknown": (
        "            yield from self._note_end([(each, self._soon_settled_claim(each)) for each in claims])\n",
        "            yield partial(self.claims.remove, claims)\n",
    ),
    "what was refused is over at once": (
        "self.clock.now() + APPEND_SETTLES_AFTER_ITS_END",
        "self.clock.now()",
    ),
    "refused events are confirmed": (
        "self._soon_settled_claim(each) if each.partition in refused else self._confirmed_claim(each, now)",
        "self._confirmed_claim(each, now)",
    ),
    "events in front of the claim are taken for its own": (" and event.offset >= start_of[eid]", ""),
    "a claim begins in front of events of an earlier window": (
        "            yield from self._renew_starts([index for index in free if self.standing[index].is_stored])\n",
        "",
    ),
    "a claim that was found begins its window anew": (
        "self._confirmed_claim(self.standing[index], event.stored_at)",
        "self._confirmed_claim(self.standing[index], now)",
    ),
    "repeats within a batch are stored": (
        "            if first.setdefault(eid, index) != index:",
        "            if False:",
    ),
}


CLOCK_MUTANTS = {
    "a claim settles as if clocks were alike": (
        "APPEND_SETTLES_AFTER = timedelta(seconds=90)",
        "APPEND_SETTLES_AFTER = timedelta(seconds=76)",
    ),
    "what was refused is over as if clocks were alike": (
        "APPEND_SETTLES_AFTER_ITS_END = timedelta(seconds=30)",
        "APPEND_SETTLES_AFTER_ITS_END = timedelta(seconds=13)",
    ),
}
"""Each of these is wrong only because one publisher's clock dates a claim and another's clock judges it: an append
takes at most 20 or 54 seconds, and takes effect at most 12 seconds after its refusal.
"""


def load_mutant(was: str, becomes: str) -> ModuleType:
    assert SOURCE.count(was) == 1, f"{was!r} stands {SOURCE.count(was)} times in the source"
    module = ModuleType("mutated_claimed_append")
    # Classes look up their annotations in the module of their name.
    sys.modules[module.__name__] = module
    exec(compile(SOURCE.replace(was, becomes), module.__name__, "exec"), module.__dict__)
    return module


def run_tight_worlds(number: int, module: ModuleType, max_skew: float) -> None:
    for seed in range(number):
        try:
            World(seed, module, max_skew=max_skew, is_tight=True).run()
        except PromiseBroken as broken:
            print(f"World {seed}: {broken}")
            raise


@pytest.fixture(autouse=True)
def _silence_logs():
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def test_worlds_keep_their_promises():
    """Whatever fails and whichever process dies, each event is stored once, and a publisher that hears that it is
    stored finds it in the log. (P158)"""
    for seed in range(everything.choose_by_suite(80, 5000)):
        try:
            World(seed).run()
        except PromiseBroken as broken:
            pytest.fail(f"World {seed}: {broken}")


@pytest.mark.long("tests/simulation/test_publishing_worlds.py::test_worlds_keep_their_promises")
@pytest.mark.parametrize("what", CLOCK_MUTANTS)
def test_a_step_that_trusts_the_clocks_of_others_is_found(what):
    """A step that trusts other processes' clocks breaks a promise if clocks are wrong, and none if they are right."""
    module = load_mutant(*CLOCK_MUTANTS[what])
    with pytest.raises(PromiseBroken, match="again"):
        run_tight_worlds(MAX_WORLDS, module, MAX_SKEW_SECONDS)
    run_tight_worlds(WORLDS_WITH_RIGHT_CLOCKS, module, 0.0)


@pytest.mark.long("tests/simulation/test_publishing_worlds.py::test_worlds_keep_their_promises")
@pytest.mark.parametrize("what", MUTANTS)
def test_a_wrong_step_is_found(what):
    """Each step of an append is needed: without it, a world breaks a promise."""
    module = load_mutant(*MUTANTS[what])
    known = [] if everything.WANTED else [seed for name, seed in KNOWN_WORLDS.items() if name == what]
    for seed in (*known, *range(MAX_WORLDS)):
        try:
            World(seed, module).run()
        except Exception as error:  # noqa: BLE001  # a mutant may fail in any way
            print(f"{what}: world {seed}, {error!r}")
            return
    pytest.fail(f"No world has found it: {what}")
