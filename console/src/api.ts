/** The public API, with types from the broker's OpenAPI description. */

import createClient, { type Middleware } from "openapi-fetch";
import { useCallback, useEffect, useState } from "preact/hooks";
import type { components, paths } from "./openapi";

export type Schemas = components["schemas"];
export type EventType = Schemas["EventType"];
export type Subscription = Schemas["Subscription"];

/** Where the API is: one level above the console. */
export const address = new URL("..", document.baseURI.split("#")[0]).href.replace(/\/$/, "");

/** A response by which the broker refuses a request, and the reason. */
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

// The token is kept as long as the tab is open, and is not shared with other tabs.
const TOKEN = "nakadi.token";

export function token(): string {
  return sessionStorage.getItem(TOKEN) ?? "";
}

/** Stores a token. Pages load their data again, unless the token only replaces one of the same user (`renewed`). */
export function signIn(given: string, renewed = false): void {
  sessionStorage.setItem(TOKEN, given.trim().replace(/^Bearer\s+/i, ""));
  if (renewed) return;
  dispatchEvent(new Event("nakadi.signed"));
}

export function signOut(): void {
  sessionStorage.removeItem(TOKEN);
  dispatchEvent(new Event("nakadi.signed"));
}

/** Sends a request with the token, if there is one. If the broker refuses the token, the console asks for a new one. */
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

/** An error of any kind as the `Problem` that pages show. */
export function problemFrom(error: unknown): Problem {
  if (error instanceof Problem) return error;
  return new Problem(0, "The console failed", error instanceof Error ? error.message : String(error), "");
}

export type Loaded<T> = { data?: T; problem?: Problem; loading: boolean; reload: () => void };

// The last contents of long lists, by the name of the list.
const kept = new Map<string, unknown>();
addEventListener("nakadi.signed", () => kept.clear());

/** Loads data when the page opens, when `inputs` change, and then each `every` milliseconds while the tab is visible.
 *
 * With a name in `keep`, the last data under this name is shown when the page is opened again, until new data is there.
 * If `load` gets data in parts, it shows what it has by `soFar`.
 */
export function useLoad<T>(
  load: (signal: AbortSignal, soFar: (data: T) => void) => Promise<T>, inputs: unknown[], every = 0, keep = "",
): Loaded<T> {
  const before = kept.get(keep) as T | undefined;
  const [state, setState] = useState<{ data?: T; problem?: Problem; loading: boolean }>({ data: before, loading: true });
  const [round, setRound] = useState(0);
  const reload = useCallback(() => setRound((n) => n + 1), []);
  // Data of earlier inputs is not shown while new data is loaded.
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

// The first part is small, so that the first rows appear quickly.
const FIRST = 200;
const PART = 1000;

/** All event types, loaded part by part. A part with fewer or more event types than its limit is the last one. */
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

/** The body of the response to a successful call. */
export async function body<T>(call: Promise<{ data?: T }>): Promise<T> {
  return (await call).data as T;
}
