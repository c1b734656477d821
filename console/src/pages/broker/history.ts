/** The broker's metrics of the last hour. The tab samples them itself, because `/metrics` has only current values. */

import { useEffect, useState } from "preact/hooks";
import { address, type Problem, problemFrom, problemOf, send } from "../../api";
import type { Point } from "../../components/plot";

type Metrics = {
  gauges: Record<string, { value: number }>;
  counters: Record<string, { count: number }>;
  timers: Record<string, { count: number; mean: number }>;
};

/** The metrics at one time: sums of counters, of gauges and of timers. */
type Sample = { at: number; uptime: number; values: Record<string, number> };

const EVERY = 10_000;
const HOUR = 3_600_000;
const STORED = "nakadi.metrics";

let samples: Sample[] = stored();
let problem: Problem | undefined;
let latest: Metrics | undefined;
let timer: ReturnType<typeof setInterval> | undefined;
const watchers = new Set<() => void>();

function stored(): Sample[] {
  try {
    return JSON.parse(sessionStorage.getItem(STORED) ?? "[]") as Sample[];
  } catch {
    return [];
  }
}

async function look(): Promise<void> {
  try {
    const response = await send(new Request(`${address}/metrics`, { headers: { Accept: "application/json" } }));
    if (!response.ok) throw await problemOf(response);
    latest = (await response.json()) as Metrics;
    const now = Date.now();
    // A user who comes back to the page at once causes a sample too early for a rate.
    if (now - (samples.at(-1)?.at ?? 0) >= EVERY / 2) {
      samples = [...samples.filter(({ at }) => now - at < HOUR), sampleOf(latest, now)];
    }
    sessionStorage.setItem(STORED, JSON.stringify(samples));
    problem = undefined;
  } catch (error) {
    problem = problemFrom(error);
  }
  for (const changed of watchers) changed();
}

/** Samples the metrics from its first call on, as long as the tab is open, whichever page it shows. */
export function useHistory(): { latest?: Metrics; problem?: Problem; look: () => void } {
  const [, setRound] = useState(0);
  useEffect(() => {
    const changed = () => setRound((round) => round + 1);
    watchers.add(changed);
    void look();
    timer ??= setInterval(() => void look(), EVERY);
    return () => void watchers.delete(changed);
  }, []);
  return { latest, problem, look: () => void look() };
}

function sampleOf({ gauges, counters, timers }: Metrics, at: number): Sample {
  const values: Record<string, number> = {};
  const add = (name: string, value: number) => (values[name] = (values[name] ?? 0) + value);
  for (const [name, { count }] of Object.entries(counters)) {
    if (name.startsWith("nakadi.events_published.")) add("published", count);
    if (name.startsWith("nakadi.events_sent.")) add("sent", count);
    if (name.startsWith("nakadi.events_refused.")) add(`refused ${name.slice(name.lastIndexOf(".") + 1)}`, count);
    if (name.startsWith("nakadi.batches_refused.")) add(`refused ${name.slice(name.lastIndexOf(".") + 1)}`, count);
    if (name.startsWith("nakadi.published_bytes.")) add("bytes in", count);
    if (name.startsWith("nakadi.sent_bytes.")) add("bytes out", count);
    if (/^nakadi\.http\..+\.5\d\d$/.test(name)) add("failed", count);
  }
  for (const [name, { count, mean }] of Object.entries(timers)) {
    const operation = { "nakadi.http.publish_events": "publishing", "nakadi.http.commit_subscription_cursors": "commits" }[name];
    const kind = operation ?? (name.startsWith("nakadi.delivery_delay.") ? "delivery" : undefined);
    if (kind) {
      add(`${kind} number`, count);
      add(`${kind} seconds`, count * mean);
    }
  }
  for (const [name, { value }] of Object.entries(gauges)) if (name.startsWith("nakadi.open_streams.")) add("streams", value);
  return { at, uptime: gauges["nakadi.uptime"]?.value ?? 0, values };
}

/** Pairs of consecutive samples of the same process. */
function* steps(): Generator<[Sample, Sample]> {
  for (let at = 1; at < samples.length; at++) {
    const [before, after] = [samples[at - 1]!, samples[at]!];
    if (after.uptime > before.uptime && after.at > before.at) yield [before, after];
  }
}

const grown = (before: Sample, after: Sample, name: string): number =>
  Math.max(0, (after.values[name] ?? 0) - (before.values[name] ?? 0));

/** The growth of a counter per second. */
export const rateOf = (name: string): Point[] =>
  [...steps()].map(([before, after]) => ({ at: after.at, value: grown(before, after, name) / ((after.at - before.at) / 1000) }));

export const gaugeOf = (name: string): Point[] => samples.map(({ at, values }) => ({ at, value: values[name] ?? 0 }));

/** The mean duration in milliseconds between samples, without a point where nothing was measured. */
export const meanOf = (kind: string): Point[] =>
  [...steps()].flatMap(([before, after]) => {
    const number = grown(before, after, `${kind} number`);
    return number ? [{ at: after.at, value: (1000 * grown(before, after, `${kind} seconds`)) / number }] : [];
  });

/** The reasons of all refusals in the samples. */
export const reasons = (): string[] =>
  [...new Set(samples.flatMap(({ values }) => Object.keys(values).filter((name) => name.startsWith("refused "))))].sort();

export const span = (): { from: number; to: number } => {
  const to = Date.now();
  return { from: Math.max(to - HOUR, Math.min(samples[0]?.at ?? to, to - 300_000)), to };
};
