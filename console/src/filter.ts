/** Conditions on events, such as `$.customer.id == "x"`. */

export type Condition = (event: unknown) => boolean;

const CONDITION = /^\s*(?<path>[$\w@][^\s=!<>~]*)\s*(?:(?<operator>==|!=|<=|>=|=|<|>|~)\s*(?<value>.+?)\s*)?$/s;
const STEP = /\.?(?<name>[\w@$-]+)|\[(?<index>\d+|\*)\]|\[(?:"(?<double>[^"]*)"|'(?<single>[^']*)')\]/y;

/** The condition in a text. Throws an error with the reason if the text is not a condition. */
export function condition(text: string): Condition {
  if (!text.trim()) return () => true;
  const all = text.split(/\s+(?:&&|and)\s+/).map(one);
  return (event) => all.every((each) => each(event));
}

function one(text: string): Condition {
  const { path, operator, value } = CONDITION.exec(text)?.groups ?? {};
  if (!path) throw new Error('Write a path and a comparison: $.order.total > 100, items[*].sku == "x", or a path alone');
  const steps = stepsOf(path);
  if (!operator || value === undefined) return (event) => valuesAt(event, steps).length > 0;
  if (operator === "~") {
    const pattern = new RegExp(String(literal(value)));
    return (event) => valuesAt(event, steps).some((found) => typeof found === "string" && pattern.test(found));
  }
  const wanted = literal(value);
  const fits = (found: unknown): boolean => {
    switch (operator) {
      case "=":
      case "==":
        return same(found, wanted);
      case "!=":
        return !same(found, wanted);
      default:
        return ordered(found, wanted, operator);
    }
  };
  // A missing field is not equal to any value.
  return (event) => {
    const found = valuesAt(event, steps);
    return found.length ? found.some(fits) : operator === "!=";
  };
}

function stepsOf(path: string): (string | number)[] {
  const steps: (string | number)[] = [];
  let at = path.startsWith("$") && /^\$(\.|\[|$)/.test(path) ? 1 : 0;
  while (at < path.length) {
    STEP.lastIndex = at;
    const step = STEP.exec(path)?.groups;
    if (!step) throw new Error(`${path} is no path: it goes wrong at ${path.slice(at)}`);
    at = STEP.lastIndex;
    const key = step.name ?? step.double ?? step.single;
    steps.push(key ?? (step.index === "*" ? "*" : Number(step.index)));
  }
  return steps;
}

function valuesAt(value: unknown, steps: (string | number)[]): unknown[] {
  let found = [value];
  for (const step of steps) {
    found = found.flatMap((each): unknown[] => {
      if (typeof each !== "object" || each === null) return [];
      if (step === "*" && Array.isArray(each)) return each;
      return Object.hasOwn(each, step) ? [(each as Record<string | number, unknown>)[step]] : [];
    });
  }
  return found;
}

function literal(text: string): unknown {
  const quoted = /^'(.*)'$/s.exec(text);
  if (quoted) return quoted[1];
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

const same = (a: unknown, b: unknown) => a === b || JSON.stringify(a) === JSON.stringify(b);

function ordered(a: unknown, b: unknown, operator: string): boolean {
  if (typeof a !== typeof b || (typeof a !== "number" && typeof a !== "string")) return false;
  const [x, y] = [a, b as typeof a];
  return operator === "<" ? x < y : operator === "<=" ? x <= y : operator === ">" ? x > y : x >= y;
}
