/** Reads events as they arrive: server-sent events by `fetch`, because an `EventSource` cannot send a token. */

import { address, Problem, problemOf, send } from "./api";

export type Cursor = { partition: string; offset: string };
/** `text` is the event as it was stored, with all digits of its numbers. */
export type Received = Cursor & { event: unknown; text: string };

export type Stream = {
  /** The cursors after which reading begins. Without them, the stream reads all partitions from now on. */
  cursors?: Cursor[];
  onEvents: (events: Received[]) => void;
  /** Called with the cursors of all partitions, with which a later stream can continue. */
  onCursors: (cursors: Cursor[]) => void;
  onOpen: () => void;
};

/** Reads until `signal` is aborted or the stream ends. Each batch has one event, so each event has its cursor. */
export async function read(eventType: string, stream: Stream, signal: AbortSignal): Promise<void> {
  const url = `${address}/event-types/${encodeURIComponent(eventType)}/events?batch_limit=1&batch_flush_timeout=5`;
  const headers = new Headers({ Accept: "text/event-stream" });
  if (stream.cursors) headers.set("X-Nakadi-Cursors", JSON.stringify(stream.cursors));
  const response = await send(new Request(url, { headers, signal }));
  if (!response.ok) throw await problemOf(response);
  stream.onOpen();
  const decoder = new TextDecoderStream() as unknown as ReadableWritablePair<string, Uint8Array>;
  const reader = response.body!.pipeThrough(decoder).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error: unknown) => {
      if (signal.aborted) throw error;
      throw new Problem(0, "The stream broke off", "The connection to the broker was lost.", "");
    });
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop() ?? "";
    const events: Received[] = [];
    let id = "";
    for (const block of blocks) {
      const fields = fieldsOf(block);
      id = fields.id ?? id;
      if (fields.event === "problem") throw problemIn(fields.data ?? "");
      if (fields.data) events.push(...eventsOf(fields.data));
    }
    if (events.length) stream.onEvents(events);
    if (id) stream.onCursors(JSON.parse(id) as Cursor[]);
  }
}

function fieldsOf(block: string): { id?: string; data?: string; event?: string } {
  return Object.fromEntries(
    block.split("\n").map((line) => {
      const at = line.indexOf(":");
      return [line.slice(0, at), line.slice(at + 1).trimStart()];
    }),
  );
}

const EVENTS = '"events":[';

function eventsOf(data: string): Received[] {
  const batch = JSON.parse(data) as { cursor: Cursor; events?: unknown[] };
  // There is at most one event, because `batch_limit` is 1.
  const text = data.slice(data.indexOf(EVENTS) + EVENTS.length, data.lastIndexOf("]"));
  return (batch.events ?? []).map((event) => ({ ...batch.cursor, event, text }));
}

function problemIn(data: string): Problem {
  const body = JSON.parse(data) as { status?: number; title?: string; detail?: string };
  return new Problem(body.status ?? 0, body.title ?? "The stream ended", body.detail ?? "", "");
}

/** The event after a cursor, or `undefined` if there is none. */
export async function readOne(eventType: string, before: Cursor, signal: AbortSignal): Promise<Received | undefined> {
  const stopping = new AbortController();
  const stop = () => stopping.abort();
  signal.addEventListener("abort", stop);
  let found: Received | undefined;
  const done = (events: Received[]) => {
    found ??= events[0];
    stop();
  };
  const patience = setTimeout(stop, 7000);
  const begun = { cursors: [before], onEvents: done, onCursors: () => undefined, onOpen: () => undefined };
  try {
    await read(eventType, begun, stopping.signal);
  } catch (error) {
    if (!stopping.signal.aborted) throw error;
  } finally {
    clearTimeout(patience);
    signal.removeEventListener("abort", stop);
  }
  return found;
}
