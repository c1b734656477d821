/** Two kinds of tables: a simple one for a few rows, and one for thousands, which draws only the visible rows. */

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

export type Column<T> = {
  title: string;
  cell: (row: T) => ComponentChildren;
  /** The value that orders the rows. Rows cannot be ordered by a column without it. */
  order?: (row: T) => string | number;
  /** Whether the first click orders from the highest value to the lowest. */
  downFirst?: boolean;
  /** The width of the column in a CSS grid, such as `2fr` or `8rem`. */
  width?: string;
  right?: boolean;
  /** Whether narrow windows leave out the column. */
  wide?: boolean;
};

export type Sorting = { by: string; down: boolean };

export function sorted<T>(rows: T[], columns: Column<T>[], { by, down }: Sorting): T[] {
  const order = columns.find((column) => column.title === by)?.order;
  if (!order) return rows;
  const sign = down ? -1 : 1;
  const keyed = rows.map((row) => [order(row), row] as const);
  keyed.sort(([a], [b]) => (a < b ? -sign : a > b ? sign : 0));
  return keyed.map(([, row]) => row);
}

const classes = <T,>(column: Column<T>): string =>
  [column.right ? "right" : "", column.wide ? "wide" : ""].join(" ").trim();

export function Table<T>({ label, rows, columns }: { label: string; rows: T[]; columns: Column<T>[] }) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={label}>
      <table>
        <thead>
          <tr>{columns.map((column) => <th scope="col" class={classes(column)}>{column.title}</th>)}</tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr>{columns.map((column) => <td class={classes(column)}>{column.cell(row)}</td>)}</tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

const ROW = 38;
// How many rows are drawn beyond the edges, so that scrolling does not show empty space.
const MARGIN = 8;

export function VirtualTable<T>({ label, rows, columns, rowKey, sorting, onSort, chosen }: {
  label: string;
  rows: T[];
  columns: Column<T>[];
  rowKey: (row: T) => string;
  sorting?: Sorting;
  onSort?: (sorting: Sorting) => void;
  /** The key of the highlighted row. */
  chosen?: string;
}) {
  const box = useRef<HTMLDivElement>(null);
  const { top, height, narrow } = useSight(box);
  const shown = narrow ? columns.filter((column) => !column.wide) : columns;
  const tracks = shown.map((column) => column.width ?? "minmax(0, 1fr)").join(" ");
  const first = Math.max(0, Math.floor(top / ROW) - MARGIN);
  const last = Math.min(rows.length, Math.ceil((top + height) / ROW) + MARGIN);
  return (
    <div class="virtual" ref={box} tabIndex={0} role="table" aria-label={label} aria-rowcount={rows.length + 1}>
      <div role="rowgroup" class="head">
        <div role="row" aria-rowindex={1} style={{ gridTemplateColumns: tracks }}>
          {shown.map((column) => {
            const by = sorting?.by === column.title;
            return (
              <div role="columnheader" class={column.right ? "right" : ""}
                aria-sort={by ? (sorting.down ? "descending" : "ascending") : undefined}>
                {column.order && onSort ? (
                  <button type="button" class="sort"
                    onClick={() => onSort({ by: column.title, down: by ? !sorting.down : !!column.downFirst })}>
                    {column.title}
                    <span aria-hidden="true">{by ? (sorting.down ? " ↓" : " ↑") : ""}</span>
                  </button>
                ) : column.title}
              </div>
            );
          })}
        </div>
      </div>
      <div role="rowgroup" class="rows" style={{ height: `${rows.length * ROW}px` }}>
        {rows.slice(first, last).map((row, at) => (
          <div role="row" key={rowKey(row)} aria-rowindex={first + at + 2} aria-current={rowKey(row) === chosen || undefined}
            style={{ gridTemplateColumns: tracks, top: `${(first + at) * ROW}px`, height: `${ROW}px` }}>
            {shown.map((column) => (
              <div role="cell" class={column.right ? "right" : ""}>{column.cell(row)}</div>
            ))}
          </div>
        ))}
      </div>
    </div>
  );
}

/** The scroll position and height of an element, and whether the window is as narrow as that of a phone. */
function useSight(box: { current: HTMLElement | null }) {
  const [sight, setSight] = useState({ top: 0, height: 600, narrow: innerWidth < 700 });
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    let drawn = 0;
    const look = () => {
      cancelAnimationFrame(drawn);
      drawn = requestAnimationFrame(() =>
        setSight({ top: element.scrollTop, height: element.clientHeight, narrow: innerWidth < 700 }),
      );
    };
    const resizes = new ResizeObserver(look);
    resizes.observe(element);
    element.addEventListener("scroll", look, { passive: true });
    return () => {
      cancelAnimationFrame(drawn);
      resizes.disconnect();
      element.removeEventListener("scroll", look);
    };
  }, []);
  return sight;
}
