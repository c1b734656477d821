/** JSON as a tree. Users open and close its branches. */

import { useState } from "preact/hooks";
import { digitsOf } from "../exact";

// Long lists are drawn in parts.
const MOST = 200;

export function Tree({ value, name, depth = 0, open = 2 }: {
  value: unknown;
  name?: string;
  depth?: number;
  /** How many levels are open at first. */
  open?: number;
}) {
  const [most, setMost] = useState(MOST);
  const label = name === undefined ? null : <span class="key">{name}: </span>;
  if (typeof value !== "object" || value === null || digitsOf(value) !== undefined) {
    return (
      <div class="leaf">
        {label}
        <Scalar value={value} />
      </div>
    );
  }
  const entries = Object.entries(value);
  const [opening, closing] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  if (!entries.length) {
    return (
      <div class="leaf">
        {label}
        {opening}{closing}
      </div>
    );
  }
  return (
    <details class="branch" open={depth < open}>
      <summary>
        {label}
        {opening} <span class="faint">{entries.length}</span> {closing}
      </summary>
      <div class="children">
        {entries.slice(0, most).map(([key, child]) => (
          <Tree key={key} name={key} value={child} depth={depth + 1} open={open} />
        ))}
        {entries.length > most && (
          <button type="button" class="quiet" onClick={() => setMost(most + MOST)}>
            Show more of {entries.length - most}
          </button>
        )}
      </div>
    </details>
  );
}

function Scalar({ value }: { value: unknown }) {
  const kind = value === null ? "null" : digitsOf(value) !== undefined ? "number" : typeof value;
  return <span class={`value ${kind}`}>{JSON.stringify(value) ?? "undefined"}</span>;
}
