/** JSON whose numbers keep the digits that they were written with: JavaScript's have seventeen at most. */

type Raw = { rawJSON: string };
type Engine = {
  parse(text: string, reviver: (key: string, value: unknown, context?: { source?: string }) => unknown): unknown;
  rawJSON?(text: string): Raw;
  isRawJSON?(value: unknown): value is Raw;
};
// Younger than the types of the compiler; in older browsers numbers are as exact as JavaScript's.
const engine = JSON as unknown as Engine;

/** Parses a text, with its numbers as what `digitsOf` knows and `JSON.stringify` writes. */
export function exactly(text: string): unknown {
  return engine.parse(text, (_key, value, context) =>
    typeof value === "number" && context?.source && engine.rawJSON ? engine.rawJSON(context.source) : value,
  );
}

/** How a number was written; nothing of any other value. */
export function digitsOf(value: unknown): string | undefined {
  return engine.isRawJSON?.(value) ? value.rawJSON : undefined;
}
