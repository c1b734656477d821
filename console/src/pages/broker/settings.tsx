/** Features, blocked names, and the broker's administrators. */

import { useState } from "preact/hooks";
import { api, body, type Schemas, useLoad } from "../../api";
import { ConfirmByName } from "../../components/confirm";
import { Labelled } from "../../components/fields";
import { Await, EmptyState } from "../../components/notices";
import { Table } from "../../components/table";
import { attempt, toast } from "../../components/toast";

type FeatureName = Schemas["FeatureName"];
type Role = "admins" | "readers" | "writers";
type Attribute = Schemas["AuthorizationAttribute"];
type Kind = "CONSUMER_APP" | "CONSUMER_ET" | "PRODUCER_APP" | "PRODUCER_ET";

// Users have to type the names of these features to switch them on, because the features stop clients.
const HINDERS = /^(disable_|force_|validate_)/;

export function FeaturesTab() {
  const features = useLoad((signal) => body(api.GET("/settings/features", { signal })), []);
  const [asked, setAsked] = useState<FeatureName>();
  const change = (feature: FeatureName, enabled: boolean) => api.POST("/settings/features", { body: { feature, enabled } });
  const toggle = async (feature: FeatureName, on: boolean) => {
    if (on && HINDERS.test(feature)) return setAsked(feature);
    await attempt(() => change(feature, on), `${feature} is ${on ? "on" : "off"}`);
    features.reload();
  };
  return (
    <Await of={features}>
      {({ items }) => (
        <>
          <Table label="Features" rows={items} columns={[
            { title: "Feature", cell: (each) => <code>{each.feature}</code> },
            { title: "State", cell: (each) => (each.enabled ? <span class="warn">on</span> : "off") },
            {
              title: "",
              cell: (each) => (
                <button type="button" class="quiet" aria-label={`Switch ${each.enabled ? "off" : "on"} ${each.feature}`}
                  onClick={() => void toggle(each.feature, !each.enabled)}>
                  Switch {each.enabled ? "off" : "on"}
                </button>
              ),
            },
          ]} />
          <p class="faint">Read what each one does in the <a class="underlined" href="../docs">API reference</a>. A change takes effect within moments.</p>
          {asked && (
            <ConfirmByName name={asked} title="Switch it on" action="Switch on" onClose={() => setAsked(undefined)}
              onConfirm={async () => {
                await change(asked, true);
                toast(`${asked} is on`);
                setAsked(undefined);
                features.reload();
              }}>
              <p>The broker may then reject client requests that worked before.</p>
            </ConfirmByName>
          )}
        </>
      )}
    </Await>
  );
}

const KINDS: [Kind, string][] = [["PRODUCER_APP", "An application may not publish"], ["PRODUCER_ET", "Nobody may publish to an event type"],
  ["CONSUMER_APP", "An application may not read"], ["CONSUMER_ET", "Nobody may read an event type"]];

