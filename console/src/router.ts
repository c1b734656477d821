/** Addresses: each view of the console has an address after the `#`, so that users can share it and return to it. */

import { useEffect, useState } from "preact/hooks";

export type Route = { path: string[]; query: URLSearchParams };

function current(): Route {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s, 2);
  return { path: path.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(query) };
}

function decoded(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

/** The address of a page: `href(["event-types", name], {tab: "schema"})`. Empty values are left out. */
export function href(path: string[], query: Record<string, string | undefined> = {}): string {
  const given = Object.entries(query).filter((entry): entry is [string, string] => !!entry[1]);
  const text = new URLSearchParams(given).toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

export function go(to: string): void {
  location.hash = to;
}

/** Changes the address without a new entry in the history, for example while somebody types into a filter. */
export function replaceQuery(changes: Record<string, string | undefined>): void {
  const { path, query } = current();
  const merged = { ...Object.fromEntries(query), ...changes };
  history.replaceState(null, "", href(path, merged));
  dispatchEvent(new HashChangeEvent("hashchange"));
}

export function useRoute(): Route {
  const [route, setRoute] = useState(current);
  useEffect(() => {
    const changed = () => setRoute(current());
    addEventListener("hashchange", changed);
    // The address may have changed after the first rendering.
    changed();
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}
