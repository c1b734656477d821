/** Registers a sink, or replaces it. */

import { useState } from "preact/hooks";
import { api, body, type Problem, problemFrom, type Schemas } from "../../api";
import { Dialog } from "../../components/confirm";
import { Labelled } from "../../components/fields";
import { ProblemNotice } from "../../components/notices";
import type { Sink } from "./sink";
import { SINK_TYPES, type SinkType, targetOf } from "./sink-types";

type Draft = Schemas["SinkDraft"];

/** Fields get their values only at first. So when the broker refuses an input, it stays in the form. */
export function EditSink({ subscription, sink, onStored, onClose }: {
  subscription: string;
  /** The present sink, if there is one. */
  sink?: Sink;
  onStored: (sink: Sink) => void;
  onClose: () => void;
}) {
  const [problem, setProblem] = useState<Problem>();
  const [busy, setBusy] = useState(false);
  const [type, setType] = useState<SinkType>(sink?.type ?? "http");
  const { label, hint: targetHint, example } = SINK_TYPES[type];
  const hidden = Object.keys(sink?.headers ?? {});

  async function store(form: FormData) {
    setBusy(true);
    setProblem(undefined);
    try {
      const params = { path: { subscription_id: subscription } };
      onStored(await body(api.PUT("/subscriptions/{subscription_id}/sink", { params, body: draftFrom(form) })));
    } catch (error) {
      setProblem(problemFrom(error));
    }
    setBusy(false);
  }

  const number = (name: string, text: string, value: number, hint: string) => (
    <Labelled text={text} hint={hint}>
      <input type="number" name={name} required defaultValue={value} />
    </Labelled>
  );
  return (
    <Dialog title={sink ? "Edit the sink" : "Add a sink"} onClose={onClose}>
      <form onSubmit={(event) => (event.preventDefault(), void store(new FormData(event.currentTarget)))}>
        <Labelled text="Deliver to">
          <select name="type" value={type} onChange={(event) => setType(event.currentTarget.value as SinkType)}>
            {Object.entries(SINK_TYPES).map(([each, { title }]) => <option key={each} value={each}>{title}</option>)}
          </select>
        </Labelled>
        <Labelled text={label} hint={targetHint}>
          <input key={type} name="target" required spellcheck={false} autocomplete="off" defaultValue={sink?.type === type ? targetOf(sink) : ""} placeholder={example} />
        </Labelled>
        {type !== "event-type" && (
          <Labelled text="Format">
            <select name="format">
              <option value="nakadi">{type === "http" || type === "lambda" ? "Batches as in a stream" : "The event as it is"}</option>
              <option value="cloudevents" selected={sink?.format === "cloudevents"}>CloudEvents</option>
            </select>
          </Labelled>
        )}
        <Labelled text="Filter" hint="The broker delivers only events that meet this condition, such as data.total > 100. Empty: all events.">
          <input name="filter" spellcheck={false} autocomplete="off" defaultValue={sink?.filter ?? ""} />
        </Labelled>
        {number("batch_limit", "Events in a batch (maximum)", sink?.batch_limit ?? 100, "1 to 1,000. The broker does not wait for a full batch.")}
        {number("timeout_seconds", "Timeout in seconds", sink?.timeout_seconds ?? 30, "1 to 60")}
        {number("max_in_flight", "Deliveries at once", sink?.max_in_flight ?? 1, "1 to 100")}
        <Labelled text="Order" hint="Simultaneous deliveries have different partitions, or different keys.">
          <select name="parallel">
            <option value="partition">Of each partition</option>
            <option value="key" selected={sink?.parallel === "key"}>Of each key</option>
          </select>
        </Labelled>
        {type === "http" && (
          <Labelled text="Headers" hint={hidden.length
            ? `One on each line, such as Authorization: Bearer 4711. Their values are not shown: enter them again, or they are removed (${hidden.join(", ")}).`
            : "One on each line, such as Authorization: Bearer 4711"}>
            <textarea name="headers" rows={2} spellcheck={false} autocomplete="off" />
          </Labelled>
        )}
        {problem && <ProblemNotice problem={problem} />}
        <div class="actions">
          <button type="button" class="quiet" onClick={onClose}>Cancel</button>
          <button type="submit" disabled={busy}>{sink ? "Save" : "Add"}</button>
        </div>
      </form>
    </Dialog>
  );
}

function draftFrom(form: FormData): Draft {
  const text = (name: string) => String(form.get(name) ?? "").trim();
  const type = text("type") as SinkType;
  return {
    type,
    [SINK_TYPES[type].member]: text("target"),
    format: (text("format") || "nakadi") as NonNullable<Draft["format"]>,
    ...(text("filter") ? { filter: text("filter") } : {}),
    batch_limit: Number(text("batch_limit")),
    timeout_seconds: Number(text("timeout_seconds")),
    max_in_flight: Number(text("max_in_flight")),
    parallel: text("parallel") as NonNullable<Draft["parallel"]>,
    ...(type === "http" ? { headers: headersFrom(text("headers")) } : {}),
  };
}

/** The headers in a text. The broker checks their names and values. */
function headersFrom(lines: string): Record<string, string> {
  const pairs = lines.split("\n").filter((line) => line.trim()).map((line) => line.split(/:(.*)/s, 2));
  return Object.fromEntries(pairs.map(([name = "", value = ""]) => [name.trim(), value.trim()]));
}
