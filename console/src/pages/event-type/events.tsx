/** The events of an event type: new ones as they arrive, or all from an earlier position on. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { api, body, type Problem, problemFrom, type Schemas } from "../../api";
import { Choice, Search } from "../../components/fields";
import { EmptyState, ProblemNotice } from "../../components/notices";
import type { PageProps } from "../../components/page";
import { type Column, VirtualTable } from "../../components/table";
import { toast } from "../../components/toast";
import { condition } from "../../filter";
import { count, plural } from "../../format";
import { go, replaceQuery } from "../../router";
import { fairShares } from "../../shares";
import { type Cursor, read, type Received } from "../../tail";
import { EventDetails, timeOf } from "./event";
import { EventTypeFrame, tabOf } from "./frame";

// How many of the newest events the page keeps. It says how many older ones it left out.
const MOST = 5000;
// How many events of all partitions the page shows at first.
const RECENT = 50;
// How often new events are drawn, in milliseconds.
const DRAWN_EVERY = 200;
// The time between the end of a stream and the beginning of the next one, in milliseconds.
const AGAIN = 500;

export function Events({ names: [name = ""], query }: PageProps) {
  const from = query.get("from") ?? "recent";
  const partition = query.get("partition") ?? "";
  return (
    <EventTypeFrame name={name} tab="events">
      {() => <Tail key={`${from} ${partition}`} name={name} from={from} partition={partition} query={query} />}
    </EventTypeFrame>
  );
}

type State = {
  events: Received[];
  received: number;
  passedOver: number;
  live: "opening" | "reading" | "paused" | "ended";
  problem?: Problem;
};

const NOTHING: State = { events: [], received: 0, passedOver: 0, live: "opening" };

function Tail({ name, from, partition, query }: { name: string; from: string; partition: string; query: URLSearchParams }) {
  const [state, setState] = useState(NOTHING);
  const [paused, setPaused] = useState(false);
  const [round, setRound] = useState(0);
  const [chosen, setChosen] = useState<Received>();
  const place = useRef<Cursor[] | undefined>(undefined);
  const text = query.get("q") ?? "";
  const where = query.get("where") ?? "";
  const filter = useMemo(() => filterOf(text, where), [text, where]);

  useEffect(() => {
    const stopping = new AbortController();
    // The newest events that are not drawn yet. They wait during a pause, at most `MOST` of them.
    let waiting: Received[] = [];
    let received = 0;
    let lost = 0;
    const draw = () => {
      if (!received && !lost) return;
      const [came, number, over] = [waiting, received, lost];
      waiting = [];
      received = lost = 0;
      setState((old) => {
        const all = came.reverse().concat(old.events);
        const excess = Math.max(0, all.length - MOST);
        return { ...old, events: all.slice(0, MOST), received: old.received + number, passedOver: old.passedOver + over + excess };
      });
    };
    const timer = setInterval(() => !pausedNow.current && draw(), DRAWN_EVERY);
    const work = async () => {
      try {
        place.current ??= await startOf(name, from, partition, stopping.signal);
        // A broker ends a stream after a while, or when the broker stops. The next stream continues at the same
        // cursors.
        while (!stopping.signal.aborted) {
          await read(name, {
            cursors: place.current,
            onOpen: () => setState((old) => ({ ...old, live: "reading", problem: undefined })),
            onCursors: (now) => (place.current = now),
            onEvents: (came) => {
              received += came.length;
              waiting.push(...came);
              const excess = waiting.length - MOST;
              if (excess > 0) {
                lost += excess;
                waiting = waiting.slice(excess);
              }
            },
          }, stopping.signal);
          await new Promise((done) => setTimeout(done, AGAIN));
        }
      } catch (error) {
        if (!stopping.signal.aborted) setState((old) => ({ ...old, live: "ended", problem: problemFrom(error) }));
      }
    };
    void work();
    return () => {
      stopping.abort();
      clearInterval(timer);
    };
  }, [name, round]);

  const pausedNow = useRef(paused);
  pausedNow.current = paused;
  const shown = useMemo(() => (filter.fits ? state.events.filter(filter.fits) : state.events), [state.events, filter]);
  return (
    <>
      <div class="filters" role="search">
        <Start name={name} from={from} partition={partition} />
        <Search label="Filter by text" value={text} onChange={(q) => replaceQuery({ q })} />
        <input class="mono where" aria-label="Filter by JSON path" aria-invalid={!!filter.error} spellcheck={false}
          placeholder='$.order.total > 100' value={where}
          onInput={(event) => replaceQuery({ where: event.currentTarget.value })} />
      </div>
      {filter.error && <p class="error" role="alert">{filter.error}</p>}
      <div class="filters">
        <button type="button" aria-pressed={paused} onClick={() => setPaused(!paused)}>{paused ? "Go on" : "Pause"}</button>
        <button type="button" class="quiet" onClick={() => setState({ ...NOTHING, live: state.live })}>Clear</button>
        <button type="button" class="quiet" disabled={!shown.length} onClick={() => exported(name, shown)}>
          Export as NDJSON
        </button>
        <a class="button quiet" href={tabOf(name, "publish")}>Publish an event</a>
        <Status state={state} shown={shown.length} paused={paused} again={() => setRound(round + 1)} />
      </div>
      {state.problem && <ProblemNotice problem={state.problem} retry={() => setRound(round + 1)} />}
      {state.events.length === 0 ? (
        !state.problem && <Waiting name={name} from={from} />
      ) : (
        <div class={chosen ? "beside" : "alone"}>
          <VirtualTable label="Events" rows={shown} columns={columnsOf(setChosen)}
            rowKey={(row) => `${row.partition} ${row.offset}`} chosen={chosen && `${chosen.partition} ${chosen.offset}`} />
          {chosen && <EventDetails name={name} received={chosen} onClose={() => setChosen(undefined)} />}
        </div>
      )}
    </>
  );
}

function filterOf(text: string, where: string): { fits?: (row: Received) => boolean; error?: string } {
  if (!text && !where.trim()) return {};
  const words = text.toLowerCase();
  try {
    const fits = condition(where);
    return { fits: (row) => (!words || row.text.toLowerCase().includes(words)) && fits(row.event) };
  } catch (error) {
    return { error: (error as Error).message };
  }
}

/** The cursors after which reading begins; `undefined` stands for all partitions from now on. */
async function startOf(name: string, from: string, partition: string, signal: AbortSignal): Promise<Cursor[] | undefined> {
  if (from === "end" && !partition) return undefined;
  const all = await partitionsOf(name, signal);
  const chosen = partition ? all.filter((each) => each.partition === partition) : all;
  if (from === "recent") return recentStart(name, chosen, signal);
  return chosen.map((each) => ({ partition: each.partition, offset: offsetFor(from, each.newest_available_offset) }));
}

