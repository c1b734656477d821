/** The events that consumers could not process, and later events with the same keys, which wait after them. */

import { useState } from "preact/hooks";
import { api, body, type Schemas, type Subscription, useLoad } from "../../api";
import { ConfirmByName, Dialog } from "../../components/confirm";
import { Search } from "../../components/fields";
import { Await, EmptyState } from "../../components/notices";
import { Facts } from "../../components/page";
import { type Column, Table } from "../../components/table";
import { attempt, toast } from "../../components/toast";
import { Tree } from "../../components/tree";
import { exactly } from "../../exact";
import { moment, plural } from "../../format";
import { href, replaceQuery } from "../../router";

type Parked = Schemas["ParkedEvent"];
type Loaded = { events: Parked[]; more: boolean };

const POLICY = "nakadi.zalando.org/subscription-unprocessable-event-policy";
const SENDS = "nakadi.zalando.org/subscription-max-event-send-count";
const PAGE = 200;

export function ParkedEvents({ subscription, query }: { subscription: Subscription; query: URLSearchParams }) {
  const policy = subscription.annotations[POLICY];
  if (policy === "PARK_KEY") return <Lot subscription={subscription} wanted={query.get("key") ?? ""} />;
  if (policy === "DEAD_LETTER_QUEUE") {
    return (
      <EmptyState title="This subscription has dead letters">
        <p>The broker publishes failed events to <code>nakadi.dead.letter.queue</code>.</p>
        <a class="button" href={href(["dead-letters"], { subscription: subscription.id })}>Show its dead letters</a>
      </EmptyState>
    );
  }
  return (
    <EmptyState title={policy ? "The broker skips failed events" : "A failed event is redelivered indefinitely"}>
      <p>To park them, together with later events with the same key, change the annotations of the subscription:</p>
      <p><code>{POLICY}=PARK_KEY</code></p>
      <p><code>{SENDS}=3</code></p>
    </EmptyState>
  );
}

function Lot({ subscription: { id }, wanted }: { subscription: Subscription; wanted: string }) {
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const [looking, setLooking] = useState<Parked>();
  const [skipping, setSkipping] = useState<Parked[]>();
  const [busy, setBusy] = useState(false);
  const parked = useLoad(load, [id, wanted], 10_000);

  async function load(signal: AbortSignal): Promise<Loaded> {
    const params = { path: { subscription_id: id }, query: { limit: PAGE, ...(wanted && { key: wanted }) } };
    const { items, _links } = await body(api.GET("/subscriptions/{subscription_id}/parked-events", { params, signal }));
    return { events: items, more: !!_links.next };
  }

  const of = (event: Parked) => ({ params: { path: { subscription_id: id, parked_event_id: event.id } } });
  const done = () => {
    setChosen(new Set());
    parked.reload();
  };
  async function redrive(events: Parked[] | "all") {
    setBusy(true);
    const work = async () => {
      if (events === "all") {
        const params = { path: { subscription_id: id } };
        await api.POST("/subscriptions/{subscription_id}/parked-events/redrive", { params });
      } else {
        // Redriving or skipping one event also applies to all other events with its key.
        for (const event of new Map(events.map((each) => [keyOf(each), each])).values()) {
          await api.POST("/subscriptions/{subscription_id}/parked-events/{parked_event_id}/redrive", of(event));
        }
      }
    };
    await attempt(work, "The next streams get the events");
    setBusy(false);
    done();
  }
  async function skip(events: Parked[]) {
    for (const event of events) await api.DELETE("/subscriptions/{subscription_id}/parked-events/{parked_event_id}", of(event));
    toast(`${plural(events.length, "event")} skipped`);
    setSkipping(undefined);
    done();
  }

  return (
    <>
      <div class="filters" role="search">
        <Search label="Only the key" value={wanted} onChange={(key) => replaceQuery({ key })} />
      </div>
      <Await of={parked}>
        {({ events, more }) => {
          const marked = events.filter((each) => chosen.has(each.id));
          const toggle = (event: Parked) => {
            const now = new Set(chosen);
            if (!now.delete(event.id)) now.add(event.id);
            setChosen(now);
          };
          if (!events.length) return <Nothing wanted={wanted} />;
          return (
            <>
              <div class="actions">
                <span class="faint" role="status">
                  {busy && "Open streams end first, which may take a minute. "}
                  {plural(events.length, "event")}{more && ", and more"}, {plural(new Set(events.map(keyOf)).size, "key")}
                </span>
                <button type="button" disabled={busy || !marked.length} onClick={() => void redrive(marked)}>
                  Redrive the keys of {marked.length} chosen
                </button>
                <button type="button" class="danger" disabled={busy || !marked.length} onClick={() => setSkipping(marked)}>
                  Skip {marked.length} chosen…
                </button>
                <button type="button" class="quiet" disabled={busy} onClick={() => void redrive("all")}>
                  Redrive all
                </button>
              </div>
              <Table label="Parked events" rows={events}
                columns={columnsOf(events, chosen, toggle, setLooking)} />
            </>
          );
        }}
      </Await>
      {looking && <Look subscription={id} event={looking} onClose={() => setLooking(undefined)} />}
      {skipping && (
        <ConfirmByName name={String(skipping.length)} title={`Skip ${plural(skipping.length, "event")}`} action="Skip"
          onConfirm={() => skip(skipping)} onClose={() => setSkipping(undefined)}>
          <p>This removes them permanently. After the last one with a key, later events with that key are sent again.</p>
        </ConfirmByName>
      )}
    </>
  );
}

