/** The storages of event logs, and the timelines of an event type. */

import { useState } from "preact/hooks";
import { allEventTypes, api, body, problemFrom, type Problem, type Schemas, useLoad } from "../../api";
import { ConfirmByName, Dialog } from "../../components/confirm";
import { Labelled } from "../../components/fields";
import { Await, EmptyState, ProblemNotice } from "../../components/notices";
import { Table } from "../../components/table";
import { attempt, toast } from "../../components/toast";
import { moment } from "../../format";
import { href, replaceQuery } from "../../router";

type Storage = Schemas["Storage"];

export function StoragesTab() {
  const storages = useLoad((signal) => body(api.GET("/storages", { signal })), []);
  const [adding, setAdding] = useState(false);
  const [removing, setRemoving] = useState<string>();
  const choose = async (id: string) => {
    await attempt(() => api.PUT("/storages/default/{id}", { params: { path: { id } } }), `New event types go to ${id}`);
    storages.reload();
  };
  const remove = async (id: string) => {
    await api.DELETE("/storages/{id}", { params: { path: { id } } });
    toast(`Storage ${id} is removed`);
    setRemoving(undefined);
    storages.reload();
  };
  return (
    <>
      <div class="actions"><button type="button" onClick={() => setAdding(true)}>Add a storage…</button></div>
      <Await of={storages}>
        {(found) => (
          <Table label="Storages" rows={found} columns={[
            { title: "Storage", cell: (each) => each.id },
            { title: "Type", cell: (each) => each.storage_type },
            { title: "Configuration", wide: true, cell: (each) => <code>{JSON.stringify(configurationOf(each))}</code> },
            {
              title: "New event types",
              cell: (each) => each.default ? <span class="good">go here</span> : (
                <button type="button" class="quiet" onClick={() => void choose(each.id)}>Choose {each.id}</button>
              ),
            },
            {
              title: "",
              cell: (each) => each.id !== "default" && (
                <button type="button" class="quiet" onClick={() => setRemoving(each.id)}>Remove {each.id}…</button>
              ),
            },
          ]} />
        )}
      </Await>
      {adding && <AddStorage usual={storages.data?.[0]?.storage_type ?? "embedded"} onClose={() => (setAdding(false), storages.reload())} />}
      {removing && (
        <ConfirmByName name={removing} title={`Remove storage ${removing}`} action="Remove"
          onConfirm={() => remove(removing)} onClose={() => setRemoving(undefined)}>
          <p>The broker only forgets the storage. You cannot remove a storage with a timeline.</p>
        </ConfirmByName>
      )}
    </>
  );
}

const configurationOf = (storage: Storage): unknown =>
  storage.embedded_configuration ?? storage.kinesis_configuration ?? storage.kafka_configuration ?? {};

/** `usual` is the storage type that is selected at first. */
function AddStorage({ usual, onClose }: { usual: Storage["storage_type"]; onClose: () => void }) {
  const [id, setId] = useState("");
  const [kind, setKind] = useState(usual);
  const [text, setText] = useState("{}");
  const [problem, setProblem] = useState<Problem>();
  const [wrong, setWrong] = useState("");
  const add = async () => {
    let configuration: Record<string, unknown>;
    try {
      configuration = JSON.parse(text) as Record<string, unknown>;
      setWrong("");
    } catch (error) {
      return setWrong(`This is not JSON: ${(error as Error).message}`);
    }
    try {
      await api.POST("/storages", { body: { id, storage_type: kind, default: false, [`${kind}_configuration`]: configuration } });
      toast(`Storage ${id} is added`);
      onClose();
    } catch (error) {
      setProblem(problemFrom(error));
    }
  };
  return (
    <Dialog title="Add a storage" onClose={onClose}>
      <form onSubmit={(event) => (event.preventDefault(), void add())}>
        {problem && <ProblemNotice problem={problem} />}
        <Labelled text="Name">
          <input required maxLength={36} spellcheck={false} value={id} onInput={(event) => setId(event.currentTarget.value)} />
        </Labelled>
        <Labelled text="Type">
          <select value={kind} onChange={(event) => setKind(event.currentTarget.value as Storage["storage_type"])}>
            {["embedded", "kinesis", "kafka"].map((each) => <option key={each}>{each}</option>)}
          </select>
        </Labelled>
        <Labelled text="Configuration" error={wrong} hint='Such as {"stream": "orders"} for Kinesis. The broker looks for it at once.'>
          <textarea rows={3} spellcheck={false} value={text} onInput={(event) => setText(event.currentTarget.value)} />
        </Labelled>
        <div class="actions">
          <button type="button" class="quiet" onClick={onClose}>Cancel</button>
          <button type="submit">Add</button>
        </div>
      </form>
    </Dialog>
  );
}