/** The cursors before the newest events, at most `RECENT` events of all partitions together. */
async function recentStart(name: string, partitions: Schemas["Partition"][], signal: AbortSignal): Promise<Cursor[]> {
  const params = { path: { name } };
  const pairs = partitions.map(({ partition, oldest_available_offset: oldest, newest_available_offset: newest }) => ({
    initial_cursor: { partition, offset: oldest },
    final_cursor: { partition, offset: newest },
  }));
  const distances = await body(api.POST("/event-types/{name}/cursor-distances", { params, body: pairs, signal }));
  // A partition has one event more than the distance from its oldest to its newest one. It is -1 for an empty
  // partition.
  const counts = distances.map((each) => Math.max(0, each.distance + 1));
  const wanted = fairShares(RECENT, counts);
  const shifts = pairs.map((pair, index) => ({ ...pair.final_cursor, shift: -wanted[index]! }))
    .filter((_, index) => wanted[index]! < counts[index]!);
  const shifted = shifts.length
    ? await body(api.POST("/event-types/{name}/shifted-cursors", { params, body: shifts, signal }))
    : [];
  const starts = new Map(shifted.map((each) => [each.partition, each.offset]));
  return partitions.map(({ partition }) => ({ partition, offset: starts.get(partition) ?? "BEGIN" }));
}

function offsetFor(from: string, newest: string): string {
  if (from === "end") return newest;
  if (from === "begin") return "BEGIN";
  return from;
}