export function BlockedTab() {
  const blocked = useLoad((signal) => body(api.GET("/settings/blacklist", { signal })), []);
  const [kind, setKind] = useState<Kind>("PRODUCER_APP");
  const [name, setName] = useState("");
  const of = (kind: Kind, name: string) => ({ params: { path: { blacklist_type: kind, name } } });
  const block = async () => {
    const done = await attempt(() => api.PUT("/settings/blacklist/{blacklist_type}/{name}", of(kind, name)), `${name} is blocked`);
    if (done) setName("");
    blocked.reload();
  };
  const lift = async (kind: Kind, name: string) => {
    await attempt(() => api.DELETE("/settings/blacklist/{blacklist_type}/{name}", of(kind, name)), `${name} is not blocked`);
    blocked.reload();
  };
  return (
    <>
      <form class="actions" onSubmit={(event) => (event.preventDefault(), void block())}>
        <select aria-label="What is blocked" value={kind} onChange={(event) => setKind(event.currentTarget.value as Kind)}>
          {KINDS.map(([value, text]) => <option key={value} value={value}>{text}</option>)}
        </select>
        <input required aria-label="Name" placeholder="Name" spellcheck={false} value={name}
          onInput={(event) => setName(event.currentTarget.value)} />
        <button type="submit" class="danger">Block</button>
      </form>
      <Await of={blocked}>
        {({ consumers, producers }) => {
          const rows: { kind: Kind; name: string }[] = [
            ...producers.apps.map((name) => ({ kind: "PRODUCER_APP" as const, name })),
            ...producers.event_types.map((name) => ({ kind: "PRODUCER_ET" as const, name })),
            ...consumers.apps.map((name) => ({ kind: "CONSUMER_APP" as const, name })),
            ...consumers.event_types.map((name) => ({ kind: "CONSUMER_ET" as const, name })),
          ];
          if (!rows.length) return <EmptyState title="Nothing is blocked">Block a harmful application or event type: its requests get 403, and its streams end.</EmptyState>;
          return (
            <Table label="Blocked" rows={rows} columns={[
              { title: "Name", cell: (each) => each.name },
              { title: "Effect", cell: (each) => KINDS.find(([kind]) => kind === each.kind)?.[1] },
              {
                title: "",
                cell: (each) => <button type="button" class="quiet" onClick={() => void lift(each.kind, each.name)}>Unblock {each.name}</button>,
              },
            ]} />
          );
        }}
      </Await>
    </>
  );
}

const ROLES: [Role, string][] = [["admins", "change these lists"], ["writers", "change settings, storages, timelines and event types"],
  ["readers", "view settings, storages and timelines"]];

export function AdminsTab() {
  const admins = useLoad((signal) => body(api.GET("/settings/admins", { signal })), []);
  const [role, setRole] = useState<Role>("readers");
  const [given, setGiven] = useState("");
  const [wrong, setWrong] = useState("");
  const change = async (role: Role, now: Attribute[], done: string) => {
    const lists = await body(api.GET("/settings/admins"));
    const changed = await attempt(() => api.POST("/settings/admins", { body: { ...lists, [role]: now } }), done);
    admins.reload();
    return changed;
  };
  const add = async (lists: Schemas["AdminLists"]) => {
    const [, data_type, value] = /^([^:\s]+):(\S+)$/.exec(given.trim()) ?? [];
    if (!data_type || !value) return setWrong("Write kind and name with a colon, such as service:shop.");
    setWrong("");
    if (await change(role, [...lists[role], { data_type, value }], `${given} is among the ${role}`)) setGiven("");
  };
  return (
    <Await of={admins}>
      {(lists) => (
        <>
          <form onSubmit={(event) => (event.preventDefault(), void add(lists))}>
            <div class="fields">
              <Labelled text="Role" hint={`May ${new Map(ROLES).get(role)}`}>
                <select value={role} onChange={(event) => setRole(event.currentTarget.value as Role)}>
                  {ROLES.map(([value]) => <option key={value} value={value}>{value}</option>)}
                </select>
              </Labelled>
              <Labelled text="User, service or team" error={wrong}>
                <input required placeholder="service:shop" spellcheck={false} value={given}
                  onInput={(event) => setGiven(event.currentTarget.value)} />
              </Labelled>
            </div>
            <button type="submit">Add</button>
          </form>
          <Table label="Administrators" rows={ROLES.flatMap(([role]) => lists[role].map((each) => ({ role, ...each })))} columns={[
            { title: "Role", cell: (each) => each.role },
            { title: "Kind", cell: (each) => each.data_type },
            { title: "Name", cell: (each) => each.value },
            {
              title: "",
              cell: (each) => {
                // The broker does not accept an empty list, so the last member of a list has no button to remove it.
                if (lists[each.role].length < 2) return <span class="faint">the only one</span>;
                const rest = lists[each.role].filter((other) => other.data_type !== each.data_type || other.value !== each.value);
                return (
                  <button type="button" class="quiet" onClick={() => void change(each.role, rest, `${each.value} is not among the ${each.role}`)}>
                    Remove {each.value} from {each.role}
                  </button>
                );
              },
            },
          ]} />
        </>
      )}
    </Await>
  );
}
