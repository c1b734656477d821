/** The result of a query: its values as people read them, and what of it can be drawn. */

import { digitsOf } from "../../exact";

export type Column = { name: string; type: string };
export type Result = { columns: Column[]; rows: unknown[][]; cut: boolean; notes: string[]; seconds: number };

/** The numbers of the columns that a plot shows: times or names from left to right, and up to four columns of numbers. */
export type Drawable = { over: number; numbers: number[]; kind: "times" | "names" };

const NUMBER = /^(?:U?(?:TINY|SMALL|BIG|HUGE)INT|U?INTEGER|FLOAT|DOUBLE|DECIMAL\(.*\))$/;
const TIME = /^(?:TIMESTAMP.*|DATE)$/;
const MAX_LINES = 4;

export const isNumber = ({ type }: Column): boolean => NUMBER.test(type);

/** The value as text; a list or an object as JSON. */
export function textOf(value: unknown): string {
  if (typeof value === "string") return value;
  return digitsOf(value) ?? JSON.stringify(value);
}

/** A number for a plot, which needs no more digits than JavaScript has. */
export function numberOf(value: unknown): number | undefined {
  const number = Number(digitsOf(value) ?? (typeof value === "number" ? value : NaN));
  return Number.isFinite(number) ? number : undefined;
}

/** What to draw of a result: numbers over the first column of times, or else over the first one of names. */
export function drawable({ columns, rows }: Result): Drawable | undefined {
  const numbers = columns.flatMap((column, at) => (isNumber(column) ? [at] : []));
  const times = columns.findIndex(({ type }) => TIME.test(type));
  const names = columns.findIndex(({ type }) => type === "VARCHAR" || type === "BOOLEAN");
  if (!numbers.length || rows.length < 2) return undefined;
  if (times >= 0) return { over: times, numbers: numbers.slice(0, MAX_LINES), kind: "times" };
  return names >= 0 ? { over: names, numbers: numbers.slice(0, 1), kind: "names" } : undefined;
}
