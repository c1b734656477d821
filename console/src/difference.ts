/** The differences between two JSON documents, by path and by line. */

export type Change = { path: string; kind: "added" | "removed" | "changed"; before?: unknown; after?: unknown };

/** Changes by path, in the order of the documents: `#/properties/price/type`. */
export function changes(before: unknown, after: unknown, path = "#"): Change[] {
  if (JSON.stringify(before) === JSON.stringify(after)) return [];
  if (!isObject(before) || !isObject(after)) return [{ path, kind: "changed", before, after }];
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])];
  return names.flatMap((name): Change[] => {
    const at = `${path}/${name.replaceAll("~", "~0").replaceAll("/", "~1")}`;
    if (!(name in before)) return [{ path: at, kind: "added", after: after[name] }];
    if (!(name in after)) return [{ path: at, kind: "removed", before: before[name] }];
    return changes(before[name], after[name], at);
  });
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

export type Line = { sign: " " | "+" | "-"; text: string };

// With more lines, the table of common lines would take too much memory.
const MOST_LINES = 3000;

/** The lines of both texts, with a sign for each line that only one of them has. */
export function lines(before: string, after: string): Line[] {
  const old = before.split("\n");
  const now = after.split("\n");
  let head = 0;
  while (head < old.length && head < now.length && old[head] === now[head]) head++;
  let tail = 0;
  while (tail < old.length - head && tail < now.length - head && old.at(-1 - tail) === now.at(-1 - tail)) tail++;
  const same = (texts: string[]): Line[] => texts.map((text) => ({ sign: " ", text }));
  const middle = [old.slice(head, old.length - tail), now.slice(head, now.length - tail)] as const;
  return [...same(old.slice(0, head)), ...between(...middle), ...same(tail ? old.slice(-tail) : [])];
}

function between(old: string[], now: string[]): Line[] {
  const removed = (): Line[] => old.map((text) => ({ sign: "-", text }));
  const added = (): Line[] => now.map((text) => ({ sign: "+", text }));
  if (old.length > MOST_LINES || now.length > MOST_LINES) return [...removed(), ...added()];
  // For each pair of positions: how many lines both texts have in common from there to their ends.
  const width = now.length + 1;
  const common = new Uint16Array((old.length + 1) * width);
  const at = (i: number, j: number) => common[i * width + j] ?? 0;
  for (let i = old.length - 1; i >= 0; i--) {
    for (let j = now.length - 1; j >= 0; j--) {
      common[i * width + j] = old[i] === now[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
    }
  }
  const found: Line[] = [];
  let i = 0;
  let j = 0;
  while (i < old.length || j < now.length) {
    if (i < old.length && j < now.length && old[i] === now[j]) {
      found.push({ sign: " ", text: old[i++]! });
      j++;
    } else if (j >= now.length || (i < old.length && at(i + 1, j) >= at(i, j + 1))) {
      found.push({ sign: "-", text: old[i++]! });
    } else {
      found.push({ sign: "+", text: now[j++]! });
    }
  }
  return found;
}
