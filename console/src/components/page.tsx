/** The header of a page, tabs, and other parts that pages share. */

import type { ComponentChildren } from "preact";

export type PageProps = {
  /** The parts of the address in the places of `:name` and `:id`, in order. */
  names: string[];
  query: URLSearchParams;
};

export function PageHead({ title, above, children }: {
  title: ComponentChildren;
  above?: ComponentChildren;
  children?: ComponentChildren;
}) {
  return (
    <header class="head">
      <div>
        {above && <p class="above">{above}</p>}
        <h1>{title}</h1>
      </div>
      <div class="actions">{children}</div>
    </header>
  );
}

/** Tabs are links: each has an address. */
export function Tabs({ label, tabs }: { label: string; tabs: { text: string; to: string; current: boolean; alert?: string | undefined }[] }) {
  return (
    <nav class="tabs" aria-label={label}>
      {tabs.map((tab) => (
        <a key={tab.to} href={tab.to} aria-current={tab.current ? "page" : undefined}>
          {tab.text}{tab.alert && <> <span class="error">{tab.alert}</span></>}
        </a>
      ))}
    </nav>
  );
}

/** A list of names and values. A name without a value is left out. */
export function Facts({ facts }: { facts: [name: string, value: ComponentChildren][] }) {
  return (
    <dl class="facts">
      {facts.filter(([, value]) => value !== undefined && value !== null && value !== "").map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

export function Chips({ of }: { of: Record<string, unknown> | null | undefined }) {
  return (
    <>
      {Object.entries(of ?? {}).map(([name, value]) => (
        <span key={name} class="chip" title={`${name}=${value ?? ""}`}>{value ? `${name}=${value}` : name}</span>
      ))}
    </>
  );
}
