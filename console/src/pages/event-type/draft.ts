/** Conversions between an event type in the API and the fields of the form. */

import type { EventType, Schemas } from "../../api";

type Draft = Schemas["EventTypeDraft"];

export type Fields = {
  name: string;
  owning_application: string;
  category: string;
  schema: string;
  partition_strategy: string;
  partition_key_fields: string;
  cleanup_policy: string;
  compatibility_mode: string;
  retention: string;
  partitions: string;
  audience: string;
  deduplication: string;
  labels: string;
  annotations: string;
  readers: string;
  writers: string;
  admins: string;
};

export const EMPTY: Fields = {
  name: "",
  owning_application: "",
  category: "business",
  schema: '{\n  "type": "object",\n  "properties": {}\n}',
  partition_strategy: "random",
  partition_key_fields: "",
  cleanup_policy: "delete",
  compatibility_mode: "forward",
  retention: "",
  partitions: "1",
  audience: "",
  deduplication: "",
  labels: "",
  annotations: "",
  readers: "",
  writers: "",
  admins: "",
};

const HOUR = 3_600_000;

export function fieldsOf(type: EventType): Fields {
  const who = (list: Schemas["AuthorizationAttribute"][] | undefined) =>
    (list ?? []).map((each) => `${each.data_type}:${each.value}`).join("\n");
  const pairs = (map: Record<string, string | null>) =>
    Object.entries(map).map(([key, value]) => `${key}=${value ?? ""}`).join("\n");
  const statistic = type.default_statistic;
  const retention = type.options?.retention_time;
  return {
    name: type.name,
    owning_application: type.owning_application,
    category: type.category,
    schema: laidOut(type.schema.schema),
    partition_strategy: type.partition_strategy,
    partition_key_fields: type.partition_key_fields.join(", "),
    cleanup_policy: type.cleanup_policy,
    compatibility_mode: type.compatibility_mode,
    retention: retention ? String(retention / HOUR) : "",
    partitions: String(statistic ? Math.max(statistic.read_parallelism, statistic.write_parallelism) : 1),
    audience: type.audience ?? "",
    deduplication: type.deduplication ? String(type.deduplication.window_seconds) : "",
    labels: pairs(type.labels),
    annotations: pairs(type.annotations),
    readers: who(type.authorization?.readers),
    writers: who(type.authorization?.writers),
    admins: who(type.authorization?.admins),
  };
}

export function laidOut(schema: string): string {
  try {
    return JSON.stringify(JSON.parse(schema), null, 2);
  } catch {
    return schema;
  }
}

/** The event type in the form. Members without a field stay as in `before`. */
export function draftOf(fields: Fields, before?: EventType): Draft {
  const category = fields.category as Draft["category"];
  const authorization = authorizationOf(fields);
  const partitions = Number(fields.partitions) || 1;
  const kept = before && {
    ordering_key_fields: before.ordering_key_fields,
    ordering_instance_ids: before.ordering_instance_ids,
    ...(before.event_owner_selector && { event_owner_selector: before.event_owner_selector }),
    ...(before.default_statistic && { default_statistic: before.default_statistic }),
  };
  return {
    ordering_key_fields: [],
    ordering_instance_ids: [],
    ...(partitions > 1 && {
      default_statistic: { messages_per_minute: 60, message_size: 1000, read_parallelism: partitions, write_parallelism: 1 },
    }),
    ...kept,
    name: fields.name.trim(),
    owning_application: fields.owning_application.trim(),
    category,
    enrichment_strategies: category === "undefined" ? [] : ["metadata_enrichment"],
    // The form shows the schema with indentation. If nobody changes it, it is sent as it was.
    schema: { type: before?.schema.type ?? "json_schema", schema: before && fields.schema === laidOut(before.schema.schema) ? before.schema.schema : fields.schema },
    partition_strategy: fields.partition_strategy as Draft["partition_strategy"],
    partition_key_fields: words(fields.partition_key_fields),
    cleanup_policy: fields.cleanup_policy as Draft["cleanup_policy"],
    compatibility_mode: fields.compatibility_mode as Draft["compatibility_mode"],
    ...(fields.retention.trim() && { options: { retention_time: Math.round(Number(fields.retention) * HOUR) } }),
    // Without this member the broker would keep the deduplication. `null` ends it.
    deduplication: fields.deduplication.trim() ? { window_seconds: Number(fields.deduplication) } : null,
    ...(fields.audience && { audience: fields.audience as Draft["audience"] }),
    labels: mapOf(fields.labels),
    annotations: mapOf(fields.annotations),
    ...(authorization && { authorization }),
  };
}

const words = (text: string) => text.split(/[\s,]+/).filter(Boolean);

const linesOf = (text: string) => text.split("\n").map((line) => line.trim()).filter(Boolean);

function mapOf(text: string): Record<string, string> {
  return Object.fromEntries(linesOf(text).map((line) => {
    const at = line.indexOf("=");
    return at < 0 ? [line, ""] : [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  }));
}

function authorizationOf(fields: Fields): Draft["authorization"] | undefined {
  const lists = [fields.readers, fields.writers, fields.admins].map((text) =>
    linesOf(text).map((line) => {
      const at = line.indexOf(":");
      return at < 0 ? { data_type: line, value: line === "*" ? "*" : "" } : { data_type: line.slice(0, at), value: line.slice(at + 1) };
    }));
  const [readers = [], writers = [], admins = []] = lists;
  return readers.length + writers.length + admins.length ? { readers, writers, admins } : undefined;
}
