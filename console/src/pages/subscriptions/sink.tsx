/** The sink of a subscription: its recent deliveries, a failing delivery, and the possible actions. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { api, body, Problem, type Schemas, type Subscription, useLoad } from "../../api";
import { ConfirmByName, Dialog } from "../../components/confirm";
import { Await, EmptyState } from "../../components/notices";
import { Facts } from "../../components/page";
import { type Column, Table } from "../../components/table";
import { attempt, toast } from "../../components/toast";
import { count, duration, moment, plural } from "../../format";
import { href } from "../../router";
import { EditSink } from "./edit-sink";
import { nameOf } from "./list";
import { SINK_TYPES, targetOf } from "./sink-types";
import "./subscriptions.css";

export type Sink = Schemas["Sink"];
type Deliveries = Schemas["SinkDeliveries"];
type Attempt = Schemas["SinkAttempt"];

const EVERY = 2000;

const paramsOf = (id: string) => ({ path: { subscription_id: id } });

const load = (id: string, signal: AbortSignal): Promise<Sink> =>
  body(api.GET("/subscriptions/{subscription_id}/sink", { params: paramsOf(id), signal }));

async function find(id: string, signal: AbortSignal): Promise<Sink | null> {
  try {
    return await load(id, signal);
  } catch (error) {
    if (error instanceof Problem && error.status === 404) return null;
    throw error;
  }
}

export function SinkOf({ subscription }: { subscription: Subscription }) {
  const [editing, setEditing] = useState(false);
  const [secret, setSecret] = useState("");
  const found = useLoad((signal) => find(subscription.id, signal), [subscription.id]);
  const stored = (sink: Sink) => {
    setEditing(false);
    setSecret(sink.secret ?? "");
    found.reload();
  };
  return (
    <>
      <Await of={found}>
        {(sink) => sink ? (
          // The stored sink is shown at once.
          <Followed key={sink.updated_at} subscription={subscription} reload={found.reload} edit={() => setEditing(true)} show={setSecret} />
        ) : (
          <EmptyState title="This subscription has no sink">
            <p>With a sink, the broker itself delivers the events, in order: to a URL, an AWS service or an event type.</p>
            <button type="button" onClick={() => setEditing(true)}>Add a sink…</button>
          </EmptyState>
        )}
      </Await>
      {editing && <EditSink subscription={subscription.id} sink={found.data ?? undefined} onStored={stored} onClose={() => setEditing(false)} />}
      {secret && <Secret secret={secret} onClose={() => setSecret("")} />}
    </>
  );
}

type Actions = { subscription: Subscription; reload: () => void; edit: () => void; show: (secret: string) => void };

/** A sink is loaded again and again as long as there is one. */
function Followed(actions: Actions) {
  const { id } = actions.subscription;
  const followed = useLoad((signal) => load(id, signal), [id], EVERY);
  return <Await of={followed}>{(sink) => <Delivering {...actions} sink={sink} again={followed.reload} />}</Await>;
}

