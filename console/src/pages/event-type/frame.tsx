/** The common parts of all pages of an event type: its name, its tabs, and loading its definition. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { api, body, type EventType, type Loaded, useLoad } from "../../api";
import { ConfirmByName } from "../../components/confirm";
import { Await } from "../../components/notices";
import { PageHead, Tabs } from "../../components/page";
import { toast } from "../../components/toast";
import { go, href } from "../../router";

const TABS: [text: string, at: string][] = [
  ["Definition", ""],
  ["Schema", "schema"],
  ["Events", "events"],
  ["Publish", "publish"],
  ["Partitions", "partitions"],
  ["Subscriptions", "subscriptions"],
  ["Table", "table"],
];

/** The address of a tab of an event type. */
export const tabOf = (name: string, tab = "", query: Record<string, string | undefined> = {}): string =>
  href(["event-types", name, ...(tab ? [tab] : [])], query);

export function EventTypeFrame({ name, tab, children }: {
  name: string;
  tab: string;
  children: (type: EventType, loaded: Loaded<EventType>) => ComponentChildren;
}) {
  const loaded = useLoad(
    (signal) => body(api.GET("/event-types/{name}", { params: { path: { name } }, signal })),
    [name],
  );
  const [deleting, setDeleting] = useState(false);
  return (
    <>
      <PageHead title={name} above={<a href="#/event-types">Event types</a>}>
        <a class="button quiet" href={tabOf(name, "edit")}>Change</a>
        <button type="button" class="quiet" onClick={() => setDeleting(true)}>Delete…</button>
      </PageHead>
      <Tabs label="Of this event type"
        tabs={TABS.map(([text, at]) => ({ text, to: tabOf(name, at), current: tab === at }))} />
      <Await of={loaded}>{(type) => children(type, loaded)}</Await>
      {deleting && <Delete name={name} onClose={() => setDeleting(false)} />}
    </>
  );
}

function Delete({ name, onClose }: { name: string; onClose: () => void }) {
  const remove = async () => {
    await api.DELETE("/event-types/{name}", { params: { path: { name } } });
    toast(`${name} is deleted`);
    go("#/event-types");
  };
  return (
    <ConfirmByName name={name} title={`Delete ${name}?`} action="Delete" onConfirm={remove} onClose={onClose}>
      <p>This deletes the event type, its schemas and all its events. You cannot undo it.</p>
    </ConfirmByName>
  );
}
