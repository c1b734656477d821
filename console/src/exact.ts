/** JSON whose numbers keep all their digits: numbers of JavaScript have at most 17. */

type Raw = { rawJSON: string };
type Engine = {
  parse(text: string, reviver: (key: string, value: unknown, context?: { source?: string }) => unknown): unknown;
  rawJSON?(text: string): Raw;
  isRawJSON?(value: unknown): value is Raw;
};
// The compiler's types do not have these functions yet. In browsers without them, numbers are those of JavaScript.
const engine = JSON as unknown as Engine;

/** Parses JSON. `digitsOf` knows the digits of its numbers, and `JSON.stringify` writes them unchanged. */
export function exactly(text: string): unknown {
  return engine.parse(text, (_key, value, context) =>
    typeof value === "number" && context?.source && engine.rawJSON ? engine.rawJSON(context.source) : value,
  );
}

/** The digits of a parsed number, or `undefined` for any other value. */
export function digitsOf(value: unknown): string | undefined {
  return engine.isRawJSON?.(value) ? value.rawJSON : undefined;
}