async function partitionsOf(name: string, signal: AbortSignal) {
  return body(api.GET("/event-types/{name}/partitions", { params: { path: { name } }, signal }));
}

function Start({ name, from, partition }: { name: string; from: string; partition: string }) {
  const kind = from === "recent" || from === "end" || from === "begin" ? from : /^\d{4}-/.test(from) ? "time" : "offset";
  const [asked, setAsked] = useState(kind);
  const [given, setGiven] = useState(kind === "offset" ? from : "");
  const [where, setWhere] = useState(partition);
  const start = (value: string) => go(tabOf(name, "events", { from: value, partition: where }));
  const hour = () => new Date(Date.now() - 3_600_000 - new Date().getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
  return (
    <form class="filters" onSubmit={(event) => {
      event.preventDefault();
      const form = new FormData(event.currentTarget);
      start(asked === "time" ? new Date(String(form.get("time"))).toISOString() : asked === "offset" ? given : asked);
    }}>
      <Choice label="From" value={asked} onChange={(value) => {
        setAsked(value as typeof asked);
        if (value === "recent" || value === "end" || value === "begin") start(value);
      }} options={[["recent", `The last ${RECENT} events`], ["end", "From now on"], ["begin", "From the beginning"], ["time", "From a time…"], ["offset", "Behind an offset…"]]} />
      {asked === "time" && (
        <input type="datetime-local" name="time" step="1" required aria-label="Time"
          defaultValue={kind === "time" ? localTime(from) : hour()} />
      )}
      {asked === "offset" && (
        <>
          <input class="partition" required aria-label="Partition" placeholder="Partition" value={where}
            onInput={(event) => setWhere(event.currentTarget.value)} />
          <input class="mono" required aria-label="Offset" placeholder="Offset" value={given}
            onInput={(event) => setGiven(event.currentTarget.value)} />
        </>
      )}
      {(asked === "time" || asked === "offset") && <button type="submit">Read</button>}
      {partition && asked !== "offset" && (
        <a class="chip" href={tabOf(name, "events", { from })}>partition {partition} only ✕</a>
      )}
    </form>
  );
}

function localTime(text: string): string {
  const date = new Date(text);
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

function Status({ state, shown, paused, again }: { state: State; shown: number; paused: boolean; again: () => void }) {
  return (
    <>
      <span class="faint" role="status">
        {state.live === "opening" ? "Opening…" : state.live === "ended" ? "The stream has ended." : paused ? "Paused." : "Live."}{" "}
        {plural(state.received, "event")} received, {count(shown)} shown
      </span>
      {state.passedOver > 0 && (
        <span class="warn">{count(state.passedOver)} skipped: the newest {count(MOST)} are kept</span>
      )}
      {state.live === "ended" && <button type="button" onClick={again}>Read on</button>}
    </>
  );
}

function Waiting({ name, from }: { name: string; from: string }) {
  return (
    <EmptyState title={from === "end" || from === "recent" ? "Waiting for events" : "No events after this position yet"}>
      {from === "end" && (
        <p>New ones appear as they arrive. <a href={tabOf(name, "events", { from: "begin" })}>Read from the beginning</a>, or</p>
      )}
      <p><a href={tabOf(name, "publish")}>publish a test event</a>.</p>
    </EmptyState>
  );
}

function columnsOf(choose: (row: Received) => void): Column<Received>[] {
  return [
    {
      title: "Partition and offset",
      width: "11rem",
      cell: (row) => (
        <button type="button" class="link mono" title={row.offset} onClick={() => choose(row)}>
          {row.partition}: {row.offset.replace(/^.*-0*(?=\d)/, "")}
        </button>
      ),
    },
    { title: "Time", width: "12rem", wide: true, cell: (row) => timeOf(row.event) },
    { title: "Event", cell: (row) => <span class="mono">{row.text.slice(0, 400)}</span> },
  ];
}

function exported(name: string, rows: Received[]) {
  // The oldest event first, in the order of the log.
  const content = rows.map((row) => `${row.text}\n`).reverse();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(content, { type: "application/x-ndjson" }));
  link.download = `${name}.ndjson`;
  link.click();
  URL.revokeObjectURL(link.href);
  toast(`${plural(rows.length, "event")} exported`);
}
