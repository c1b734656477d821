/** All event types, with search and filters. */

import { useMemo } from "preact/hooks";
import { allEventTypes, type EventType, useLoad } from "../api";
import { useAll } from "../asking";
import { Choice, Search } from "../components/fields";
import { Await, EmptyState } from "../components/notices";
import { Chips, PageHead, type PageProps } from "../components/page";
import { type Column, sorted, VirtualTable } from "../components/table";
import { bytes, count, moment, plural } from "../format";
import { href, replaceQuery } from "../router";
import { measuredOf, measures, remember, useMeasured } from "./measured";

// Columns that can order the rows only by measurements of all event types.
const MEASURED = ["Events / min", "Event size"];

const COLUMNS: Column<EventType>[] = [
  {
    title: "Name",
    width: "minmax(0, 3fr)",
    order: (type) => type.name,
    cell: (type) => <a href={href(["event-types", type.name])}>{type.name}</a>,
  },
  { title: "Category", width: "7rem", wide: true, order: (type) => type.category, cell: (type) => type.category },
  {
    title: "Owner",
    width: "minmax(0, 1.3fr)",
    wide: true,
    order: (type) => type.owning_application,
    cell: (type) => type.owning_application,
  },
  {
    title: "Events / min",
    width: "8rem",
    right: true,
    order: (type) => measuredOf(type.name)?.messages_per_minute ?? -1,
    downFirst: true,
    cell: (type) => <Rate name={type.name} />,
  },
  {
    title: "Event size",
    width: "7rem",
    right: true,
    wide: true,
    order: (type) => measuredOf(type.name)?.message_size ?? -1,
    downFirst: true,
    cell: (type) => <Size name={type.name} />,
  },
  { title: "Labels", width: "minmax(0, 1.3fr)", wide: true, cell: (type) => <Chips of={type.labels} /> },
  {
    title: "Changed",
    width: "12.5rem",
    wide: true,
    order: (type) => type.updated_at,
    cell: (type) => moment(type.updated_at),
  },
];

function Rate({ name }: { name: string }) {
  const measured = useMeasured(name);
  return measured ? <>{count(measured.messages_per_minute)}</> : <NotMeasured />;
}

function Size({ name }: { name: string }) {
  const measured = useMeasured(name);
  return measured ? <>{bytes(measured.message_size)}</> : <NotMeasured />;
}

function NotMeasured() {
  return <span class="faint" title="The statistics job has not measured it, or you may not read it">–</span>;
}

export function EventTypes({ query }: PageProps) {
  const types = useLoad(allEventTypes, [], 0, "event types");
  return (
    <>
      <PageHead title="Event types">
        <a class="button" href="#/create-event-type">Create an event type</a>
      </PageHead>
      <Await of={types}>
        {(all) => (all.length ? <Listed all={all} loading={types.loading} query={query} /> : <None />)}
      </Await>
    </>
  );
}

function None() {
  return (
    <EmptyState title="There is no event type yet">
      <p>An event type is a stream of events with a schema.</p>
      <p><a href="#/create-event-type">Create the first one</a>, from a sample event if you have one.</p>
    </EmptyState>
  );
}

function Listed({ all, loading, query }: { all: EventType[]; loading: boolean; query: URLSearchParams }) {
  const text = query.get("q") ?? "";
  const category = query.get("category") ?? "";
  const owner = query.get("owner") ?? "";
  const label = query.get("label") ?? "";
  const by = query.get("sort") ?? "Name";
  const down = query.get("down") === "1";
  const owners = useMemo(() => [...new Set(all.map((type) => type.owning_application))].sort(), [all]);
  const labels = useMemo(() => labelsOf(all), [all]);
  const found = useMemo(() => {
    remember(all);
    const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
    return all.filter(
      (type) =>
        wanted.every((word) => type.name.toLowerCase().includes(word)) &&
        (!category || type.category === category) &&
        (!owner || type.owning_application === owner) &&
        (!label || Object.entries(type.labels ?? {}).some((entry) => entry.join("=") === label)),
    );
  }, [all, text, category, owner, label]);
  const names = useMemo(() => found.map((type) => type.name), [found]);
  const measuring = MEASURED.includes(by);
  const { measured, round } = useAll(measures, names, measuring);
  const rows = useMemo(() => sorted(found, COLUMNS, { by, down }), [found, by, down, round]);
  return (
    <>
      <div class="filters" role="search">
        <Search label="Search names" value={text} onChange={(q) => replaceQuery({ q })} />
        <Choice label="Category" value={category} onChange={(value) => replaceQuery({ category: value })}
          options={[["", "All categories"], "undefined", "business", "data"]} />
        <Choice label="Owner" value={owner} onChange={(value) => replaceQuery({ owner: value })}
          options={[["", "All owners"], ...owners]} />
        {labels.length > 0 && (
          <Choice label="Label" value={label} onChange={(value) => replaceQuery({ label: value })}
            options={[["", "All labels"], ...labels]} />
        )}
        <span class="faint" role="status">
          {rows.length === all.length
            ? plural(all.length, "event type")
            : `${count(rows.length)} of ${plural(all.length, "event type")}`}
          {loading && ", loading…"}
          {measuring && measured < rows.length && `, ${count(measured)} measured`}
        </span>
      </div>
      {rows.length ? (
        <VirtualTable label="Event types" rows={rows} columns={COLUMNS} rowKey={(type) => type.name}
          sorting={{ by, down }}
          onSort={(sorting) => replaceQuery({ sort: sorting.by, down: sorting.down ? "1" : "" })} />
      ) : (
        <EmptyState title="No event type fits">
          <button type="button" onClick={() => replaceQuery({ q: "", category: "", owner: "", label: "" })}>
            Show all
          </button>
        </EmptyState>
      )}
    </>
  );
}

function labelsOf(all: EventType[]): string[] {
  return [...new Set(all.flatMap((type) => Object.entries(type.labels ?? {}).map((entry) => entry.join("="))))].sort();
}