function Delivering({ subscription, sink, again, reload, edit, show }: Actions & { sink: Sink; again: () => void }) {
  const [asking, setAsking] = useState<"rotate" | "remove">();
  const params = paramsOf(subscription.id);
  const { deliveries } = sink;
  const failure = failureNow(deliveries);

  async function change(work: () => Promise<unknown>, done: string) {
    await attempt(work, done);
    again();
  }
  const resume = (done: string) =>
    change(() => api.POST("/subscriptions/{subscription_id}/sink/resume", { params }), done);
  const pause = () =>
    change(() => api.POST("/subscriptions/{subscription_id}/sink/pause", { params }), "The sink is paused");
  const test = () => attempt(async () => {
    const { status, text } = await body(api.POST("/subscriptions/{subscription_id}/sink/test", { params }));
    const answer = status === null ? "The sink did not answer" : `The sink answered ${status}`;
    toast(text ? `${answer}: ${text}` : answer, status !== null && status < 300 ? "done" : "failed");
  }, "");
  async function rotate() {
    const { secret = "" } = await body(api.POST("/subscriptions/{subscription_id}/sink/secret/rotate", { params }));
    setAsking(undefined);
    show(secret);
  }
  async function remove() {
    await api.DELETE("/subscriptions/{subscription_id}/sink", { params });
    toast("The sink is removed");
    reload();
  }
  return (
    <>
      <div class="actions">
        <button type="button" class="quiet" onClick={() => void test()}>Send a test</button>
        {sink.state === "paused"
          ? <button type="button" onClick={() => void resume("The sink is active")}>Resume</button>
          : <button type="button" class="quiet" onClick={() => void pause()}>Pause</button>}
        <button type="button" class="quiet" onClick={edit}>Edit…</button>
        {sink.type === "http" && <button type="button" class="quiet" onClick={() => setAsking("rotate")}>Rotate the secret…</button>}
        <button type="button" class="danger" onClick={() => setAsking("remove")}>Remove…</button>
      </div>
      {failure && sink.state === "active" && (
        <Failing subscription={subscription} failure={failure} mayBeAhead={sink.parallel === "key"} nextAt={deliveries?.next_attempt_at} again={again}
          retry={() => resume("The sink gets it at once")} />
      )}
      <section class="card" aria-label="The sink">
        <Facts facts={[
          ["State", <State sink={sink} />],
          [SINK_TYPES[sink.type].label, <code>{targetOf(sink)}</code>],
          ["Format", sink.format === "cloudevents" ? "CloudEvents" : "batches as in a stream"],
          ["Headers", Object.keys(sink.headers).join(", ")],
          ["Filter", sink.filter && <code>{sink.filter}</code>],
          ["Batches", `up to ${plural(sink.batch_limit, "event")}, ${sink.max_in_flight} at once`],
          ["Order", sink.parallel === "key" ? "of each key" : "of each partition"],
          ["Timeout", plural(sink.timeout_seconds, "second")],
          ...(deliveries ? figures(deliveries) : []),
        ]} />
      </section>
      <h2>The last deliveries</h2>
      {deliveries?.recent_attempts.length
        ? <Table label="Deliveries" rows={deliveries.recent_attempts} columns={ATTEMPTS} />
        : <p class="faint">Nothing has been delivered since the sink changed or its process started.</p>}
      {asking === "rotate" && (
        <Dialog title="Rotate the secret" onClose={() => setAsking(undefined)}>
          <p>For 24 hours, deliveries are signed with both secrets. Give the receiver the new one in this time.</p>
          <div class="actions">
            <button type="button" class="quiet" onClick={() => setAsking(undefined)}>Cancel</button>
            <button type="button" class="danger" onClick={() => void attempt(rotate, "")}>Rotate</button>
          </div>
        </Dialog>
      )}
      {asking === "remove" && (
        <ConfirmByName name={nameOf(subscription)} title="Remove the sink" action="Remove" onConfirm={remove}
          onClose={() => setAsking(undefined)}>
          <p>The broker stops delivering. The subscription and its cursors stay.</p>
        </ConfirmByName>
      )}
    </>
  );
}

/** The last failure, unless a later delivery succeeded. */
function failureNow(deliveries: Deliveries | undefined): Attempt | undefined {
  const failure = deliveries?.last_failure;
  return failure && failure.at > (deliveries.last_success_at ?? "") ? failure : undefined;
}

function State({ sink }: { sink: Sink }) {
  const { pause, deliveries } = sink;
  if (pause) return <span class="warn">paused since {moment(pause.at)}: {pause.reason}</span>;
  if (!deliveries) return <span class="faint">about to begin</span>;
  if (deliveries.problem) return <span class="error">{deliveries.problem}</span>;
  return failureNow(deliveries) ? <span class="error">failing</span> : <span class="good">delivering</span>;
}