export function TimelinesTab({ name }: { name: string }) {
  const types = useLoad(allEventTypes, []);
  return (
    <Await of={types}>
      {(all) => all.length ? (
        <>
          <Labelled text="Event type">
            <input list="names" value={name} placeholder="Choose one" spellcheck={false}
              onChange={(event) => replaceQuery({ type: event.currentTarget.value })} />
          </Labelled>
          <datalist id="names">{all.map((each) => <option key={each.name} value={each.name} />)}</datalist>
          {name ? <Timelines key={name} name={name} /> : <EmptyState title="No event type is chosen">Choose one to see its timelines.</EmptyState>}
        </>
      ) : (
        <EmptyState title="There is no event type yet">Timelines belong to <a href="#/event-types">event types</a>.</EmptyState>
      )}
    </Await>
  );
}

function Timelines({ name }: { name: string }) {
  const params = { path: { name } };
  const timelines = useLoad((signal) => body(api.GET("/event-types/{name}/timelines", { params, signal })), [name], 5000);
  const storages = useLoad((signal) => body(api.GET("/storages", { signal })), []);
  const [storage, setStorage] = useState("default");
  const [asked, setAsked] = useState(false);
  const begin = async () => {
    await api.POST("/event-types/{name}/timelines", { params, body: { storage_id: storage } });
    toast(`Events of ${name} go to a new timeline`);
    setAsked(false);
    timelines.reload();
  };
  return (
    <Await of={timelines}>
      {(found) => {
        const current = found.filter((each) => each.switched_at).at(-1);
        return (
          <>
            <p><a href={href(["event-types", name])}>{name}</a></p>
            <Table label="Timelines" rows={found} columns={[
              { title: "Order", right: true, cell: (each) => each.order },
              { title: "Storage", cell: (each) => each.storage_id },
              {
                title: "State",
                cell: (each) => each === current ? <span class="good">events go here</span>
                  : each.cleaned_up_at ? `closed; its events expire ${moment(each.cleaned_up_at)}`
                  : each.switched_at ? "closed" : <span class="warn">in preparation</span>,
              },
              { title: "Since", wide: true, cell: (each) => moment(each.switched_at) },
              { title: "Topic", wide: true, cell: (each) => <code>{each.topic}</code> },
            ]} />
            <form class="actions" onSubmit={(event) => (event.preventDefault(), setAsked(true))}>
              <label>
                New timeline in{" "}
                <select value={storage} onChange={(event) => setStorage(event.currentTarget.value)}>
                  {(storages.data ?? []).map((each) => <option key={each.id}>{each.id}</option>)}
                </select>
              </label>
              <button type="submit">Start…</button>
            </form>
            {asked && (
              <ConfirmByName name={name} title="Start a new timeline" action="Start" onConfirm={begin} onClose={() => setAsked(false)}>
                <p>
                  From then on, events go to {storage}. You cannot return to the earlier timeline. Streams continue in
                  the new timeline. Events in the closed timeline stay until their retention time ends.
                </p>
              </ConfirmByName>
            )}
          </>
        );
      }}
    </Await>
  );
}
