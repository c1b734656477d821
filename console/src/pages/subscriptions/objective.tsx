/** The objective of a subscription: how soon events should be consumed, how many are, and what delays them. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { api, body, Problem, problemFrom, type Schemas, type Subscription, useLoad } from "../../api";
import { Dialog } from "../../components/confirm";
import { Labelled } from "../../components/fields";
import { Await, EmptyState, ProblemNotice } from "../../components/notices";
import { Facts } from "../../components/page";
import { type Column, Table } from "../../components/table";
import { attempt, toast } from "../../components/toast";
import { count, duration, moment, plural } from "../../format";
import { href } from "../../router";

type Status = Schemas["ObjectiveStatus"];
type Window = Schemas["ObjectiveWindow"];
type Slowest = NonNullable<Status["slowest_partition"]>;

const EVERY = 5000;

const CAUSES: Record<NonNullable<Slowest["cause"]>, string> = {
  no_consumer: "no stream reads it",
  failing_event: "streams end at an event without a commit",
  stalled_consumer: "a stream reads it, and commits nothing",
  hot_partition: "most of the waiting events are there",
  slow_consumer: "its consumer is slower than publishers",
};

const WINDOWS: Column<Window>[] = [
  { title: "Window", cell: ({ minutes }) => plural(minutes, "minute") },
  { title: "Consumed", right: true, cell: ({ events }) => count(events) },
  { title: "Late", right: true, cell: ({ late }) => count(late) },
  { title: "Burn rate", right: true, cell: ({ burn_rate }) => <span class={burn_rate > 1 ? "error" : "good"}>{burn_rate.toFixed(2)}</span> },
];

const paramsOf = (id: string) => ({ path: { subscription_id: id } });

async function find(id: string, signal: AbortSignal): Promise<Status | null> {
  try {
    return await body(api.GET("/subscriptions/{subscription_id}/objective", { params: paramsOf(id), signal }));
  } catch (error) {
    if (error instanceof Problem && error.status === 404) return null;
    throw error;
  }
}

export function Objective({ subscription: { id } }: { subscription: Subscription }) {
  const [editing, setEditing] = useState(false);
  const found = useLoad((signal) => find(id, signal), [id], EVERY);
  const remove = () => attempt(async () => {
    await api.DELETE("/subscriptions/{subscription_id}/objective", { params: paramsOf(id) });
    found.reload();
  }, "The objective is removed");
  const stored = () => {
    setEditing(false);
    found.reload();
  };
  return (
    <>
      <Await of={found}>
        {(status) => status ? (
          <>
            <div class="actions">
              <button type="button" class="quiet" onClick={() => setEditing(true)}>Change…</button>
              <button type="button" class="danger" onClick={() => void remove()}>Remove</button>
            </div>
            <Kept status={status} />
          </>
        ) : (
          <EmptyState title="This subscription has no objective">
            <p>With an objective, the broker counts how many events are consumed in time, and names late partitions.</p>
            <button type="button" onClick={() => setEditing(true)}>Set an objective…</button>
          </EmptyState>
        )}
      </Await>
      {editing && <Edit id={id} status={found.data ?? undefined} onStored={stored} onClose={() => setEditing(false)} />}
    </>
  );
}

function Kept({ status }: { status: Status }) {
  return (
    <>
      <section class="card" aria-label="The objective">
        <Facts facts={[
          ["Objective", `${status.percent} % of the events within ${plural(status.within_seconds, "second")}`],
          ["Since", moment(status.set_at)],
          ...slowestFacts(status.slowest_partition),
        ]} />
      </section>
      <Table label="Consumed in time" rows={status.windows} columns={WINDOWS} />
    </>
  );
}

function slowestFacts(slowest: Slowest | undefined): [string, ComponentChildren][] {
  if (!slowest) return [["Waiting", <span class="good">no event</span>]];
  const { event_type, partition, lag_seconds, unconsumed_events, cause } = slowest;
  return [
    ["Slowest partition", <a href={href(["event-types", event_type])}>{event_type}, partition {partition}</a>],
    ["Waiting there", `${plural(unconsumed_events, "event")}, the first for ${duration(lag_seconds * 1000)}`],
    ["Late because", cause ? <span class="error">{CAUSES[cause]}</span> : ""],
  ];
}

function Edit({ id, status, onStored, onClose }: { id: string; status: Status | undefined; onStored: () => void; onClose: () => void }) {
  const [percent, setPercent] = useState(String(status?.percent ?? 99));
  const [seconds, setSeconds] = useState(String(status?.within_seconds ?? 30));
  const [problem, setProblem] = useState<Problem>();
  async function store() {
    try {
      const objective = { percent: Number(percent), within_seconds: Number(seconds) };
      await api.PUT("/subscriptions/{subscription_id}/objective", { params: paramsOf(id), body: objective });
      toast("The objective is set");
      onStored();
    } catch (error) {
      setProblem(problemFrom(error));
    }
  }
  return (
    <Dialog title="The objective" onClose={onClose}>
      <form onSubmit={(event) => (event.preventDefault(), void store())}>
        <Labelled text="Percent of the events" hint="Above 0, and at most 99.999.">
          <input type="number" step="any" required value={percent} onInput={(event) => setPercent(event.currentTarget.value)} />
        </Labelled>
        <Labelled text="Seconds" hint="From storing an event to the commit of its batch.">
          <input type="number" step="1" required value={seconds} onInput={(event) => setSeconds(event.currentTarget.value)} />
        </Labelled>
        {problem && <ProblemNotice problem={problem} />}
        <div class="actions">
          <button type="button" class="quiet" onClick={onClose}>Cancel</button>
          <button type="submit">Set</button>
        </div>
      </form>
    </Dialog>
  );
}
