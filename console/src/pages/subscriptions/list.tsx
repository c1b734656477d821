/** All subscriptions, with the lag of the visible ones. */

import { useMemo } from "preact/hooks";
import { api, body, type Subscription, useLoad } from "../../api";
import { Choice, Search } from "../../components/fields";
import { Await, EmptyState } from "../../components/notices";
import { PageHead, type PageProps } from "../../components/page";
import { Sparkline } from "../../components/plot";
import { type Column, sorted, VirtualTable } from "../../components/table";
import { count, duration, moment, plural } from "../../format";
import { href, replaceQuery } from "../../router";
import { latest, useAllLags, useLag } from "./lag";

const PAGE = 1000;

export const nameOf = (subscription: Subscription): string =>
  `${subscription.owning_application} / ${subscription.consumer_group}`;

// Columns that can order the rows only by the lag of all subscriptions.
const MEASURED = ["Waiting", "Waiting for"];

const COLUMNS: Column<Subscription>[] = [
  {
    title: "Consumer",
    width: "minmax(0, 2fr)",
    order: nameOf,
    cell: (each) => <a href={href(["subscriptions", each.id])}>{nameOf(each)}</a>,
  },
  {
    title: "Event types",
    width: "minmax(0, 2fr)",
    wide: true,
    order: (each) => each.event_types.join(),
    cell: (each) => <span title={each.event_types.join(", ")}>{each.event_types.join(", ")}</span>,
  },
  { title: "State", width: "9rem", wide: true, cell: (each) => <State id={each.id} /> },
  {
    title: "Waiting",
    width: "7rem",
    right: true,
    order: (each) => latest(each.id)?.events ?? -1,
    downFirst: true,
    cell: (each) => <Waiting id={each.id} />,
  },
  {
    title: "Waiting for",
    width: "8rem",
    right: true,
    wide: true,
    order: (each) => latest(each.id)?.seconds ?? -1,
    downFirst: true,
    cell: (each) => <Seconds id={each.id} />,
  },
  { title: "Trend", width: "7rem", wide: true, cell: (each) => <Trend id={each.id} /> },
  { title: "Created", width: "12.5rem", wide: true, order: (each) => each.created_at, cell: (each) => moment(each.created_at) },
];

function useLatest(id: string) {
  const { lags, problem } = useLag(id);
  return { lag: lags.at(-1), problem };
}

function State({ id }: { id: string }) {
  const { lag, problem } = useLatest(id);
  if (!lag) return problem ? <span class="error" title={problem.message}>not known</span> : <span class="faint">…</span>;
  if (lag.stalled) return <span class="error" title="Partitions whose streams do not commit">{count(lag.stalled)} stalled</span>;
  if (!lag.streams) return <span class="faint">not read</span>;
  return <span class="good">{plural(lag.streams, "stream")}</span>;
}

function Waiting({ id }: { id: string }) {
  const { lag } = useLatest(id);
  return <>{lag?.events === undefined ? <span class="faint">–</span> : count(lag.events)}</>;
}

function Seconds({ id }: { id: string }) {
  const { lag } = useLatest(id);
  return <>{lag?.seconds ? duration(lag.seconds * 1000) : <span class="faint">–</span>}</>;
}

export function Trend({ id }: { id: string }) {
  const points = useLag(id).lags.map(({ at, events }) => ({ at, value: events ?? 0 }));
  const from = points[0]?.value ?? 0;
  const to = points.at(-1)?.value ?? 0;
  return <Sparkline points={points} label={`Waiting events, from ${count(from)} to ${count(to)}`} />;
}

async function allOf(signal: AbortSignal): Promise<Subscription[]> {
  const found: Subscription[] = [];
  for (;;) {
    const params = { query: { limit: PAGE, offset: found.length } };
    const { items } = await body(api.GET("/subscriptions", { params, signal }));
    found.push(...items);
    if (items.length < PAGE) return found;
  }
}

export function Subscriptions({ query }: PageProps) {
  const all = useLoad(allOf, [], 60_000);
  return (
    <>
      <PageHead title="Subscriptions" />
      <Await of={all}>{(found) => (found.length ? <Listed all={found} query={query} /> : <None />)}</Await>
    </>
  );
}

function None() {
  return (
    <EmptyState title="There is no subscription yet">
      <p>A subscription remembers how far its consumers have read. Create the first one with the command line:</p>
      <p><code>nakadi subscriptions create order.placed --owner shipping --from begin</code></p>
      <p>or with <code>POST /subscriptions</code>, as the <a href="../docs#tag/Subscriptions">reference</a> shows.</p>
    </EmptyState>
  );
}

function Listed({ all, query }: { all: Subscription[]; query: URLSearchParams }) {
  const text = query.get("q") ?? "";
  const owner = query.get("owner") ?? "";
  const by = query.get("sort") ?? "";
  const down = query.get("down") === "1";
  const owners = useMemo(() => [...new Set(all.map((each) => each.owning_application))].sort(), [all]);
  const found = useMemo(() => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    return all.filter((each) => {
      const searched = [nameOf(each), each.id, ...each.event_types].join(" ").toLowerCase();
      return (!owner || each.owning_application === owner) && words.every((word) => searched.includes(word));
    });
  }, [all, text, owner]);
  const ids = useMemo(() => found.map((each) => each.id), [found]);
  const measuring = MEASURED.includes(by);
  const { measured, round } = useAllLags(ids, owner, measuring);
  const rows = useMemo(() => sorted(found, COLUMNS, { by, down }), [found, by, down, round]);
  return (
    <>
      <div class="filters" role="search">
        <Search label="Search subscriptions" value={text} onChange={(q) => replaceQuery({ q })} />
        <Choice label="Owner" value={owner} onChange={(value) => replaceQuery({ owner: value })}
          options={[["", "All owners"], ...owners]} />
        <span class="faint" role="status">
          {rows.length === all.length
            ? plural(all.length, "subscription")
            : `${count(rows.length)} of ${plural(all.length, "subscription")}`}
          {measuring && measured < rows.length && `, ${count(measured)} measured`}
        </span>
      </div>
      {rows.length ? (
        <VirtualTable label="Subscriptions" rows={rows} columns={COLUMNS} rowKey={(each) => each.id}
          sorting={{ by, down }}
          onSort={(sorting) => replaceQuery({ sort: sorting.by, down: sorting.down ? "1" : "" })} />
      ) : (
        <EmptyState title="No subscription fits">
          <button type="button" onClick={() => replaceQuery({ q: "", owner: "" })}>Show all</button>
        </EmptyState>
      )}
    </>
  );
}
