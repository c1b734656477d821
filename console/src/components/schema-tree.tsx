/** A JSON schema as a tree of the fields that it describes. */

type Node = Record<string, unknown>;

// Members of a schema that the tree shows in other ways than as a rule.
const SAID = new Set(["type", "properties", "required", "items", "description", "title", "$schema", "definitions", "$defs"]);

export function SchemaTree({ schema }: { schema: unknown }) {
  if (!isNode(schema)) return <code>{JSON.stringify(schema)}</code>;
  const parts = branches(schema);
  return (
    <>
      {(schema.title || schema.description) && <p>{String(schema.title ?? schema.description)}</p>}
      {parts.length ? parts.map((part) => <Branch key={part.name} {...part} depth={0} />)
        : <p class="faint">The schema names no fields: it accepts every object that meets the rules in its source.</p>}
    </>
  );
}

type Part = { name: string; node: unknown; needed: boolean };

/** The branches of a schema: the fields of an object, the items of a list, and alternatives. */
function branches(node: Node): Part[] {
  const required = Array.isArray(node.required) ? node.required : [];
  const properties = isNode(node.properties) ? node.properties : {};
  const parts: Part[] = Object.entries(properties).map(([name, child]) => ({
    name,
    node: child,
    needed: required.includes(name),
  }));
  if (isNode(node.items)) parts.push({ name: "each item", node: node.items, needed: false });
  for (const word of ["anyOf", "oneOf", "allOf"]) {
    const members = node[word];
    if (Array.isArray(members)) {
      members.forEach((child, at) => parts.push({ name: `${word} ${at + 1}`, node: child, needed: false }));
    }
  }
  for (const word of ["definitions", "$defs"]) {
    const members = node[word];
    if (isNode(members)) {
      for (const [name, child] of Object.entries(members)) parts.push({ name: `#/${word}/${name}`, node: child, needed: false });
    }
  }
  return parts;
}

function Branch({ name, node, needed, depth }: Part & { depth: number }) {
  const fields = isNode(node) ? branches(node) : [];
  const head = (
    <>
      <span class="mono">{name}</span> <span class="type">{typeOf(node)}</span>
      {needed && <span class="chip">required</span>}
      {isNode(node) && rules(node).map((rule) => <code key={rule} class="rule">{rule}</code>)}
      {isNode(node) && node.description ? <div class="faint">{String(node.description)}</div> : null}
    </>
  );
  if (!fields.length) return <div class="field-leaf">{head}</div>;
  return (
    <details class="field-branch" open={depth < 3}>
      <summary>{head}</summary>
      <div class="children">
        {fields.map((part) => <Branch key={part.name} {...part} depth={depth + 1} />)}
      </div>
    </details>
  );
}

function typeOf(node: unknown): string {
  if (!isNode(node)) return String(node);
  if (typeof node.$ref === "string") return node.$ref;
  if (Array.isArray(node.type)) return node.type.join(" or ");
  if (typeof node.type === "string") return node.type;
  return node.enum || node.const !== undefined ? "" : "anything";
}

function rules(node: Node): string[] {
  return Object.entries(node)
    .filter(([word, value]) => !SAID.has(word) && word !== "$ref" && !isNode(value) && !hasNodes(value))
    .map(([word, value]) => `${word} ${JSON.stringify(value)}`);
}

const hasNodes = (value: unknown) => Array.isArray(value) && value.some(isNode);

function isNode(value: unknown): value is Node {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
