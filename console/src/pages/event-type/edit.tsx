/** Creates an event type, from sample events if users have any, and changes one. */

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { api, body, type EventType, type Problem, problemFrom, type Schemas } from "../../api";
import { Difference } from "../../components/difference";
import { Labelled } from "../../components/fields";
import { ProblemNotice } from "../../components/notices";
import { PageHead, type PageProps } from "../../components/page";
import { toast } from "../../components/toast";
import { type Operation, patched } from "../../patch";
import { reasonsByField } from "../../refusal";
import { go, href } from "../../router";
import { eventsIn, schemaOf } from "../../sample";
import { draftOf, EMPTY, type Fields, fieldsOf, laidOut } from "./draft";
import { EventTypeFrame, tabOf } from "./frame";
import { Rehearsal } from "./rehearsal";

export function CreateEventType() {
  return (
    <>
      <PageHead title="Create an event type" above={<a href="#/event-types">Event types</a>} />
      <Form />
    </>
  );
}

export function EditEventType({ names: [name = ""] }: PageProps) {
  return (
    <EventTypeFrame name={name} tab="edit">
      {(type) => <Form before={type} />}
    </EventTypeFrame>
  );
}

// How long users must not type before the console asks the broker, in milliseconds.
const QUIET = 400;

function Form({ before }: { before?: EventType }) {
  const [fields, setFields] = useState<Fields>(() => (before ? fieldsOf(before) : EMPTY));
  const [problem, setProblem] = useState<Problem>();
  const [busy, setBusy] = useState(false);
  const reasons = problem ? reasonsByField(problem) : new Map<string, string>();
  const set = (changed: Partial<Fields>) => setFields((old) => ({ ...old, ...changed }));

  const save = async (force: string[] = []) => {
    setBusy(true);
    setProblem(undefined);
    const draft = draftOf(fields, before);
    try {
      if (before) await api.PUT("/event-types/{name}", { params: { path: { name: before.name }, query: { force } }, body: draft });
      else await api.POST("/event-types", { body: draft });
      toast(`${draft.name} is ${before ? "changed" : "created"}`);
      go(tabOf(draft.name));
    } catch (refusal) {
      setProblem(problemFrom(refusal));
    }
    setBusy(false);
  };

  const text = (field: keyof Fields, label: string, hint?: ComponentChildren, more: Record<string, unknown> = {}) => (
    <Labelled text={label} hint={hint} error={reasons.get(FIELD_OF[field] ?? field)}>
      <input value={fields[field]} spellcheck={false} {...more} onInput={(event) => set({ [field]: event.currentTarget.value })} />
    </Labelled>
  );
  const choice = (field: keyof Fields, label: string, options: string[], hint?: ComponentChildren) => (
    <Labelled text={label} hint={hint} error={reasons.get(field)}>
      <select value={fields[field]} onChange={(event) => set({ [field]: event.currentTarget.value })}>
        {options.map((option) => <option key={option} value={option}>{option || "not set"}</option>)}
      </select>
    </Labelled>
  );
  const area = (field: keyof Fields, label: string, hint?: ComponentChildren, error = reasons.get(field)) => (
    <Labelled text={label} hint={hint} error={error}>
      <textarea rows={3} spellcheck={false} value={fields[field]} onInput={(event) => set({ [field]: event.currentTarget.value })} />
    </Labelled>
  );

  const isAvro = before?.schema.type === "avro_schema";
  return (
    <form onSubmit={(event) => (event.preventDefault(), void save())} noValidate>
      <div class="cards">
        <section class="card">
          <h2>Basics</h2>
          {text("name", "Name", "Words separated by dots, such as order.created", { readOnly: !!before, required: true })}
          {text("owning_application", "Owner", "The application that is responsible for these events")}
          {choice("category", "Category", ["business", "data", "undefined"], "business: something happened; data: something changed; undefined: only the schema")}
          <div class="fields">
            {choice("partition_strategy", "Partition strategy", ["random", "hash", "user_defined"])}
            {text("partition_key_fields", "Partition keys", "For hash: fields as dotted paths, separated by commas")}
            {text("partitions", "Partitions", before ? "Fixed here; an administrator can add more" : undefined, { type: "number", min: 1, readOnly: !!before })}
            {text("retention", "Retention in hours", "Empty: the broker's default", { inputMode: "decimal" })}
            {text("deduplication", "Publish once within, in seconds", "Empty: events are stored each time they are sent", { inputMode: "numeric" })}
            {choice("cleanup_policy", "Cleanup policy", ["delete", "compact", "compact_and_delete"])}
            {choice("compatibility_mode", "Compatibility", ["forward", "compatible", "none"])}
            {choice("audience", "Audience", ["", "component-internal", "business-unit-internal", "company-internal", "external-partner", "external-public"])}
          </div>
          <div class="fields">
            {area("labels", "Labels", "key=value, one on each line")}
            {area("annotations", "Annotations", "key=value, one on each line")}
          </div>
          <h3>Who may do what</h3>
          {reasons.has("authorization") && <p class="error lines" role="alert">{reasons.get("authorization")}</p>}
          <div class="fields">
            {area("readers", "Read", "user:ann or service:till, one on each line; * is everyone")}
            {area("writers", "Publish")}
            {area("admins", "Change and delete")}
          </div>
        </section>
        <section class="card">
          <h2>Schema</h2>
          {!before && <Sample category={fields.category} onSchema={(schema) => set({ schema })} />}
          <Labelled text={isAvro ? "Avro schema" : "JSON schema"} error={reasons.get("schema")}>
            <textarea rows={18} spellcheck={false} value={fields.schema} onInput={(event) => set({ schema: event.currentTarget.value })} />
          </Labelled>
          <Reasons problem={problem} />
          <Readers readers={readersIn(problem)} onForce={(force) => void save(force)} />
          {before && <Meaning type={before} schema={fields.schema} onSchema={(schema) => set({ schema })} />}
          {before && !isAvro && (
            <Rehearsal name={before.name} schema={fields.schema} category={fields.category} mode={fields.compatibility_mode} />
          )}
        </section>
      </div>
      {problem && (reasons.has("") || elsewhere(reasons)) && <ProblemNotice problem={problem} />}
      {problem && !reasons.has("") && !elsewhere(reasons) && (
        <p class="error" role="alert">
          The broker refuses it; the reasons stand at the fields. Flow id <code>{problem.flowId}</code>
        </p>
      )}
      <div class="actions sticky">
        <button type="submit" disabled={busy}>{before ? "Save" : "Create"}</button>
        <a class="button quiet" href={before ? tabOf(before.name) : "#/event-types"}>Cancel</a>
      </div>
    </form>
  );
}

