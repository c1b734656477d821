/** SQL queries, with their results as tables and plots. */

import { useEffect, useRef, useState } from "preact/hooks";
import { address, api, body, type Problem, problemFrom, problemOf, send } from "../../api";
import { Bars } from "../../components/bars";
import { Labelled } from "../../components/fields";
import { ProblemNotice } from "../../components/notices";
import { PageHead, type PageProps } from "../../components/page";
import { Plot } from "../../components/plot";
import { Table } from "../../components/table";
import { exactly } from "../../exact";
import { count, plural } from "../../format";
import { replaceQuery } from "../../router";
import { drawable, isNumber, numberOf, type Result, textOf } from "./result";

const MAX_ROWS_SHOWN = 1000;
const MAX_BARS = 30;

export function Queries({ query }: PageProps) {
  const [text, setText] = useState(query.get("sql") ?? "");
  const [result, setResult] = useState<Result>();
  const [problem, setProblem] = useState<Problem>();
  const [running, setRunning] = useState<AbortController>();
  const field = useRef<HTMLTextAreaElement>(null);

  useEffect(() => {
    if (text) return;
    const leaving = new AbortController();
    void example(leaving.signal).then((found) => {
      // The example does not replace a query that the user has begun to write.
      if (!leaving.signal.aborted && !field.current?.value) setText(found);
    });
    return () => leaving.abort();
  }, []);
  useEffect(() => () => running?.abort(), [running]);

  const run = async () => {
    if (!text.trim() || running) return;
    const stopping = new AbortController();
    setRunning(stopping);
    setProblem(undefined);
    replaceQuery({ sql: text });
    try {
      setResult(await answer(text, stopping.signal));
    } catch (error) {
      setResult(undefined);
      if (!stopping.signal.aborted) setProblem(problemFrom(error));
    }
    setRunning(undefined);
  };

  return (
    <>
      <PageHead title="Queries" />
      <section class="card">
        <form onSubmit={(event) => (event.preventDefault(), void run())}>
          <Labelled text="SQL" hint={<>One SELECT in the dialect of DuckDB. Each event type is a table: <code>"order.placed"</code>, or <code>order_placed</code>. Ctrl+Enter runs it.</>}>
            <textarea ref={field} rows={6} spellcheck={false} value={text}
              onInput={(event) => setText(event.currentTarget.value)}
              onKeyDown={(event) => {
                if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
                event.preventDefault();
                void run();
              }} />
          </Labelled>
          <div class="actions">
            <button type="submit" disabled={!!running || !text.trim()}>Run</button>
            {running && <button type="button" class="quiet" onClick={() => running.abort()}>Stop</button>}
            <span role="status" class="faint">{running ? "Running…" : result && summary(result)}</span>
          </div>
        </form>
      </section>
      <div aria-live="polite">{problem && <ProblemNotice problem={problem} />}</div>
      {result && !running && <Answer result={result} />}
    </>
  );
}

/** A query on the first event type that the user may read, or an empty text if there is none. */
async function example(signal: AbortSignal): Promise<string> {
  try {
    const types = await body(api.GET("/event-types", { params: { query: { limit: 10 } }, signal }));
    const [own, others] = [types.filter(({ name }) => !name.startsWith("nakadi.")), types.filter(({ name }) => name.startsWith("nakadi."))];
    for (const { name } of [...own, ...others]) {
      // Only the broker knows which event types the user may read.
      const { response } = await api.GET("/event-types/{name}/partitions", { params: { path: { name } }, signal })
        .catch(() => ({ response: undefined }));
      if (response?.ok) {
        return `select time_bucket(interval 1 minute, nakadi_time) as minute, count(*) as events\nfrom "${name}"\ngroup by all order by all`;
      }
    }
  } catch {
    // Without an example, the field is empty.
  }
  return "";
}

async function answer(sql: string, signal: AbortSignal): Promise<Result> {
  const response = await send(new Request(`${address}/queries`, {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ sql }), signal,
  }));
  if (!response.ok) throw await problemOf(response);
  return plain(exactly(await response.text()) as Result);
}

/** The result with ordinary numbers of JavaScript outside its rows. */
function plain(result: Result): Result {
  return { ...result, seconds: numberOf(result.seconds) ?? 0 };
}

function summary({ rows, cut, seconds }: Result): string {
  const found = cut ? `cut after ${plural(rows.length, "row")}` : plural(rows.length, "row");
  return `${found} in ${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
}

function Answer({ result }: { result: Result }) {
  const { columns, rows, cut, notes } = result;
  const shown = rows.slice(0, MAX_ROWS_SHOWN);
  return (
    <>
      {notes.map((note) => <p class="notice" key={note}>{note}</p>)}
      {cut && <p class="notice">There are more rows: these are the first {count(rows.length)}.</p>}
      <Drawing result={result} />
      <section class="card">
        {rows.length > shown.length && <p class="faint">The first {count(shown.length)} of {plural(rows.length, "row")}.</p>}
        <Table label="Result" rows={shown} columns={columns.map((column, at) => ({
          title: column.name,
          right: isNumber(column),
          cell: (row: unknown[]) => (row[at] === null ? <span class="faint">NULL</span> : <span class="result">{textOf(row[at])}</span>),
        }))} />
        {!rows.length && <p class="faint">No rows.</p>}
      </section>
    </>
  );
}

function Drawing({ result }: { result: Result }) {
  const found = drawable(result);
  if (!found) return null;
  const { columns, rows } = result;
  const name = (at: number) => columns[at]?.name ?? "";
  const shown = (value: number) => value.toLocaleString("en", { maximumFractionDigits: 3 });
  if (found.kind === "names") {
    const [at = 0] = found.numbers;
    const bars = rows.slice(0, MAX_BARS).map((row) => ({
      name: row[found.over] === null ? "NULL" : textOf(row[found.over]),
      value: numberOf(row[at]) ?? 0,
      shown: row[at] === null ? "NULL" : textOf(row[at]),
    }));
    return <Bars title={`${name(at)} by ${name(found.over)}${rows.length > MAX_BARS ? `, the first ${MAX_BARS}` : ""}`} bars={bars} />;
  }
  const lines = found.numbers.map((at) => ({
    name: name(at),
    points: rows.flatMap((row) => {
      const [time, value] = [Date.parse(String(row[found.over])), numberOf(row[at])];
      return Number.isNaN(time) || value === undefined ? [] : [{ at: time, value }];
    }).sort((a, b) => a.at - b.at),
  }));
  const times = lines.flatMap(({ points }) => points.map(({ at }) => at));
  if (new Set(times).size < 2) return null;
  const [from, to] = times.reduce(([least, most], at) => [Math.min(least, at), Math.max(most, at)], [Infinity, -Infinity]);
  return <Plot title={`Over ${name(found.over)}`} lines={lines} from={from} to={to} gap={Infinity} shown={shown} />;
}
