"""`python -m tests.storms [STEPS] [FIRST SEED] [SEEDS]`: what a storm of faults takes. Nothing, it should print."""

import sys

from tests.storms.voyage import voyage


def main(steps: int = 1000, first: int = 0, seeds: int = 1) -> int:
    bad = 0
    for seed in range(first, first + seeds):
        figures = voyage(seed, steps)
        bad += figures.lost + figures.doubled + figures.torn + figures.changed + figures.misled + len(figures.unclear)
        print(f"seed {seed}: {figures}")
        print(
            "  " + ", ".join(f"{service} {name} {count}" for (service, name), count in figures.faults_by_kind.items())
        )
        for text in dict.fromkeys(figures.unclear):
            print(f"  {text}")
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
