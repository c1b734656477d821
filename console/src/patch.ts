/** JSON Patch (RFC 6902), as far as the broker's proposals use it: `add`, `remove` and `replace`. */

export type Operation = { op: "add" | "remove" | "replace"; path: string; value?: unknown };

/** The result of applying the operations to a value, which itself stays unchanged. */
export function patched(value: unknown, operations: Operation[]): unknown {
  return operations.reduce((before, operation) => changed(before, stepsOf(operation.path), operation), value);
}

function stepsOf(pointer: string): string[] {
  return pointer.split("/").slice(1).map((step) => step.replaceAll("~1", "/").replaceAll("~0", "~"));
}

function changed(value: unknown, steps: string[], operation: Operation): unknown {
  const [step, ...rest] = steps;
  if (step === undefined) return operation.value;
  if (Array.isArray(value)) return value.map((each, index) => (index === Number(step) ? changed(each, rest, operation) : each));
  const members = Object.entries(value as Record<string, unknown>);
  if (!rest.length && operation.op === "remove") return Object.fromEntries(members.filter(([name]) => name !== step));
  const found = members.some(([name]) => name === step);
  const after = members.map(([name, each]) => [name, name === step ? changed(each, rest, operation) : each]);
  return Object.fromEntries(found ? after : [...after, [step, operation.value]]);
}
