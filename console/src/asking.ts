/** Requests measurements that lists do not contain: first for visible rows, a few at once, and for all other rows only
 * if they are to be ordered by these measurements. */

import { useEffect, useState } from "preact/hooks";

const AT_ONCE = 4;

export class Asking {
  readonly #inSight = new Set<string>();
  // Requested when no visible row waits.
  readonly #later = new Set<string>();
  readonly #asked = new Set<string>();

  /** `ask` must not fail: it records that a value could not be determined. */
  constructor(readonly ask: (key: string) => Promise<void>, readonly isKnown: (key: string) => boolean) {}

  /** Rows that become visible together are requested in their order. */
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

/** Requests the measurements of all `keys`, each once, while `wanted`. `begin` replaces these requests, and returns a
 * function that ends it. Returns how many measurements are known, and a number that changes each second meanwhile:
 * users could not read rows that changed their places with every response. */
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
