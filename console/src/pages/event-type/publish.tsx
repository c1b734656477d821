/** Publishes events that users write, and shows the broker's result for each event. */

import { useState } from "preact/hooks";
import { address, type EventType, type Problem, problemFrom, problemOf, type Schemas, send } from "../../api";
import { Labelled } from "../../components/fields";
import { ProblemNotice } from "../../components/notices";
import type { PageProps } from "../../components/page";
import { Table } from "../../components/table";
import { exactly } from "../../exact";
import { plural } from "../../format";
import { eventFor, eventsIn } from "../../sample";
import { EventTypeFrame, tabOf } from "./frame";

type Item = Schemas["BatchItemResponse"];

export function Publish({ names: [name = ""] }: PageProps) {
  return (
    <EventTypeFrame name={name} tab="publish">
      {(type) => <Form type={type} />}
    </EventTypeFrame>
  );
}

function Form({ type }: { type: EventType }) {
  const fresh = () => JSON.stringify(eventFor(type), null, 2);
  const [text, setText] = useState(fresh);
  const [error, setError] = useState("");
  const [problem, setProblem] = useState<Problem>();
  const [answer, setAnswer] = useState<{ events: unknown[]; items: Item[] }>();
  const [busy, setBusy] = useState(false);

  const publish = async () => {
    setProblem(undefined);
    setAnswer(undefined);
    let events: unknown[];
    try {
      events = eventsIn(text, exactly);
      setError("");
    } catch (wrong) {
      return setError(`This is not JSON: ${(wrong as Error).message}`);
    }
    setBusy(true);
    try {
      const items = await published(type.name, events);
      setAnswer({ events, items: items.length ? items : events.map(submitted) });
    } catch (refusal) {
      setProblem(problemFrom(refusal));
    }
    setBusy(false);
  };

  return (
    <section class="card">
      <form onSubmit={(event) => (event.preventDefault(), void publish())}>
        <Labelled text="Events" error={error} hint="One event, an array of events, or one event on each line.">
          <textarea rows={16} spellcheck={false} value={text} onInput={(event) => setText(event.currentTarget.value)} />
        </Labelled>
        <div class="actions">
          <button type="submit" disabled={busy}>Publish</button>
          <button type="button" class="quiet" onClick={() => setText(fresh())}>New sample</button>
          <a href={tabOf(type.name, "events")}>Watch events arrive</a>
        </div>
      </form>
      <div aria-live="polite">
        {problem && <ProblemNotice problem={problem} />}
        {answer && <Answers {...answer} />}
      </div>
    </section>
  );
}

// A response without a body means that all events are stored.
const submitted = (event: unknown): Item => ({
  eid: (event as { metadata?: { eid?: string } } | null)?.metadata?.eid ?? "",
  partition: null,
  publishing_status: "submitted",
  step: "publishing",
  detail: "",
});

/** The result for each event. A response that refuses a batch has these results, too. */
async function published(name: string, events: unknown[]): Promise<Item[]> {
  const url = `${address}/event-types/${encodeURIComponent(name)}/events`;
  const headers = { "Content-Type": "application/json" };
  const response = await send(new Request(url, { method: "POST", headers, body: JSON.stringify(events) }));
  const text = await response.clone().text();
  if (text.startsWith("[")) return JSON.parse(text) as Item[];
  if (!response.ok) throw await problemOf(response);
  return [];
}

function Answers({ events, items }: { events: unknown[]; items: Item[] }) {
  const stored = items.filter((item) => item.publishing_status === "submitted").length;
  return (
    <>
      <h2 class={stored === events.length ? "good" : "error"}>
        {stored === events.length ? `${plural(stored, "event")} stored` : `${stored} of ${plural(events.length, "event")} stored`}
      </h2>
      <Table label="Answers" rows={items.map((item, at) => ({ item, at }))} columns={[
        { title: "Event", cell: ({ at }) => at + 1 },
        {
          title: "Answer",
          cell: ({ item }) => (
            <span class={item.publishing_status === "submitted" ? "good" : "error"}>{item.publishing_status}</span>
          ),
        },
        { title: "Step", cell: ({ item }) => item.step, wide: true },
        { title: "Reason", cell: ({ item }) => <span class="lines">{item.detail || "–"}</span> },
        { title: "Event id", cell: ({ item }) => <code>{item.eid}</code>, wide: true },
      ]} />
    </>
  );
}
