/** The values of a query's result as texts, and the columns that a plot can show. */

import { digitsOf } from "../../exact";

export type Column = { name: string; type: string };
export type Result = { columns: Column[]; rows: unknown[][]; cut: boolean; notes: string[]; seconds: number };

/** The indexes of the columns in a plot: times or names from left to right, and up to four columns of numbers. */
export type Drawable = { over: number; numbers: number[]; kind: "times" | "names" };

const NUMBER = /^(?:U?(?:TINY|SMALL|BIG|HUGE)INT|U?INTEGER|FLOAT|DOUBLE|DECIMAL\(.*\))$/;
const TIME = /^(?:TIMESTAMP.*|DATE)$/;
const PLACE = /^nakadi_(?:timeline|partition|offset)$/;
const MAX_LINES = 4;

export const isNumber = ({ type }: Column): boolean => NUMBER.test(type);

/** The value as text. Lists and objects are JSON. */
export function textOf(value: unknown): string {
  if (typeof value === "string") return value;
  return digitsOf(value) ?? JSON.stringify(value);
}

/** A number for a plot, for which the precision of JavaScript suffices. */
export function numberOf(value: unknown): number | undefined {
  const number = Number(digitsOf(value) ?? (typeof value === "number" ? value : NaN));
  return Number.isFinite(number) ? number : undefined;
}

/**
 * The plot of a result: numbers over the first column of times, or otherwise over the first column of names, or otherwise
 * over the first column of numbers. The place of an event is not a number to show.
 */
export function drawable({ columns, rows }: Result): Drawable | undefined {
  const first = (fits: (column: Column) => boolean) => columns.findIndex(fits);
  const times = first(({ type }) => TIME.test(type));
  const names = first(({ type }) => type === "VARCHAR" || type === "BOOLEAN");
  const over = [times, names, first(isNumber)].find((at) => at >= 0);
  const numbers = columns.flatMap((column, at) => (isNumber(column) && !PLACE.test(column.name) && at !== over ? [at] : []));
  if (over === undefined || !numbers.length || rows.length < 2) return undefined;
  return over === times ? { over, numbers: numbers.slice(0, MAX_LINES), kind: "times" } : { over, numbers: numbers.slice(0, 1), kind: "names" };
}
