"""`python -m tests.storms [STEPS] [FIRST SEED] [SEEDS]`: runs storms of faults, and prints what they damaged, which
should be nothing. Then it runs the same seeds, with a tenth of the steps, through days on which indexing stops for
hours.
"""

import sys

from tests.storms.outages import days_of
from tests.storms.storm import run_storm


def main(steps: int = 1000, first: int = 0, seeds: int = 1) -> int:
    bad = 0
    for seed in range(first, first + seeds):
        figures = run_storm(seed, steps)
        bad += figures.lost + figures.doubled + figures.torn + figures.changed + figures.misled + len(figures.unclear)
        print(f"seed {seed}: {figures}")
        print(
            "  " + ", ".join(f"{service} {name} {count}" for (service, name), count in figures.faults_by_kind.items())
        )
        for text in dict.fromkeys(figures.unclear):
            print(f"  {text}")
    for seed in range(first, first + seeds):
        days = days_of(seed, steps // 10)
        bad += days.wrong
        print(f"outages, seed {seed}: {days}")
        for text in dict.fromkeys(days.unclear):
            print(f"  {text}")
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
