/** What the statistics job has measured of event types. The list does not have it, so it is asked for those in sight, a few
 * at once, and each once while the console is open. */

import { useEffect, useState } from "preact/hooks";
import { api, body, type EventType } from "../api";

type Measured = NonNullable<EventType["measured_statistic"]>;

const AT_ONCE = 4;

// `null` where nothing was measured, or nothing can be seen.
const known = new Map<string, Measured | null>();
const waiting = new Set<string>();
const watchers = new Set<() => void>();
let asking = 0;
addEventListener("nakadi.signed", () => known.clear());

/** Nothing as long as it is not known. */
export function useMeasured(name: string): Measured | null | undefined {
  const [, setRound] = useState(0);
  useEffect(() => {
    if (known.has(name)) return;
    const changed = () => known.has(name) && setRound((round) => round + 1);
    watchers.add(changed);
    waiting.add(name);
    queueMicrotask(work);
    return () => {
      watchers.delete(changed);
      waiting.delete(name);
    };
  }, [name]);
  return known.get(name);
}

function work(): void {
  while (asking < AT_ONCE) {
    const [name] = waiting;
    if (name === undefined) return;
    waiting.delete(name);
    asking++;
    void ask(name).finally(() => {
      asking--;
      work();
    });
  }
}

async function ask(name: string): Promise<void> {
  const type = await body(api.GET("/event-types/{name}", { params: { path: { name } } })).catch(() => undefined);
  known.set(name, type?.measured_statistic ?? null);
  for (const changed of [...watchers]) changed();
}
