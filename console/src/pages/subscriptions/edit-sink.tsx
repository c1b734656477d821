/** Registers a sink, or replaces it. */

import { useState } from "preact/hooks";
import { api, body, type Problem, problemFrom, type Schemas } from "../../api";
import { Dialog } from "../../components/confirm";
import { Labelled } from "../../components/fields";
import { ProblemNotice } from "../../components/notices";
import type { Sink } from "./sink";

type Draft = Schemas["SinkDraft"];

export function EditSink({ subscription, sink, onStored, onClose }: {
  subscription: string;
  /** The one that is there. */
  sink?: Sink;
  onStored: (sink: Sink) => void;
  onClose: () => void;
}) {
  const [problem, setProblem] = useState<Problem>();
  const [busy, setBusy] = useState(false);
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
      <input type="number" name={name} required value={value} />
    </Labelled>
  );
  return (
    <Dialog title={sink ? "Edit the sink" : "Add a sink"} onClose={onClose}>
      <form onSubmit={(event) => (event.preventDefault(), void store(new FormData(event.currentTarget)))}>
        <Labelled text="URL" hint="Each batch is posted there.">
          <input type="url" name="url" required spellcheck={false} autocomplete="off" value={sink?.url ?? ""} placeholder="https://shop.example.org/hooks/orders" />
        </Labelled>
        <Labelled text="Format">
          <select name="format" value={sink?.format ?? "nakadi"}>
            <option value="nakadi">Batches as in a stream</option>
            <option value="cloudevents">CloudEvents</option>
          </select>
        </Labelled>
        {number("batch_limit", "Events in a batch, at most", sink?.batch_limit ?? 100, "1 to 1,000. The broker does not wait for a full batch.")}
        {number("timeout_seconds", "Timeout in seconds", sink?.timeout_seconds ?? 30, "1 to 60")}
        {number("max_in_flight", "Deliveries at once", sink?.max_in_flight ?? 1, "1 to 100")}
        <Labelled text="Order" hint="Deliveries at once are of different partitions, or of different keys.">
          <select name="parallel" value={sink?.parallel ?? "partition"}>
            <option value="partition">Of each partition</option>
            <option value="key">Of each key</option>
          </select>
        </Labelled>
        <Labelled text="Headers" hint={hidden.length
          ? `One a line, such as Authorization: Bearer 4711. Their values are not shown: name them again, or they are removed (${hidden.join(", ")}).`
          : "One a line, such as Authorization: Bearer 4711"}>
          <textarea name="headers" rows={2} spellcheck={false} autocomplete="off" />
        </Labelled>
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
  return {
    type: "http",
    url: text("url"),
    format: text("format") as NonNullable<Draft["format"]>,
    batch_limit: Number(text("batch_limit")),
    timeout_seconds: Number(text("timeout_seconds")),
    max_in_flight: Number(text("max_in_flight")),
    parallel: text("parallel") as NonNullable<Draft["parallel"]>,
    headers: headersFrom(text("headers")),
  };
}

/** The broker says what is wrong with a name or a value. */
function headersFrom(lines: string): Record<string, string> {
  const pairs = lines.split("\n").filter((line) => line.trim()).map((line) => line.split(/:(.*)/s, 2));
  return Object.fromEntries(pairs.map(([name = "", value = ""]) => [name.trim(), value.trim()]));
}
