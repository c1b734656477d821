/** The differences between two versions of a document: the changed paths, and the lines of both versions. */

import { changes, type Line, lines } from "../difference";

const laidOut = (value: unknown) => JSON.stringify(value, null, 2);

export function Difference({ before, after }: { before: unknown; after: unknown }) {
  const found = changes(before, after);
  if (!found.length) return <p class="faint">They are identical.</p>;
  return (
    <>
      <ul class="changes">
        {found.map(({ path, kind, before: old, after: now }) => (
          <li key={path}>
            <code>{path}</code> {kind}
            {kind === "changed" && <>: <code>{short(old)}</code> became <code>{short(now)}</code></>}
          </li>
        ))}
      </ul>
      <pre class="difference" tabIndex={0} aria-label="Difference by lines">
        {folded(lines(laidOut(before), laidOut(after))).map((line, at) => (
          <div key={at} class={line.sign === "+" ? "added" : line.sign === "-" ? "removed" : ""}>
            {line.sign} {line.text}
          </div>
        ))}
      </pre>
    </>
  );
}

function short(value: unknown): string {
  const text = JSON.stringify(value) ?? "";
  return text.length > 80 ? `${text.slice(0, 80)}…` : text;
}

// How many lines before and after a change are shown.
const AROUND = 3;

function folded(all: Line[]): Line[] {
  const near = new Set<number>();
  all.forEach((line, at) => {
    if (line.sign !== " ") for (let each = at - AROUND; each <= at + AROUND; each++) near.add(each);
  });
  return all.flatMap((line, at) => {
    if (near.has(at)) return [line];
    return near.has(at - 1) || at === 0 ? [{ sign: " " as const, text: "⋯" }] : [];
  });
}
