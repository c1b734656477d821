/** A bar for each name, with its value as text. */

import "./bars.css";

export type Bar = { name: string; value: number; shown: string };

const WIDTH = 100;

export function Bars({ title, bars }: { title: string; bars: Bar[] }) {
  const top = bars.reduce((most, { value }) => Math.max(most, Math.abs(value)), 0) || 1;
  return (
    <figure class="bars card">
      <figcaption>{title}</figcaption>
      <ul>
        {bars.map(({ name, value, shown }, at) => (
          <li key={at}>
            <span class="name" title={name}>{name}</span>
            <svg viewBox={`0 0 ${WIDTH} 1`} preserveAspectRatio="none" aria-hidden="true">
              <rect class={value < 0 ? "below" : ""} width={((Math.abs(value) / top) * WIDTH).toFixed(2)} height="1" />
            </svg>
            <span class="value">{shown}</span>
          </li>
        ))}
      </ul>
    </figure>
  );
}
