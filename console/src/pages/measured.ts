/** The measurements of the statistics job. The list of event types does not contain them, so the console requests each
 * event type once while it is open. */

import { useEffect, useState } from "preact/hooks";
import { api, body, type EventType, problemFrom } from "../api";
import { Asking } from "../asking";

type Measured = NonNullable<EventType["measured_statistic"]>;

// `null` if nothing was measured, or if the user may not see the measurements.
const known = new Map<string, Measured | null>();
// By authorization: whether the user may view event types that have it. The first refusal decides for all of them.
const permitted = new Map<string, Promise<boolean>>();
const listed = new Map<string, EventType>();
const watchers = new Set<() => void>();
addEventListener("nakadi.signed", () => {
  known.clear();
  permitted.clear();
});

export const measures = new Asking(ask, (name) => known.has(name));

/** Keeps listed event types: their authorization decides whether the user may view them. */
export function remember(types: EventType[]): void {
  for (const type of types) listed.set(type.name, type);
}

/** The measurements of an event type, or `undefined` until they were requested. */
export function measuredOf(name: string): Measured | null | undefined {
  return known.get(name);
}

/** The measurements for a visible row, which requests them. */
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
