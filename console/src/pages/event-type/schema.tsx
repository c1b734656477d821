/** The schema of an event type as a tree, its versions, and the differences between two of them. */

import { useMemo } from "preact/hooks";
import { api, body, type Schemas, useLoad } from "../../api";
import { Difference } from "../../components/difference";
import { Choice } from "../../components/fields";
import { Await } from "../../components/notices";
import type { PageProps } from "../../components/page";
import { moment } from "../../format";
import { replaceQuery } from "../../router";
import { SchemaTree } from "../../components/schema-tree";
import { EventTypeFrame, tabOf } from "./frame";

type Version = Schemas["EventTypeSchema"];

export function Schema({ names: [name = ""], query }: PageProps) {
  const versions = useLoad((signal) => allVersions(name, signal), [name]);
  return (
    <EventTypeFrame name={name} tab="schema">
      {() => <Await of={versions}>{(all) => <Versions name={name} all={all} query={query} />}</Await>}
    </EventTypeFrame>
  );
}

const PAGE = 1000;

async function allVersions(name: string, signal: AbortSignal): Promise<Version[]> {
  const all: Version[] = [];
  for (;;) {
    const params = { path: { name }, query: { offset: all.length, limit: PAGE } };
    const { items } = await body(api.GET("/event-types/{name}/schemas", { params, signal }));
    all.push(...items);
    if (items.length < PAGE) return all;
  }
}

function Versions({ name, all, query }: { name: string; all: Version[]; query: URLSearchParams }) {
  const at = Math.max(0, all.findIndex((each) => each.version === query.get("version")));
  const shown = all[at];
  const other = all.find((each) => each.version === query.get("with")) ?? all[at + 1];
  const document = useMemo(() => parsed(shown), [shown]);
  const compared = useMemo(() => parsed(other), [other]);
  if (!shown) return <p>There is no version.</p>;
  const isAvro = shown.type === "avro_schema";
  const options = all.map((each, index) =>
    [each.version, `${each.version}${index ? "" : " (current)"} of ${moment(each.created_at)}`] as const);
  return (
    <>
      <div class="filters">
        <Choice label="Version" value={shown.version} options={options}
          onChange={(version) => replaceQuery({ version, with: "" })} />
        <a class="button quiet" href={tabOf(name, "edit")}>Change the schema</a>
      </div>
      <div class="cards">
        <section class="card">
          <h2>Version {shown.version}</h2>
          {isAvro ? <p class="faint">It is an Avro schema.</p> : <SchemaTree schema={document} />}
          <details open={isAvro}>
            <summary>Source</summary>
            <pre class="source" tabIndex={0} aria-label="Source">{JSON.stringify(document, null, 2)}</pre>
          </details>
        </section>
        <section class="card">
          <h2>What changed</h2>
          {other ? (
            <>
              <div class="filters">
                since{" "}
                <Choice label="Compared with" value={other.version}
                  options={options.filter(([version]) => version !== shown.version)}
                  onChange={(version) => replaceQuery({ with: version })} />
              </div>
              <Difference before={compared} after={document} />
            </>
          ) : (
            <p class="faint">It is the first version.</p>
          )}
        </section>
      </div>
    </>
  );
}

function parsed(version: Version | undefined): unknown {
  if (!version) return undefined;
  try {
    return JSON.parse(version.schema);
  } catch {
    return version.schema;
  }
}
