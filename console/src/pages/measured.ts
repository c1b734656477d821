/** What the statistics job has measured of event types. The list does not have it, so each is asked for it once while the
 * console is open. */

import { useEffect, useState } from "preact/hooks";
import { api, body, type EventType, problemFrom } from "../api";
import { Asking } from "../asking";

type Measured = NonNullable<EventType["measured_statistic"]>;

// `null` where nothing was measured, or nothing can be seen.
const known = new Map<string, Measured | null>();
// Whether event types of that authorization may be looked at: a user who may not look at one of them may not look at any.
const permitted = new Map<string, Promise<boolean>>();
const listed = new Map<string, EventType>();
const watchers = new Set<() => void>();
addEventListener("nakadi.signed", () => {
  known.clear();
  permitted.clear();
});

export const measures = new Asking(ask, (name) => known.has(name));

/** Listed event types say whom they are for, which is what decides whether they can be asked for. */
export function remember(types: EventType[]): void {
  for (const type of types) listed.set(type.name, type);
}

/** What is known of an event type; nothing as long as it was not asked for. */
export function measuredOf(name: string): Measured | null | undefined {
  return known.get(name);
}

/** The same for a row in sight. */
export function useMeasured(name: string): Measured | null | undefined {
  const [, setRound] = useState(0);
  useEffect(() => {
    if (known.has(name)) return;
    const changed = () => known.has(name) && setRound((round) => round + 1);
    watchers.add(changed);
    measures.inSight(name);
    return () => {
      watchers.delete(changed);
      measures.outOfSight(name);
    };
  }, [name]);
  return known.get(name);
}

async function ask(name: string): Promise<void> {
  const authorization = JSON.stringify(listed.get(name)?.authorization ?? null);
  const before = permitted.get(authorization);
  let found: Measured | null = null;
  if (!before || (await before)) {
    const asked = body(api.GET("/event-types/{name}", { params: { path: { name } } }));
    if (!before) permitted.set(authorization, asked.then(() => true, (error) => problemFrom(error).status !== 403));
    found = await asked.then((type) => type.measured_statistic ?? null, () => null);
  }
  known.set(name, found);
  for (const changed of [...watchers]) changed();
}