function figures(deliveries: Deliveries): [string, ComponentChildren][] {
  return [
    ["Delivered", `${plural(deliveries.delivered_events, "event")} in ${plural(deliveries.delivered_batches, "batch", "batches")}`],
    ["Events per second", deliveries.events_per_second.toFixed(1)],
    ["Failed attempts", deliveries.failed_attempts ? count(deliveries.failed_attempts) : ""],
    ["Under way", deliveries.in_flight ? plural(deliveries.in_flight, "delivery", "deliveries") : ""],
    ["Last success", moment(deliveries.last_success_at)],
    ["Reported", moment(deliveries.reported_at)],
  ];
}

const answerOf = ({ status, text }: Attempt): string =>
  status === null ? text || "no answer" : text ? `${status}: ${text}` : String(status);

const ATTEMPTS: Column<Attempt>[] = [
  { title: "Time", cell: (each) => moment(each.at) },
  { title: "Event type", wide: true, cell: (each) => each.event_type },
  { title: "Partition", cell: (each) => each.partition },
  { title: "Events", right: true, cell: (each) => count(each.events) },
  { title: "First offset", wide: true, cell: (each) => <Offset attempt={each} offset={each.first_offset} /> },
  { title: "Took", right: true, cell: (each) => duration(each.milliseconds) },
  { title: "Answer", cell: (each) => <span class={each.delivered ? "good" : "error"}>{answerOf(each)}</span> },
];

function Offset({ attempt: { event_type, partition }, offset }: { attempt: Attempt; offset: string }) {
  return <a class="mono" href={href(["event-types", event_type, "events", partition, offset])}>{offset}</a>;
}

function Failing({ subscription, failure, mayBeAhead, nextAt, retry, again }: {
  subscription: Subscription;
  failure: Attempt;
  /** Whether earlier events may not be delivered yet. If so, the cursor cannot be set after the failing event. */
  mayBeAhead: boolean;
  nextAt: string | null | undefined;
  retry: () => void;
  again: () => void;
}) {
  const [skipping, setSkipping] = useState(false);
  const { event_type, partition, last_offset: offset } = failure;
  async function skip() {
    const params = paramsOf(subscription.id);
    await api.PATCH("/subscriptions/{subscription_id}/cursors", { params, body: { items: [{ event_type, partition, offset }] } });
    setSkipping(false);
    toast("The event is skipped");
    again();
  }
  return (
    <section class="problem" role="alert" aria-label="The failing delivery">
      <h2>{failure.status === null ? "The sink does not answer" : `The sink answers ${failure.status}`}</h2>
      {failure.text && <p class="lines">{failure.text}</p>}
      <Facts facts={[
        ["Events", failure.events === 1
          ? <><Offset attempt={failure} offset={offset} /> of {event_type}, partition {partition}</>
          : <>{count(failure.events)} of {event_type}, partition {partition}, from <Offset attempt={failure} offset={failure.first_offset} /></>],
        ["Failed at", moment(failure.at)],
        ["Next attempt", nextAt ? moment(nextAt) : ""],
      ]} />
      <div class="actions">
        <button type="button" onClick={retry}>Try now</button>
        {failure.events === 1 && !mayBeAhead && <button type="button" class="danger" onClick={() => setSkipping(true)}>Skip the event…</button>}
      </div>
      {skipping && (
        <ConfirmByName name={partition} title="Skip the event" action="Skip" onConfirm={skip} onClose={() => setSkipping(false)}>
          <p>
            This sets the cursor of partition {partition} of {event_type} after the event. The sink never gets it. Open streams
            of the subscription end, and new ones begin. This may take a minute.
          </p>
        </ConfirmByName>
      )}
    </section>
  );
}

function Secret({ secret, onClose }: { secret: string; onClose: () => void }) {
  return (
    <Dialog title="The new secret" onClose={onClose}>
      <p>Give it to the receiver, which verifies signatures with it. It is not shown again.</p>
      <p><code>{secret}</code></p>
      <div class="actions">
        <button type="button" onClick={() => void attempt(() => navigator.clipboard.writeText(secret), "Copied")}>Copy</button>
        <button type="button" class="quiet" onClick={onClose}>Close</button>
      </div>
    </Dialog>
  );
}
