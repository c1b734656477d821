/** Schemas from events, and events from schemas. */

type Node = Record<string, unknown>;

/** A schema that accepts the samples: each field with its type. It requires the fields that all samples have. */
export function schemaOf(samples: unknown[]): Node {
  return typed(samples);
}

function typed(values: unknown[]): Node {
  const types = [...new Set(values.map(typeOf))];
  if (types.length === 2 && types.includes("integer") && types.includes("number")) types.splice(0, 2, "number");
  const schema: Node = { type: types.length === 1 ? types[0] : types };
  const objects = values.filter(isNode);
  if (objects.length) {
    const names = [...new Set(objects.flatMap((each) => Object.keys(each)))];
    const having = (name: string) => objects.filter((each) => name in each);
    schema.properties = Object.fromEntries(names.map((name) => [name, typed(having(name).map((each) => each[name]))]));
    const required = names.filter((name) => having(name).length === objects.length);
    if (required.length) schema.required = required;
  }
  const items = values.filter((value) => Array.isArray(value)).flat();
  if (types.includes("array")) schema.items = items.length ? typed(items) : {};
  const texts = values.filter((value): value is string => typeof value === "string");
  if (texts.length && types.length === 1 && texts.every((text) => MOMENT.test(text))) schema.format = "date-time";
  return schema;
}

const MOMENT = /^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d)?(\.\d+)?(Z|[+-]\d\d:\d\d)$/;

function typeOf(value: unknown): string {
  if (value === null) return "null";
  if (Array.isArray(value)) return "array";
  if (typeof value === "number") return Number.isInteger(value) ? "integer" : "number";
  return typeof value;
}

function isNode(value: unknown): value is Node {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** An example event that fits the category and the schema. */
export function eventFor(type: { name: string; category: string; schema: { schema: string } }): unknown {
  let schema: unknown = {};
  try {
    schema = JSON.parse(type.schema.schema);
  } catch {
    // Without a JSON schema, the example has no fields.
  }
  const content = valueFor(schema, schema, 0);
  const own = isNode(content) ? content : {};
  if (type.category === "undefined") return own;
  const metadata = { eid: crypto.randomUUID(), occurred_at: new Date().toISOString() };
  if (type.category === "business") return { metadata, ...own };
  return { metadata, data_type: type.name, data_op: "C", data: own };
}

function valueFor(schema: unknown, root: unknown, depth: number): unknown {
  if (!isNode(schema) || depth > 8) return null;
  if (typeof schema.$ref === "string") return valueFor(referred(schema.$ref, root), root, depth + 1);
  if ("example" in schema) return schema.example;
  if ("default" in schema) return schema.default;
  if ("const" in schema) return schema.const;
  if (Array.isArray(schema.enum)) return schema.enum[0];
  for (const word of ["oneOf", "anyOf"]) {
    const members = schema[word];
    if (Array.isArray(members) && !schema.properties) return valueFor(members[0], root, depth + 1);
  }
  const type = Array.isArray(schema.type) ? schema.type[0] : schema.type;
  switch (type ?? (schema.properties ? "object" : undefined)) {
    case "object":
      return Object.fromEntries(
        Object.entries(isNode(schema.properties) ? schema.properties : {})
          .map(([name, child]) => [name, valueFor(child, root, depth + 1)]),
      );
    case "array":
      return schema.items ? [valueFor(schema.items, root, depth + 1)] : [];
    case "integer":
    case "number":
      return typeof schema.minimum === "number" ? schema.minimum : 1;
    case "boolean":
      return true;
    case "null":
      return null;
    case "string":
      return textFor(schema);
    default:
      return {};
  }
}

function textFor(schema: Node): string {
  const known: Record<string, string> = {
    "date-time": new Date().toISOString(),
    date: new Date().toISOString().slice(0, 10),
    email: "ann@example.org",
    uri: "https://example.org/",
    uuid: crypto.randomUUID(),
  };
  const text = known[String(schema.format)] ?? "text";
  return typeof schema.minLength === "number" ? text.padEnd(schema.minLength, "x") : text;
}

function referred(reference: string, root: unknown): unknown {
  return reference.replace(/^#\/?/, "").split("/").filter(Boolean)
    .reduce((at: unknown, step) => (isNode(at) ? at[step] : undefined), root);
}

/** The events in a text: one event, an array of events, or one event on each line. Throws an error for other texts. */
export function eventsIn(text: string, parse: (text: string) => unknown = JSON.parse): unknown[] {
  try {
    const value = parse(text);
    return Array.isArray(value) ? value : [value];
  } catch (error) {
    const lines = text.split("\n").filter((line) => line.trim());
    if (lines.length < 2) throw error;
    try {
      return lines.map((line) => parse(line));
    } catch {
      throw error;
    }
  }
}
