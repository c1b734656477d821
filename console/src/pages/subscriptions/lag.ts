/** The lag of subscriptions. The console requests it for visible rows, a few at once and again every ten seconds. It
 * requests the lag of all others once, and only if the rows are to be ordered by it. */

import { useEffect, useState } from "preact/hooks";
import { api, body, type Problem, problemFrom, type Schemas } from "../../api";
import { Asking, useAll } from "../../asking";

export type Partition = Schemas["SubscriptionPartitionStats"] & { event_type: string };

/** The lag of a subscription at one time. `events` is missing until a stream has read the subscription. */
export type Lag = { at: number; events?: number; seconds?: number; stalled: number; streams: number; partitions: number };
export type Watched = { lags: Lag[]; problem?: Problem };

const EVERY = 10_000;
const MOST = 60;
// The size of a page of subscriptions with statistics.
const MANY = 100;

type Entry = Watched & { watchers: Set<() => void> };

const known = new Map<string, Entry>();
let timer: ReturnType<typeof setInterval> | undefined;

export const lags = new Asking(ask, isKnown);

export async function partitionsOf(id: string, signal?: AbortSignal): Promise<Partition[]> {
  const params = { path: { subscription_id: id }, query: { show_time_lag: true } };
  const { items } = await body(api.GET("/subscriptions/{subscription_id}/stats", { params, signal }));
  return flat(items);
}

function flat(items: Schemas["SubscriptionEventTypeStats"][]): Partition[] {
  return items.flatMap(({ event_type, partitions }) => partitions.map((each) => ({ ...each, event_type })));
}

/** Requests the lag of all these subscriptions while `wanted`, and returns what `useAll` returns. `owner` is their
 * common owner, if they have one. */
export function useAllLags(ids: string[], owner: string, wanted: boolean): { measured: number; round: number } {
  return useAll(lags, ids, wanted, ids.length > MANY ? () => askTogether(ids, owner) : undefined);
}

function askTogether(ids: string[], owner: string): () => void {
  const controller = new AbortController();
  const ask = async (token: string): Promise<void> => {
    if (ids.every(isKnown)) return;
    const query = { show_stats: true, show_time_lag: true, limit: MANY, token, owning_application: owner || undefined };
    const { items, _links } = await body(api.GET("/subscriptions", { params: { query }, signal: controller.signal }));
    for (const { id, status } of items) remember(id, flat(status ?? []));
    const next = new URLSearchParams(_links.next?.href.split("?")[1]).get("token");
    if (next) await ask(next);
  };
  // If requests for whole pages fail, each subscription is requested by itself.
  void ask("new").catch(() => controller.signal.aborted || lags.later(ids));
  return () => {
    controller.abort();
    lags.notLater(ids);
  };
}

export function lagOf(partitions: Partition[], at: number): Lag {
  const counted = partitions.filter((each) => each.unconsumed_events !== undefined);
  const timed = partitions.filter((each) => each.consumer_lag_seconds !== undefined);
  return {
    at,
    events: counted.length ? counted.reduce((sum, each) => sum + (each.unconsumed_events ?? 0), 0) : undefined,
    seconds: timed.length ? Math.max(...timed.map((each) => each.consumer_lag_seconds ?? 0)) : undefined,
    stalled: partitions.filter((each) => each.stalled).length,
    streams: new Set(partitions.map((each) => each.stream_id).filter(Boolean)).size,
    partitions: partitions.length,
  };
}

/** Keeps the lag of a subscription for its sparkline. */
export function remember(id: string, partitions: Partition[]): void {
  const entry = entryOf(id);
  entry.lags = [...entry.lags.slice(1 - MOST), lagOf(partitions, Date.now())];
  entry.problem = undefined;
  for (const changed of entry.watchers) changed();
}

/** The lags of a subscription, requested again as long as its row is visible. */
export function useLag(id: string): Watched {
  const [, setRound] = useState(0);
  useEffect(() => {
    const entry = entryOf(id);
    const changed = () => setRound((round) => round + 1);
    entry.watchers.add(changed);
    changed();
    if (Date.now() - (entry.lags.at(-1)?.at ?? 0) >= EVERY) lags.inSight(id);
    timer ??= setInterval(askForAll, EVERY);
    return () => {
      entry.watchers.delete(changed);
      lags.outOfSight(id);
    };
  }, [id]);
  return entryOf(id);
}

/** The latest lag of a subscription. */
export function latest(id: string): Lag | undefined {
  return known.get(id)?.lags.at(-1);
}

function isKnown(id: string): boolean {
  const entry = known.get(id);
  return !!entry && (entry.lags.length > 0 || entry.problem !== undefined);
}

function entryOf(id: string): Entry {
  const found = known.get(id) ?? { lags: [], watchers: new Set<() => void>() };
  known.set(id, found);
  return found;
}

function askForAll(): void {
  if (document.hidden) return;
  for (const [id, entry] of known) if (entry.watchers.size) lags.inSight(id);
}

async function ask(id: string): Promise<void> {
  try {
    remember(id, await partitionsOf(id));
  } catch (error) {
    const entry = entryOf(id);
    entry.problem = problemFrom(error);
    for (const changed of entry.watchers) changed();
  }
}
