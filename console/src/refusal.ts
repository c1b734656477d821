/** Assigns the reasons of a refusal to the fields in the form of an event type. */

import type { Problem } from "./api";

// A refusal that names no field is about the schema if it contains one of these words.
const OF_SCHEMA = /schema|json|root element|property is reserved|\$ref/i;

const FIELDS = [
  "name", "owning_application", "category", "partition_strategy", "partition_key_fields", "cleanup_policy",
  "compatibility_mode", "default_statistic", "options", "authorization", "audience", "labels", "annotations", "schema",
  "ordering_key_fields", "ordering_instance_ids", "event_owner_selector", "deduplication",
] as const;

/** The reasons by field. Reasons without a field have an empty name. */
export function reasonsByField(problem: Problem): Map<string, string> {
  const reasons = new Map<string, string>();
  const add = (field: string, text: string) => reasons.set(field, [reasons.get(field), text].filter(Boolean).join("\n"));
  for (const line of problem.detail.split("\n").filter((text) => text.trim())) {
    const named = /^Field "(?<field>\w+)[^"]*" (?<why>.*)$/.exec(line)?.groups;
    const at = /\(at (?<field>\w+)[^)]*\)$/.exec(line)?.groups;
    const found = named?.field ?? at?.field ?? mentioned(line, problem);
    add(FIELDS.includes(found as (typeof FIELDS)[number]) ? found : "", line.replace(/^Field "\w+" /, ""));
  }
  if (!problem.detail) add("", problem.title);
  return reasons;
}

function mentioned(line: string, problem: Problem): string {
  if (problem.status === 409) return "name";
  // The longest names come first, because a name may contain a shorter one.
  const words = FIELDS.filter((field) => field.includes("_")).sort((a, b) => b.length - a.length);
  return words.find((field) => line.includes(field)) ?? (OF_SCHEMA.test(line) ? "schema" : "");
}
