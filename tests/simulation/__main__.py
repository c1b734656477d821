"""Run many worlds: `python -m tests.simulation SEEDS [FIRST]`. It prints the first seed whose world breaks a
promise. To run this world again alone: `python -m tests.simulation 1 SEED`.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from nakadi.model.sink import Parallel
from tests.simulation.history import PromiseBroken
from tests.simulation.world import run
from tests.support.sink_simulation import SinkSimulation

CHUNK = 100

SEEDS_PER_SINK_WORLD = 10
"""One seed in ten also runs a world with a sink, because it takes as long as several others."""


def failures(first: int, count: int) -> list[str]:
    logging.disable(logging.CRITICAL)
    gc.disable()  # collecting garbage would cost time; a world is small, and little of it remains
    found = []
    for seed in range(first, first + count):
        try:
            run(seed)
            if seed % SEEDS_PER_SINK_WORLD == 0:
                run_sink_simulation(seed)
        except PromiseBroken as broken:
            found.append(str(broken))
        except AssertionError as broken:
            found.append(f"seed {seed}, a world with a sink: {broken}")
    gc.collect()
    return found


def run_sink_simulation(seed: int) -> None:
    """Run the world of a seed, and raise `AssertionError` if it breaks a promise. Half of these worlds deliver by key,
    and half of each kind have a policy."""
    number = seed // SEEDS_PER_SINK_WORLD
    parallel = Parallel.KEY if number % 2 else Parallel.PARTITION
    SinkSimulation(seed, has_policy=number % 4 < 2, parallel=parallel).run()


def first_failure(count: int) -> int:
    """Run worlds until one breaks a promise, and return its seed."""
    logging.disable(logging.CRITICAL)
    for seed in range(count):
        try:
            run(seed)
        except PromiseBroken as broken:
            print(broken)
            return 1
    return 0


def main(count: int, first: int) -> int:
    began, done, broken = time.monotonic(), 0, []
    workers = int(os.environ.get("WORKERS", "1"))
    with ProcessPoolExecutor(workers) as pool:
        starts = range(first, first + count, CHUNK)
        sizes = [min(CHUNK, first + count - start) for start in starts]
        for size, found in zip(sizes, pool.map(failures, starts, sizes), strict=True):
            done += size
            broken += found
            if found and len(broken) == len(found):
                print(found[0], flush=True)
            if done % 5000 < size:
                print(f"{done} worlds, {len(broken)} broken, {done / (time.monotonic() - began):.0f}/s", flush=True)
    print(f"{done} worlds in {time.monotonic() - began:.0f} s, {len(broken)} broken")
    for each in broken[1:20]:
        print(each.splitlines()[0])
    return 1 if broken else 0


if __name__ == "__main__":
    if sys.argv[1] == "--first-only":
        sys.exit(first_failure(int(sys.argv[2])))
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
