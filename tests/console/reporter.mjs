/** A reporter for Node's test runner: one line of JSON for each test. */

export default async function* lines(source) {
  for await (const { type, data } of source) {
    if (type === "test:pass" || type === "test:fail") {
      const error = data.details?.error;
      const why = error ? (error.cause?.stack ?? error.stack ?? String(error)) + "\n" + (error.cause?.message ?? "") : "";
      yield `${JSON.stringify({ name: data.name, passed: type === "test:pass", why })}\n`;
    }
  }
}