function Nothing({ wanted }: { wanted: string }) {
  if (!wanted) return <EmptyState title="No event is parked">Consumers could process everything so far.</EmptyState>;
  return (
    <EmptyState title="No parked event has this key">
      <button type="button" onClick={() => replaceQuery({ key: "" })}>Show all keys</button>
    </EmptyState>
  );
}

function columnsOf(
  events: Parked[], chosen: ReadonlySet<string>, toggle: (event: Parked) => void, look: (event: Parked) => void,
): Column<Parked>[] {
  const behind = followers(events);
  return [
    {
      title: "Chosen",
      cell: (each) => (
        <input type="checkbox" aria-label={`Choose ${each.id}`} checked={chosen.has(each.id)} onChange={() => toggle(each)} />
      ),
    },
    {
      title: "Key",
      cell: (each) => each.key === undefined ? <span class="faint">none</span> : (
        <button type="button" class="quiet" onClick={() => replaceQuery({ key: each.key })}>{each.key}</button>
      ),
    },
    { title: "Event", wide: true, cell: (each) => <code>{each.id}</code> },
    {
      title: "Why",
      cell: (each) => each.state === "redriving" ? <span class="warn">is being redriven</span>
        : each.failed_commits ? <span class="error">failed {plural(each.failed_commits, "time")}</span>
        : "waits after another one",
    },
    { title: "Behind it", right: true, cell: (each) => behind.get(each.id) },
    { title: "Parked", wide: true, cell: (each) => moment(each.parked_at) },
    {
      title: "",
      cell: (each) => (
        <button type="button" class="quiet" aria-label={`Show ${each.id}`} onClick={() => look(each)}>Show</button>
      ),
    },
  ];
}

const keyOf = (event: Parked): string =>
  event.key === undefined ? event.id : `${event.event_type}:${event.partition}:${event.key}`;

/** For each event, how many events with its key wait until it is processed or skipped. */
function followers(events: Parked[]): Map<string, number> {
  const seen = new Map<string, number>();
  const found = new Map<string, number>();
  for (const event of [...events].reverse()) {
    const after = seen.get(keyOf(event)) ?? 0;
    found.set(event.id, after);
    seen.set(keyOf(event), after + 1);
  }
  return found;
}

function Look({ subscription, event, onClose }: { subscription: string; event: Parked; onClose: () => void }) {
  const params = { path: { subscription_id: subscription, parked_event_id: event.id } };
  const found = useLoad(
    async (signal) => {
      const asked = { params, signal, parseAs: "text" } as const;
      const text = await body(api.GET("/subscriptions/{subscription_id}/parked-events/{parked_event_id}", asked));
      return exactly(text) as { event: unknown };
    },
    [event.id],
  );
  return (
    <Dialog title="Parked event" onClose={onClose}>
      <Facts facts={[
        ["Event type", event.event_type],
        ["Partition", event.partition],
        ["Offset", <code>{event.offset}</code>],
        ["Key", event.key],
        ["Published", moment(event.stored_at)],
        ["Parked", moment(event.parked_at)],
      ]} />
      <Await of={found}>{(whole) => <Tree value={whole.event} open={4} />}</Await>
      <div class="actions">
        <button type="button" class="quiet" onClick={onClose}>Close</button>
      </div>
    </Dialog>
  );
}
