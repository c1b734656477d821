/** The definition of an event type: the rules for its events, their retention, and the permissions. */

import type { EventType, Schemas } from "../../api";
import { Chips, Facts, type PageProps } from "../../components/page";
import { Table } from "../../components/table";
import { bytes, count, duration, moment } from "../../format";
import { EventTypeFrame } from "./frame";

export function Definition({ names: [name = ""] }: PageProps) {
  return (
    <EventTypeFrame name={name} tab="">
      {(type) => (
        <div class="cards">
          <section class="card">
            <h2>Definition</h2>
            <Facts facts={factsOf(type)} />
          </section>
          <section class="card">
            <h2>Who may do what</h2>
            <Authorization of={type.authorization} />
          </section>
          <section class="card">
            <h2>Load</h2>
            <Load type={type} />
          </section>
          {type.table_objective && (
            <section class="card">
              <h2>How soon events are in their table</h2>
              <TableObjective status={type.table_objective} />
            </section>
          )}
        </div>
      )}
    </EventTypeFrame>
  );
}

function factsOf(type: EventType): [string, preact.ComponentChildren][] {
  const retention = type.options?.retention_time;
  const kept = type.cleanup_policy === "compact" ? "The newest event with each key, forever" : retention && duration(retention);
  return [
    ["Owner", type.owning_application],
    ["Category", type.category],
    ["Retention", kept],
    ["Published once within", type.deduplication && duration(1000 * type.deduplication.window_seconds)],
    ["Cleanup policy", type.cleanup_policy],
    ["Compatibility", type.compatibility_mode],
    ["Partition strategy", type.partition_strategy],
    ["Partition keys", type.partition_key_fields.join(", ")],
    ["Ordering keys", type.ordering_key_fields.join(", ")],
    ["Ordered within", type.ordering_instance_ids.join(", ")],
    ["Enrichment", type.enrichment_strategies.join(", ")],
    ["Audience", type.audience],
    ["Owner selector", type.event_owner_selector && <code>{JSON.stringify(type.event_owner_selector)}</code>],
    ["Labels", Object.keys(type.labels).length > 0 && <Chips of={type.labels} />],
    ["Annotations", Object.keys(type.annotations).length > 0 && <Chips of={type.annotations} />],
    ["Warnings", type.warnings?.length && <span class="warn">{type.warnings.join("; ")}</span>],
    ["Schema version", type.schema.version],
    ["Created", moment(type.created_at)],
    ["Changed", moment(type.updated_at)],
  ].map(([title, value]) => [title as string, value || undefined]);
}

function Authorization({ of: section }: { of: Schemas["EventTypeAuthorization"] }) {
  if (!section) return <p>Open to everyone: it has no authorization section.</p>;
  const rows: [string, Schemas["AuthorizationAttribute"][]][] = [
    ["Read", section.readers],
    ["Publish", section.writers],
    ["Change and delete", section.admins],
  ];
  return (
    <Table label="Authorization" rows={rows} columns={[
      { title: "May", cell: ([may]) => may },
      {
        title: "Who",
        cell: ([, who]) => who.length
          ? who.map((each) => <span class="chip">{each.data_type === "*" ? "everyone" : `${each.data_type}: ${each.value}`}</span>)
          : "administrators of the broker only",
      },
    ]} />
  );
}

function Load({ type }: { type: EventType }) {
  const measured = type.measured_statistic;
  const expected = type.default_statistic;
  if (!measured && !expected) {
    return <p>Unknown: the owner stated no load, and no job has measured it. <code>make jobs</code> measures it.</p>;
  }
  const rows: [string, string, string][] = [
    ["Events a minute", shown(expected?.messages_per_minute), shown(measured?.messages_per_minute)],
    ["Bytes per event", size(expected?.message_size), size(measured?.message_size)],
    ["Consumers side by side", shown(expected?.read_parallelism), shown(measured?.read_parallelism)],
    ["Producers side by side", shown(expected?.write_parallelism), shown(measured?.write_parallelism)],
    ["Recommended partitions", "", shown(measured?.recommended_partitions)],
  ];
  return (
    <Table label="Load" rows={rows} columns={[
      { title: "Figure", cell: (row) => row[0] },
      { title: "Expected", cell: (row) => row[1], right: true },
      { title: "Measured", cell: (row) => row[2], right: true },
    ]} />
  );
}

function TableObjective({ status: { percent, within_seconds, windows, slowest_partition } }: { status: Schemas["TableObjectiveStatus"] }) {
  const waiting = slowest_partition
    ? <span class={slowest_partition.lag_seconds > within_seconds ? "error" : undefined}>
        partition {slowest_partition.partition}, for {duration(slowest_partition.lag_seconds * 1000)}
      </span>
    : <span class="good">no archived event</span>;
  return (
    <>
      <Facts facts={[["Objective", `${percent} % of the events within ${duration(within_seconds * 1000)}`], ["Waiting longest", waiting]]} />
      <Table label="Added in time" rows={windows} columns={[
        { title: "Window", cell: ({ minutes }) => duration(minutes * 60_000) },
        { title: "Added", cell: ({ events }) => count(events), right: true },
        { title: "Late", cell: ({ late }) => count(late), right: true },
        { title: "Burn rate", cell: ({ burn_rate }) => <span class={burn_rate > 1 ? "error" : "good"}>{burn_rate.toFixed(2)}</span>, right: true },
      ]} />
    </>
  );
}

const shown = (value: number | undefined) => (value === undefined ? "–" : count(value));
const size = (value: number | undefined) => (value === undefined ? "–" : bytes(value));
