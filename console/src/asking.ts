/** Measures that lists do not have: asked for those in sight, a few at once, and for all others where rows are to be ordered
 * by them. */

import { useEffect, useState } from "preact/hooks";

const AT_ONCE = 4;

export class Asking {
  readonly #inSight = new Set<string>();
  // Asked for when nothing waits that is in sight.
  readonly #later = new Set<string>();
  readonly #asked = new Set<string>();

  /** `ask` does not fail: what it could not find out is known to be unknown. */
  constructor(readonly ask: (key: string) => Promise<void>, readonly isKnown: (key: string) => boolean) {}

  /** Rows that come into sight together are asked for in their order. */
  inSight(key: string): void {
    this.#inSight.add(key);
    queueMicrotask(() => this.#work());
  }

  outOfSight(key: string): void {
    this.#inSight.delete(key);
  }

  later(keys: string[]): void {
    for (const key of keys) if (!this.isKnown(key) && !this.#asked.has(key)) this.#later.add(key);
    this.#work();
  }

  notLater(keys: string[]): void {
    for (const key of keys) this.#later.delete(key);
  }

  #work(): void {
    while (this.#asked.size < AT_ONCE) {
      const [key] = this.#inSight.size ? this.#inSight : this.#later;
      if (key === undefined) return;
      this.#inSight.delete(key);
      this.#later.delete(key);
      this.#asked.add(key);
      void this.ask(key).finally(() => {
        this.#asked.delete(key);
        this.#work();
      });
    }
  }
}

/** Asks for all of these, each once, while it is wanted; `begin` is another way to ask, and returns what ends that. Returns
 * how many are known, and a number that changes every second meanwhile: rows that change their places with every answer
 * could not be read. */
export function useAll(
  asking: Asking, keys: string[], wanted: boolean, begin?: () => () => void,
): { measured: number; round: number } {
  const [round, setRound] = useState(0);
  useEffect(() => {
    if (!wanted) return;
    const end = begin?.();
    if (!begin) asking.later(keys);
    const reordering = setInterval(() => setRound((before) => before + 1), 1000);
    return () => {
      clearInterval(reordering);
      if (end) end();
      else asking.notLater(keys);
    };
  }, [asking, keys, wanted]);
  return { measured: wanted ? keys.filter((key) => asking.isKnown(key)).length : 0, round };
}
