/** Lines over time, drawn as SVG. Each plot has its latest values as text, for users who cannot see it. */

import { moment } from "../format";
import "./plot.css";

export type Point = { at: number; value: number };
export type Line = { name: string; points: Point[] };

const WIDTH = 600;
const HEIGHT = 120;

/** A line without axes, for a table cell. */
export function Sparkline({ label, points }: { label: string; points: Point[] }) {
  const [first] = points;
  const last = points.at(-1);
  if (!first || !last || first === last) return <span class="faint">–</span>;
  return (
    <svg class="spark" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={label}>
      <path d={path(points, first.at, last.at, largest([points]))} />
    </svg>
  );
}

/** Some lines with a common scale, from `from` to `to`. Points are not connected over gaps longer than `gap`. */
export function Plot({ title, lines, from, to, gap = 60_000, shown }: {
  title: string;
  lines: Line[];
  from: number;
  to: number;
  /** In milliseconds. The default is a minute. */
  gap?: number;
  /** A value as text, with its unit. */
  shown: (value: number) => string;
}) {
  const values = lines.map((line) => line.points);
  const [top, bottom] = [largest(values), smallest(values)];
  const [first, end] = [from, to].map((at) => moment(new Date(at).toISOString()).slice(0, 16)) as [string, string];
  // The day is shown only if it changes.
  const edge = (text: string) => (first.slice(0, 10) === end.slice(0, 10) ? text.slice(11) : text);
  const last = lines.map(({ name, points }) => {
    const latest = points.at(-1);
    return `${name}: ${latest ? shown(latest.value) : "–"}`;
  });
  return (
    <figure class="plot card">
      <figcaption>
        <span>{title}</span>
        {last.map((text, at) => <span key={text} class={`key line-${at}`}>{text}</span>)}
      </figcaption>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img"
        aria-label={`${title}. ${last.join(", ")}. At most ${shown(top)}.`}>
        {lines.map(({ name, points }, at) => <path key={name} class={`line-${at}`} d={path(points, from, to, top, gap, bottom)} />)}
      </svg>
      <div class="scale" aria-hidden="true">
        <span>{edge(first)}</span>
        <span>{bottom < 0 && `at least ${shown(bottom)}, `}at most {shown(top)}</span>
        <span>{edge(end)}</span>
      </div>
    </figure>
  );
}

function largest(lines: Point[][]): number {
  return lines.flat().reduce((most, { value }) => Math.max(most, value), 0);
}

/** The smallest value, if it is below zero. */
function smallest(lines: Point[][]): number {
  return lines.flat().reduce((least, { value }) => Math.min(least, value), 0);
}

function path(points: Point[], from: number, to: number, top: number, gap = 60_000, bottom = 0): string {
  const x = (at: number) => (((at - from) / Math.max(1, to - from)) * WIDTH).toFixed(1);
  const y = (value: number) => (HEIGHT - 2 - ((value - bottom) / (top - bottom || 1)) * (HEIGHT - 4)).toFixed(1);
  return points
    .map(({ at, value }, index) => {
      const before = points[index - 1];
      const follows = before && at - before.at < gap;
      return `${follows ? "L" : "M"}${x(at)} ${y(value)}`;
    })
    .join("");
}
