/** One event as a tree, with its position and a link, and buttons to copy them. */

import { useMemo } from "preact/hooks";
import { api, body, useLoad } from "../../api";
import { Await, EmptyState } from "../../components/notices";
import { Facts, type PageProps } from "../../components/page";
import { attempt } from "../../components/toast";
import { Tree } from "../../components/tree";
import { exactly } from "../../exact";
import { moment } from "../../format";
import { href } from "../../router";
import { readOne, type Received } from "../../tail";
import { EventTypeFrame, tabOf } from "./frame";

type Metadata = { occurred_at?: string; received_at?: string; eid?: string };

const metadataOf = (event: unknown): Metadata => (event as { metadata?: Metadata } | null)?.metadata ?? {};

export const timeOf = (event: unknown): string => {
  const { received_at, occurred_at } = metadataOf(event);
  return moment(received_at ?? occurred_at);
};

const addressOf = (name: string, { partition, offset }: Received) => href(["event-types", name, "events", partition, offset]);

export function EventDetails({ name, received, onClose }: { name: string; received: Received; onClose?: () => void }) {
  const copy = (text: string) => attempt(() => navigator.clipboard.writeText(text), "Copied");
  const link = new URL(addressOf(name, received), location.href).href;
  const { eid } = metadataOf(received.event);
  const event = useMemo(() => exactly(received.text), [received]);
  return (
    <section class="card details" aria-label="Event">
      <Facts facts={[
        ["Partition", received.partition],
        ["Offset", <code>{received.offset}</code>],
        ["Time", timeOf(received.event)],
        ["Event id", eid && <code>{eid}</code>],
      ]} />
      <div class="actions">
        <button type="button" class="quiet" onClick={() => copy(JSON.stringify(event, null, 2))}>Copy</button>
        <button type="button" class="quiet" onClick={() => copy(link)}>Copy link</button>
        <a href={addressOf(name, received)}>Open alone</a>
        <a href={tabOf(name, "events", { from: received.offset, partition: received.partition })}>Continue from here</a>
        {onClose && <button type="button" class="quiet" onClick={onClose}>Close</button>}
      </div>
      <Tree value={event} open={4} />
    </section>
  );
}

/** The page of a single event. */
export function SingleEvent({ names: [name = "", partition = "", offset = ""] }: PageProps) {
  const event = useLoad((signal) => at(name, partition, offset, signal), [name, partition, offset]);
  return (
    <EventTypeFrame name={name} tab="events">
      {() => (
        <Await of={event}>
          {(found) => found.event?.offset === offset ? <EventDetails name={name} received={found.event} /> : (
            <EmptyState title="The event no longer exists">
              <p>
                Its retention time may be over, or compaction kept only a newer event with its key.{" "}
                <a href={tabOf(name, "events", { from: "begin", partition })}>Read the available events</a>.
              </p>
            </EmptyState>
          )}
        </Await>
      )}
    </EventTypeFrame>
  );
}

/** The cursor before an event: a stream with it begins at the event. */
async function at(name: string, partition: string, offset: string, signal: AbortSignal) {
  const shifted = await body(
    api.POST("/event-types/{name}/shifted-cursors", {
      params: { path: { name } },
      body: [{ partition, offset, shift: -1 }],
      signal,
    }),
  );
  return { event: await readOne(name, shifted[0]!, signal) };
}