// Fields of the form that are parts of another member in the API.
const FIELD_OF: Partial<Record<keyof Fields, string>> = { retention: "options", partitions: "default_statistic" };

/** Whether a reason is about a member that the form does not show. */
const elsewhere = (reasons: Map<string, string>) =>
  ["ordering_key_fields", "ordering_instance_ids", "event_owner_selector"].some((field) => reasons.has(field));

function Sample({ category, onSchema }: { category: string; onSchema: (schema: string) => void }) {
  const [sample, setSample] = useState("");
  const [error, setError] = useState("");
  const propose = () => {
    try {
      onSchema(JSON.stringify(schemaOf(eventsIn(sample).map((event) => contentOf(event, category))), null, 2));
      setError("");
    } catch (wrong) {
      setError(`This is not JSON: ${(wrong as Error).message}`);
    }
  };
  return (
    <>
      <Labelled text="Sample events" error={error} hint="One event, an array of events, or one event on each line. The console proposes a schema for them.">
        <textarea rows={6} spellcheck={false} value={sample} placeholder='{"order": {"number": "17"}}'
          onInput={(event) => setSample(event.currentTarget.value)} />
      </Labelled>
      <p><button type="button" class="quiet" disabled={!sample.trim()} onClick={propose}>Propose a schema</button></p>
    </>
  );
}

/** The part of an event that the schema describes: the broker adds `metadata`, and the envelope of data changes. */
function contentOf(event: unknown, category: string): unknown {
  if (typeof event !== "object" || event === null || category === "undefined") return event;
  if (category === "data" && "data" in event) return event.data;
  return Object.fromEntries(Object.entries(event).filter(([name]) => name !== "metadata"));
}

/** The changes for which the broker refuses a schema, each with its reason. */
function Reasons({ problem }: { problem?: Problem }) {
  const reasons = (problem?.body as Partial<Schemas["Problem"]> | undefined)?.reasons;
  if (!reasons?.length) return null;
  return (
    <ul class="changes" aria-label="Reasons">
      {reasons.map((reason) => (
        <li key={reason.path + reason.rule}>
          <code>{reason.path}</code> <strong>{reason.rule}</strong>: {reason.explanation}
        </li>
      ))}
    </ul>
  );
}

