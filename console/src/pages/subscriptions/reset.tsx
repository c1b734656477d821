/** Moves the cursors of a subscription to another position, after showing how many events this repeats or skips. */

import { useState } from "preact/hooks";
import { api, body, type Problem, problemFrom, type Subscription, useLoad } from "../../api";
import { Dialog } from "../../components/confirm";
import { Labelled } from "../../components/fields";
import { Await, EmptyState, ProblemNotice } from "../../components/notices";
import { Table } from "../../components/table";
import { toast } from "../../components/toast";
import { count, plural } from "../../format";
import { partitionsOf } from "./lag";
import "./subscriptions.css";

type Move = { event_type: string; partition: string; offset: string; now?: number; then: number };
type Place = "begin" | "end" | "time" | "offset";

export function Reset({ subscription, onClose }: { subscription: Subscription; onClose: () => void }) {
  const [place, setPlace] = useState<Place>("begin");
  const [time, setTime] = useState("");
  const [partition, setPartition] = useState("");
  const [offset, setOffset] = useState("");
  const [problem, setProblem] = useState<Problem>();
  const [busy, setBusy] = useState(false);
  const partitions = useLoad((signal) => partitionsOf(subscription.id, signal), [subscription.id]);
  const moves = useLoad((signal) => movesTo(signal), [place, time, partition, offset, partitions.data !== undefined]);

  async function movesTo(signal: AbortSignal): Promise<Move[]> {
    if (!partitions.data || (place === "time" && !time) || (place === "offset" && (!partition || !offset))) return [];
    const waiting = new Map(partitions.data.map((each) => [keyOf(each), each.unconsumed_events]));
    const found = await Promise.all(subscription.event_types.map((name) => movesOf(name, waiting, signal)));
    return found.flat();
  }

  async function movesOf(name: string, waiting: Map<string, number | undefined>, signal: AbortSignal): Promise<Move[]> {
    const params = { path: { name } };
    const all = await body(api.GET("/event-types/{name}/partitions", { params, signal }));
    const cursors = all
      .map((each) => ({ partition: each.partition, offset: offsetIn(each.newest_available_offset) }))
      .filter((each) => place !== "offset" || `${name} ${each.partition}` === partition);
    if (!cursors.length) return [];
    const lags = await body(api.POST("/event-types/{name}/cursors-lag", { params, body: cursors, signal }));
    return cursors.map((cursor, at) => ({
      event_type: name,
      ...cursor,
      now: waiting.get(`${name} ${cursor.partition}`),
      then: lags[at]?.unconsumed_events ?? 0,
    }));
  }

  function offsetIn(newest: string): string {
    if (place === "begin") return "BEGIN";
    if (place === "end") return newest;
    return place === "time" ? new Date(time).toISOString() : offset.trim();
  }

  async function reset(chosen: Move[]) {
    setBusy(true);
    setProblem(undefined);
    try {
      const items = chosen.map(({ event_type, partition, offset }) => ({ event_type, partition, offset }));
      const params = { path: { subscription_id: subscription.id } };
      await api.PATCH("/subscriptions/{subscription_id}/cursors", { params, body: { items } });
      toast(`${plural(chosen.length, "partition")} set`);
      onClose();
    } catch (error) {
      setProblem(problemFrom(error));
    }
    setBusy(false);
  }

  const places: [Place, string][] = [["begin", "The oldest available event"], ["end", "Events published from now on"],
    ["time", "A time"], ["offset", "After an offset of one partition"]];
  return (
    <Dialog title="Reset the subscription" onClose={onClose}>
      <form onSubmit={(event) => (event.preventDefault(), void reset(moves.data ?? []))}>
        <fieldset class="plain">
          <legend>Continue from</legend>
          {places.map(([key, text]) => (
            <label key={key} class="choice">
              <input type="radio" name="place" checked={place === key} onChange={() => setPlace(key)} /> {text}
            </label>
          ))}
        </fieldset>
        {place === "time" && (
          <Labelled text="Time" hint="In the browser's time zone. Later events are delivered again.">
            <input type="datetime-local" step="1" required value={time} onInput={(event) => setTime(event.currentTarget.value)} />
          </Labelled>
        )}
        {place === "offset" && (
          <>
            <Labelled text="Partition">
              <select required value={partition} onChange={(event) => setPartition(event.currentTarget.value)}>
                <option value="">Choose one</option>
                {(partitions.data ?? []).map((each) => <option key={keyOf(each)}>{keyOf(each)}</option>)}
              </select>
            </Labelled>
            <Labelled text="Offset" hint="The last processed event; reading continues after it.">
              <input required spellcheck={false} value={offset} onInput={(event) => setOffset(event.currentTarget.value)} />
            </Labelled>
          </>
        )}
        <Await of={moves}>{(found) => (found.length ? <Preview moves={found} /> : <Missing />)}</Await>
        <p class="faint">Open streams end, and new ones begin there. This may take a minute.</p>
        {problem && <ProblemNotice problem={problem} />}
        <div class="actions">
          <button type="button" class="quiet" onClick={onClose}>Cancel</button>
          <button type="submit" class="danger" disabled={busy || !moves.data?.length}>{busy ? "Resetting…" : "Reset"}</button>
        </div>
      </form>
    </Dialog>
  );
}

const keyOf = (each: { event_type: string; partition: string }): string => `${each.event_type} ${each.partition}`;

function Missing() {
  return <EmptyState title="Nothing to show yet">Choose the position at which the subscription continues.</EmptyState>;
}

function Preview({ moves }: { moves: Move[] }) {
  const then = moves.reduce((sum, each) => sum + each.then, 0);
  const now = moves.every((each) => each.now === undefined) ? undefined : moves.reduce((sum, each) => sum + (each.now ?? 0), 0);
  const change = now === undefined ? "" : then > now
    ? `${plural(then - now, "event")} more than now: they come again.`
    : then < now ? `${plural(now - then, "event")} fewer than now: they are skipped.` : "As many as now.";
  return (
    <section aria-label="The effect">
      <p class="notice" role="status"><strong>{plural(then, "event")} will wait.</strong> {change}</p>
      <Table label="New cursors" rows={moves} columns={[
        { title: "Partition", cell: keyOf },
        { title: "To", wide: true, cell: (each) => <code>{each.offset}</code> },
        { title: "Now", right: true, cell: (each) => (each.now === undefined ? "–" : count(each.now)) },
        { title: "Then", right: true, cell: (each) => count(each.then) },
      ]} />
    </section>
  );
}
