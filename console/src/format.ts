/** Numbers, times and sizes as readable texts. */

export const count = (value: number): string => value.toLocaleString("en");

export function bytes(value: number): string {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  for (; value >= 1000 && unit < units.length - 1; unit++) value /= 1000;
  return `${value < 10 && unit ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

export function duration(milliseconds: number): string {
  const steps: [number, string][] = [[86_400_000, "day"], [3_600_000, "hour"], [60_000, "minute"], [1000, "second"]];
  for (const [length, name] of steps) {
    if (milliseconds >= length) {
      const number = Math.round((milliseconds / length) * 10) / 10;
      return `${number} ${name}${number === 1 ? "" : "s"}`;
    }
  }
  return `${Math.round(milliseconds)} ms`;
}

/** A time in the browser's time zone, such as `2026-03-01 14:05:09`. */
export function moment(text: string | undefined | null): string {
  if (!text) return "";
  const date = new Date(text);
  return Number.isNaN(date.getTime()) ? text : date.toLocaleString("sv");
}

export const plural = (number: number, one: string, many = `${one}s`): string =>
  `${count(number)} ${number === 1 ? one : many}`;
