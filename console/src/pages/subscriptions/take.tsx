/** Takes a partition from the stream that reads it, shows its next event, which users can commit, and gives it back. */

import { useEffect, useRef, useState } from "preact/hooks";
import { address, api, type Problem, problemFrom, problemOf, type Schemas, send } from "../../api";
import { Dialog } from "../../components/confirm";
import { EmptyState, ProblemNotice } from "../../components/notices";
import { attempt } from "../../components/toast";
import { Tree } from "../../components/tree";
import { exactly } from "../../exact";
import type { Partition } from "./lag";

type Batch = Schemas["SubscriptionEventStreamBatch"];

// How many seconds the broker waits for a commit, or for a request for more time.
const SECONDS = 60;

/** The lines of a stream, until it ends or its request is aborted. */
async function* linesOf(response: Response): AsyncGenerator<string> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop() ?? "";
    yield* lines.filter(Boolean);
  }
}

export function Take({ subscription, partition: { event_type, partition }, onClose }: {
  subscription: string;
  partition: Partition;
  onClose: () => void;
}) {
  const [asked, setAsked] = useState(false);
  const [stream, setStream] = useState("");
  const [batch, setBatch] = useState<Batch>();
  const [problem, setProblem] = useState<Problem>();
  const [over, setOver] = useState(false);
  const stopping = useRef<AbortController>(undefined);
  // When users close the dialog or the tab, the stream ends, so the broker gives the partition to consumers again.
  useEffect(() => () => stopping.current?.abort(), []);

  async function take() {
    const own = (stopping.current = new AbortController());
    setAsked(true);
    try {
      const response = await send(new Request(`${address}/subscriptions/${encodeURIComponent(subscription)}/events`, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({
          partitions: [{ event_type, partition }],
          batch_limit: 1,
          max_uncommitted_events: 1,
          batch_flush_timeout: 1,
          commit_timeout: SECONDS,
          on_disconnect: "release",
        }),
        signal: own.signal,
      }));
      if (!response.ok) throw await problemOf(response);
      setStream(response.headers.get("X-Nakadi-StreamId") ?? "");
      for await (const line of linesOf(response)) {
        const read = exactly(line) as Batch;
        if (read.events?.length) setBatch(read);
      }
      setOver(true);
    } catch (error) {
      if (!own.signal.aborted) setProblem(problemFrom(error));
    }
  }

  const commit = async () => {
    const params = { path: { subscription_id: subscription }, header: { "X-Nakadi-StreamId": stream } };
    const committed = batch!;
    const work = () => api.POST("/subscriptions/{subscription_id}/cursors", { params, body: { items: [committed.cursor] } });
    // The next event may arrive before the response to the commit.
    if (await attempt(work, "The event is committed")) setBatch((now) => (now === committed ? undefined : now));
  };

  const where = { params: { path: { subscription_id: subscription, stream_id: stream } } };

  const extend = () =>
    attempt(() => api.POST("/subscriptions/{subscription_id}/streams/{stream_id}/extend", where), `${SECONDS} more seconds`);

  const giveBack = async () => {
    const leave = () => api.DELETE("/subscriptions/{subscription_id}/streams/{stream_id}", where);
    if (stream && !problem && !over) await attempt(leave, "Consumers have the partition again");
    onClose();
  };

  return (
    <Dialog title={`Take over partition ${partition} of ${event_type}`} onClose={onClose}>
      {!asked && (
        <>
          <p>
            A stream that did not request this partition by name gives it up, at its commit timeout at the latest. This
            page then reads the partition, and shows its next event for {SECONDS} seconds, or longer if you ask for more
            time. When you close this dialog, consumers get the partition back at once.
          </p>
          <div class="actions">
            <button type="button" class="quiet" onClick={onClose}>Cancel</button>
            <button type="button" onClick={() => void take()}>Take over</button>
          </div>
        </>
      )}
      {problem && <ProblemNotice problem={problem} />}
      {over && <p class="notice">The stream has ended: an event has to be committed within {SECONDS} seconds. Consumers have the partition again.</p>}
      {asked && !problem && !over && (
        batch ? (
          <section aria-label="The current event">
            <p><code>{batch.cursor.offset}</code></p>
            <Tree value={batch.events?.[0]} />
          </section>
        ) : (
          <EmptyState title={stream ? "The partition is taken; no event waits" : "Waiting for the partition…"}>
            {stream && <>Stream <code>{stream}</code>. The next event appears here.</>}
          </EmptyState>
        )
      )}
      {asked && (
        <div class="actions">
          {batch && !over && <button type="button" class="danger" onClick={() => void commit()}>Commit it and continue</button>}
          {batch && !over && <button type="button" class="quiet" onClick={() => void extend()}>More time</button>}
          <button type="button" class="quiet" onClick={() => void giveBack()}>{problem || over ? "Close" : "Give it back"}</button>
        </div>
      )}
    </Dialog>
  );
}
