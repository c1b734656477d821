/** The public API, typed by the broker's own description of it. The console has no other way to the broker. */

import createClient, { type Middleware } from "openapi-fetch";
import { useCallback, useEffect, useState } from "preact/hooks";
import type { components, paths } from "./openapi";

export type Schemas = components["schemas"];
export type EventType = Schemas["EventType"];
export type Subscription = Schemas["Subscription"];

/** Where the API is: one level above the console. */
export const address = new URL("..", document.baseURI.split("#")[0]).href.replace(/\/$/, "");

/** An answer that says why not. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly title: string,
    readonly detail: string,
    readonly flowId: string,
    readonly body: unknown = undefined,
  ) {
    super(detail || title);
  }
}

// The token is kept for as long as the tab is open, and not shared with others.
const TOKEN = "nakadi.token";

export function token(): string {
  return sessionStorage.getItem(TOKEN) ?? "";
}

/** A token that only takes the place of one that is about to expire changes nothing of what is shown. */
export function signIn(given: string, renewed = false): void {
  sessionStorage.setItem(TOKEN, given.trim().replace(/^Bearer\s+/i, ""));
  if (renewed) return;
  dispatchEvent(new Event("nakadi.signed"));
}

export function signOut(): void {
  sessionStorage.removeItem(TOKEN);
  dispatchEvent(new Event("nakadi.signed"));
}

/** Every request has the token, if there is one; a refused token asks for another one. */
export async function send(request: Request): Promise<Response> {
  if (token()) request.headers.set("Authorization", `Bearer ${token()}`);
  let response: Response;
  try {
    response = await fetch(request);
  } catch (error) {
    if (request.signal.aborted) throw error;
    throw new Problem(0, "The broker does not answer", "The broker cannot be reached. Is it running?", "");
  }
  if (response.status === 401) dispatchEvent(new Event("nakadi.refused"));
  return response;
}

const failing: Middleware = {
  async onResponse({ response }) {
    if (!response.ok) throw await problemOf(response);
  },
};

export const api = createClient<paths>({ baseUrl: address, fetch: send });
api.use(failing);

export async function problemOf(response: Response): Promise<Problem> {
  const text = await response.text();
  const flowId = response.headers.get("x-flow-id") ?? "";
  try {
    const body = JSON.parse(text) as Partial<Schemas["Problem"]>;
    return new Problem(response.status, body.title ?? response.statusText, body.detail ?? "", flowId, body);
  } catch {
    return new Problem(response.status, response.statusText || `Status ${response.status}`, text.slice(0, 500), flowId);
  }
}

/** Whatever went wrong, in the shape that pages show. */
export function problemFrom(error: unknown): Problem {
  if (error instanceof Problem) return error;
  return new Problem(0, "The console failed", error instanceof Error ? error.message : String(error), "");
}

export type Loaded<T> = { data?: T; problem?: Problem; loading: boolean; reload: () => void };

// What long lists were when they were last seen, by their names.
const kept = new Map<string, unknown>();
addEventListener("nakadi.signed", () => kept.clear());

/** Loads when the page opens, when `inputs` change, and then every so many milliseconds while the tab is seen.
 *
 * What is loaded under the name `keep` is shown at once when the page is opened again, while it is loaded anew. What comes
 * in parts can be shown before it is whole, by `soFar`.
 */
export function useLoad<T>(
  load: (signal: AbortSignal, soFar: (data: T) => void) => Promise<T>, inputs: unknown[], every = 0, keep = "",
): Loaded<T> {
  const before = kept.get(keep) as T | undefined;
  const [state, setState] = useState<{ data?: T; problem?: Problem; loading: boolean }>({ data: before, loading: true });
  const [round, setRound] = useState(0);
  const reload = useCallback(() => setRound((n) => n + 1), []);
  // What belongs to other inputs is not shown while new data is on its way.
  useEffect(() => setState({ data: kept.get(keep) as T | undefined, loading: true }), inputs);
  useEffect(() => {
    const stopping = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const again = () => {
      if (every && !stopping.signal.aborted) timer = setTimeout(work, every);
    };
    const work = async () => {
      if (document.hidden && every) return again();
      try {
        const data = await load(stopping.signal, (part) => {
          if (!stopping.signal.aborted && !kept.has(keep)) setState({ data: part, loading: true });
        });
        if (keep) kept.set(keep, data);
        if (!stopping.signal.aborted) setState({ data, loading: false });
      } catch (error) {
        if (!stopping.signal.aborted) setState((old) => ({ ...old, problem: problemFrom(error), loading: false }));
      }
      again();
    };
    void work();
    return () => {
      stopping.abort();
      clearTimeout(timer);
    };
  }, [...inputs, round]);
  return { ...state, reload };
}

// The first part is small, so that there is something to see at once.
const FIRST = 200;
const PART = 1000;

/** All event types, part after part; a list without parts is known by being longer than what was asked for. */
export async function allEventTypes(signal: AbortSignal, soFar: (types: EventType[]) => void): Promise<EventType[]> {
  const found: EventType[] = [];
  for (let limit = FIRST; ; limit = PART) {
    const query = { limit, after: found.at(-1)?.name };
    const part = await body(api.GET("/event-types", { params: { query }, signal }));
    found.push(...part);
    if (part.length !== limit) return found;
    soFar([...found]);
  }
}

/** The body of a successful call. */
export async function body<T>(call: Promise<{ data?: T }>): Promise<T> {
  return (await call).data as T;
}
