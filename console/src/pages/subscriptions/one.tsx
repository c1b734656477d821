/** One subscription: its readers, the waiting events, and the possible actions. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { api, body, type Subscription, useLoad } from "../../api";
import { ConfirmByName } from "../../components/confirm";
import { Await, EmptyState } from "../../components/notices";
import { Chips, Facts, PageHead, type PageProps, Tabs } from "../../components/page";
import { type Column, Table } from "../../components/table";
import { toast } from "../../components/toast";
import { Tree } from "../../components/tree";
import { count, duration, moment, plural } from "../../format";
import { go, href } from "../../router";
import { lagOf, type Partition, partitionsOf, remember } from "./lag";
import { nameOf, Trend } from "./list";
import { Objective } from "./objective";
import { ParkedEvents } from "./parked";
import { Reset } from "./reset";
import { SinkOf } from "./sink";
import { Take } from "./take";

const EVERY = 5000;

export function OneSubscription({ names: [id = ""], query }: PageProps) {
  const params = { path: { subscription_id: id } };
  const found = useLoad((signal) => body(api.GET("/subscriptions/{subscription_id}", { params, signal })), [id]);
  return <Await of={found}>{(subscription) => <Page subscription={subscription} tab={query.get("tab") ?? ""} query={query} />}</Await>;
}

function Page({ subscription, tab, query }: { subscription: Subscription; tab: string; query: URLSearchParams }) {
  const { id } = subscription;
  const [deleting, setDeleting] = useState(false);
  const [resetting, setResetting] = useState(false);
  const stats = useLoad((signal) => body(api.GET("/subscriptions/{subscription_id}/stats", { params: { path: { subscription_id: id } }, signal })), [id], EVERY);
  const alerts: Record<string, string | undefined> = { sink: stats.data?.failing_sink && "failing" };
  const tabs = [["", "Partitions"], ["objective", "Objective"], ["sink", "Sink"], ["parked", "Parked events"], ["definition", "Definition"]] as const;
  const remove = async () => {
    await api.DELETE("/subscriptions/{subscription_id}", { params: { path: { subscription_id: id } } });
    toast("The subscription is deleted");
    go(href(["subscriptions"]));
  };
  return (
    <>
      <PageHead title={nameOf(subscription)} above={<a href="#/subscriptions">Subscriptions</a>}>
        <button type="button" onClick={() => setResetting(true)}>Reset…</button>
        <button type="button" class="danger" onClick={() => setDeleting(true)}>Delete…</button>
      </PageHead>
      <Tabs label="About the subscription"
        tabs={tabs.map(([key, text]) => ({ text, to: href(["subscriptions", id], { tab: key }), current: tab === key, alert: alerts[key] }))} />
      {tab === "" && <Partitions subscription={subscription} />}
      {tab === "objective" && <Objective subscription={subscription} />}
      {tab === "sink" && <SinkOf subscription={subscription} />}
      {tab === "parked" && <ParkedEvents subscription={subscription} query={query} />}
      {tab === "definition" && <Definition subscription={subscription} />}
      {resetting && <Reset subscription={subscription} onClose={() => setResetting(false)} />}
      {deleting && (
        <ConfirmByName name={nameOf(subscription)} title="Delete the subscription" action="Delete" onConfirm={remove}
          onClose={() => setDeleting(false)}>
          <p>This deletes its cursors and ends its streams. Events stay. You cannot restore the cursors.</p>
        </ConfirmByName>
      )}
    </>
  );
}

function Partitions({ subscription: { id } }: { subscription: Subscription }) {
  const [taking, setTaking] = useState<Partition>();
  const load = async (signal: AbortSignal) => {
    const found = await partitionsOf(id, signal);
    remember(id, found);
    return found;
  };
  const partitions = useLoad(load, [id], EVERY);
  const columns: Column<Partition>[] = [
    { title: "Event type", cell: (each) => <a href={href(["event-types", each.event_type])}>{each.event_type}</a> },
    { title: "Partition", cell: (each) => each.partition },
    { title: "State", cell: (each) => <State partition={each} /> },
    { title: "Waiting", right: true, cell: (each) => (each.unconsumed_events === undefined ? "–" : count(each.unconsumed_events)) },
    { title: "Waiting for", right: true, cell: (each) => (each.consumer_lag_seconds ? duration(each.consumer_lag_seconds * 1000) : "–") },
    { title: "Stream", wide: true, cell: (each) => <code>{each.stream_id || "–"}</code> },
    {
      title: "",
      cell: (each) => (
        <button type="button" class="quiet" aria-label={`Take over ${each.event_type} ${each.partition}`}
          onClick={() => setTaking(each)}>
          Take over
        </button>
      ),
    },
  ];
  return (
    <>
      <Await of={partitions}>
        {(found) => (
          <>
            <Summary id={id} partitions={found} />
            {found.length ? (
              <Table label="Partitions" rows={found} columns={columns} />
            ) : (
              <EmptyState title="There are no partitions">The event types no longer exist. Delete the subscription.</EmptyState>
            )}
          </>
        )}
      </Await>
      {taking && (
        <Take subscription={id} partition={taking}
          onClose={() => {
            setTaking(undefined);
            partitions.reload();
          }} />
      )}
    </>
  );
}

function Summary({ id, partitions }: { id: string; partitions: Partition[] }) {
  const lag = lagOf(partitions, 0);
  const read = partitions.filter((each) => each.stream_id).length;
  return (
    <section class="card" aria-label="Summary">
      <Facts facts={[
        ["Waiting", lag.events === undefined ? "not read yet: the first stream determines where it begins" : plural(lag.events, "event")],
        ["The first for", lag.seconds ? duration(lag.seconds * 1000) : ""],
        ["Trend", <Trend id={id} />],
        ["Read by", lag.streams ? `${plural(lag.streams, "stream")}, ${read} of ${plural(partitions.length, "partition")}` : "no stream: start a consumer, and its partitions appear here"],
        ["Stalled", lag.stalled ? <span class="error">{plural(lag.stalled, "partition")}: streams do not commit</span> : ""],
      ]} />
    </section>
  );
}

function State({ partition }: { partition: Partition }) {
  if (partition.stalled) return <span class="error">stalled</span>;
  if (partition.state === "unassigned") return <span class="faint">not read</span>;
  const how = partition.assignment_type === "direct" ? ", requested by name" : "";
  return <span class="good">{partition.state === "reassigning" ? "handed over" : "read"}{how}</span>;
}

function Definition({ subscription }: { subscription: Subscription }) {
  return (
    <section class="card" aria-label="Definition">
      <Facts facts={[
        ["Id", <code>{subscription.id}</code>],
        ["Owner", subscription.owning_application],
        ["Group", subscription.consumer_group],
        ["Event types", subscription.event_types.map((name) => <div key={name}><a href={href(["event-types", name])}>{name}</a></div>)],
        ["Began at", subscription.read_from],
        ["Reads", subscription.reads ? <code>{subscription.reads.join(", ") || "nothing"}</code> : "declares nothing"],
        ...(subscription.projection ? [["Gets", "nothing but what it reads"] as [string, ComponentChildren]] : []),
        ...(subscription.changed_reads?.length ? [["Changed since", <Changes changed={subscription.changed_reads} />] as [string, ComponentChildren]] : []),
        ["Labels", Object.keys(subscription.labels).length ? <Chips of={subscription.labels} /> : ""],
        ["Annotations", Object.keys(subscription.annotations).length ? <Chips of={subscription.annotations} /> : ""],
        ...(subscription.warnings?.length ? [["Warnings", <span class="warn">{subscription.warnings.join("; ")}</span>] as [string, ComponentChildren]] : []),
        ["Authorization", subscription.authorization ? <Tree value={subscription.authorization} /> : "everybody"],
        ["Created", moment(subscription.created_at)],
        ["Changed", moment(subscription.updated_at)],
      ]} />
    </section>
  );
}

/** The effects of newer schemas on the members that the subscription reads. */
function Changes({ changed }: { changed: NonNullable<Subscription["changed_reads"]> }) {
  return (
    <ul class="changes" aria-label="Changed since">
      {changed.map((each) => (
        <li key={each.event_type + each.path + each.member} class="warn">
          <a href={href(["event-types", each.event_type, "schema"])}>{each.event_type} {each.version}</a>: {each.explanation}
        </li>
      ))}
    </ul>
  );
}