type Reader = Schemas["AffectedReader"];

const readersIn = (problem?: Problem): Reader[] => (problem?.body as Partial<Schemas["Problem"]> | undefined)?.readers ?? [];

/** The subscriptions that read the changed fields, and a button that changes the schema in spite of them. */
function Readers({ readers, onForce }: { readers: Reader[]; onForce?: (force: string[]) => void }) {
  if (!readers.length) return null;
  return (
    <section aria-label="Readers">
      <p class="warn">Subscriptions read the changed fields:</p>
      <ul class="changes">
        {readers.map((each) => (
          <li key={each.subscription_id}>
            <a href={href(["subscriptions", each.subscription_id])}>{each.owning_application} / {each.consumer_group}</a>:{" "}
            {each.changes.map((change) => change.explanation).join(" ") || "It has no declaration, and may read anything."}
          </li>
        ))}
      </ul>
      {onForce && (
        <p>
          <button type="button" class="danger" onClick={() => onForce(readers.map((each) => each.subscription_id))}>
            Change it in spite of them
          </button>
        </p>
      )}
    </section>
  );
}

type Verdict = Schemas["CompatibilityVerdict"];

/** The effect of a changed schema before it is saved: the broker checks the change, and stores nothing. */
function Meaning({ type, schema, onSchema }: { type: EventType; schema: string; onSchema: (schema: string) => void }) {
  const [verdict, setVerdict] = useState<Verdict>();
  const [problem, setProblem] = useState<Problem>();
  const same = schema === laidOut(type.schema.schema);
  useEffect(() => {
    setVerdict(undefined);
    setProblem(undefined);
    if (same) return;
    const stopping = new AbortController();
    const timer = setTimeout(async () => {
      const path = { name: type.name, version: "latest" };
      try {
        const asked = { params: { path }, body: { schema }, signal: stopping.signal };
        setVerdict(await body(api.POST("/event-types/{name}/schemas/{version}/compatibility-check", asked)));
      } catch (error) {
        if (!stopping.signal.aborted) setProblem(problemFrom(error));
      }
    }, QUIET);
    return () => {
      stopping.abort();
      clearTimeout(timer);
    };
  }, [schema, same, type]);
  if (same) return <p class="faint">It is version {type.schema.version}. Change it, and what that means is explained here.</p>;
  return (
    <section aria-live="polite" aria-label="The effect of the change">
      <h3>The effect of the change</h3>
      {problem && <p class="error lines">{problem.detail || problem.title}</p>}
      {verdict?.compatible && (
        <p class="good">
          Mode {verdict.compatibility_mode} allows it: it would follow version {verdict.validated_against_version} as a {verdict.level} version.
        </p>
      )}
      {verdict && !verdict.compatible && (
        <p class="error">
          {verdict.changes.every((each) => each.permitted)
            ? `The broker refuses it after version ${verdict.validated_against_version} because of its readers.`
            : `Mode ${verdict.compatibility_mode} does not allow it after version ${verdict.validated_against_version}:`}
        </p>
      )}
      {verdict && (
        <ul class="changes" aria-label="Changes">
          {verdict.changes.map((each) => (
            <li key={each.path + each.rule} class={each.permitted ? undefined : "error"}>
              <code>{each.path}</code>: {each.explanation}
            </li>
          ))}
        </ul>
      )}
      <Readers readers={verdict?.readers ?? []} />
      {verdict?.proposal && <Proposal schema={schema} proposal={verdict.proposal} onSchema={onSchema} />}
      {verdict && <Difference before={parsed(type.schema.schema)} after={parsed(schema)} />}
    </section>
  );
}

/** A schema that the broker would accept: its differences from the schema in the form, and a button that uses it. */
function Proposal({ schema, proposal, onSchema }: { schema: string; proposal: Operation[]; onSchema: (schema: string) => void }) {
  const proposed = patched(parsed(schema), proposal);
  return (
    <details>
      <summary>A schema that would be accepted</summary>
      <Difference before={parsed(schema)} after={proposed} />
      <p><button type="button" class="quiet" onClick={() => onSchema(JSON.stringify(proposed, null, 2))}>Use this schema</button></p>
    </details>
  );
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
