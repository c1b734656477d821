/** Validates stored events against the schema in the form. */

import { useEffect, useState } from "preact/hooks";
import { api, body, type Problem, problemFrom, type Schemas } from "../../api";
import { Labelled } from "../../components/fields";
import { Tree } from "../../components/tree";
import { count, moment, plural } from "../../format";

type Result = Schemas["Rehearsal"];

const POLL_MILLISECONDS = 1000;

export function Rehearsal({ name, schema, category, mode }: {
  name: string;
  schema: string;
  category: string;
  mode: string;
}) {
  const [last, setLast] = useState("7d");
  const [busy, setBusy] = useState(false);
  const [result, setResult] = useState<Result>();
  const [problem, setProblem] = useState<Problem>();
  const running = result?.state === "running";

  const attempt = async (call: () => Promise<Result | undefined>) => {
    setBusy(true);
    setProblem(undefined);
    try {
      setResult(await call());
    } catch (refusal) {
      setProblem(problemFrom(refusal));
    }
    setBusy(false);
  };
  const start = () => {
    const chosen = { category, compatibility_mode: mode } as Pick<Schemas["RehearsalDraft"], "category" | "compatibility_mode">;
    const draft = { schema: { type: "json_schema" as const, schema }, last, ...chosen };
    return body(api.POST("/event-types/{name}/schemas/rehearsals", { params: { path: { name } }, body: draft }));
  };
  const stop = async () => {
    const path = { name, rehearsal_id: result?.id ?? "" };
    await api.DELETE("/event-types/{name}/schemas/rehearsals/{rehearsal_id}", { params: { path } });
    return undefined;
  };

  useEffect(() => {
    if (!running || problem) return;
    const path = { name, rehearsal_id: result.id };
    const stopping = new AbortController();
    const timer = setTimeout(async () => {
      try {
        const asked = { params: { path }, signal: stopping.signal };
        setResult(await body(api.GET("/event-types/{name}/schemas/rehearsals/{rehearsal_id}", asked)));
      } catch (error) {
        if (!stopping.signal.aborted) setProblem(problemFrom(error));
      }
    }, POLL_MILLISECONDS);
    return () => {
      stopping.abort();
      clearTimeout(timer);
    };
  }, [name, result, running, problem]);

  return (
    <section aria-label="Rehearsal" aria-live="polite">
      <h3>Rehearsal with stored events</h3>
      <div class="fields">
        <Labelled text="Events of the last" hint="For example 7d, 12h or 30m">
          <input value={last} spellcheck={false} onInput={(event) => setLast(event.currentTarget.value)} />
        </Labelled>
      </div>
      <p>
        <button type="button" class="quiet" disabled={busy || running} onClick={() => void attempt(start)}>
          Rehearse this schema
        </button>{" "}
        {running && <button type="button" class="quiet" onClick={() => void attempt(stop)}>Stop</button>}
      </p>
      {problem && <p class="error lines">{problem.detail || problem.title}</p>}
      {result && <Findings result={result} />}
    </section>
  );
}

function Findings({ result }: { result: Result }) {
  const failed = result.events_failed;
  return (
    <>
      {result.state === "running" && (
        <p>{count(result.events_seen)} of {plural(result.events_expected, "event")} are judged.</p>
      )}
      {(result.state === "failed" || result.state === "lost") && (
        <p class="error">The rehearsal did not come to its end. {result.detail}</p>
      )}
      <p class={failed ? "error" : "good"}>
        {failed
          ? `It refuses ${count(failed)} of ${plural(result.events_seen, "event")}.`
          : `It refuses none of ${plural(result.events_seen, "event")}.`}
      </p>
      {failed > 0 && (
        <>
          <ul class="changes" aria-label="Broken rules">
            {result.rules.map((each) => (
              <li key={each.path + each.rule}>
                <code>{each.path}</code> <strong>{each.rule}</strong>: {plural(each.events, "event")}, from{" "}
                {moment(each.first_at)} to {moment(each.last_at)}
              </li>
            ))}
          </ul>
          <p>
            Published by{" "}
            {result.published_by.map((each) => `${each.application ?? "unknown"} (${count(each.events)})`).join(", ")}
          </p>
          {result.samples.map((each) => (
            <details key={each.cursor.partition + each.cursor.offset}>
              <summary>Partition {each.cursor.partition}, offset {each.cursor.offset}</summary>
              {each.event ? <Tree value={each.event} /> : <p class="faint">It is too long to be shown, or no longer stored.</p>}
            </details>
          ))}
        </>
      )}
    </>
  );
}
