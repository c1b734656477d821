/** Sign-in at an issuer of tokens, by OIDC: the authorization code flow with PKCE. */

import { problemFrom, signIn } from "./api";
import { config } from "./config";

export type Issuer = { authorize: string; token: string; client: string; scope?: string };

// The key of the values that `finish` needs after the browser returns from the issuer.
const UNDER_WAY = "nakadi.sign-in";
// The key of the refresh token and the time at which to use it.
const RENEWAL = "nakadi.renewal";
// How long before its expiration a token is renewed, in milliseconds.
const EARLY = 30_000;

const here = () => location.origin + location.pathname;

/** The issuer that the operator has configured, or `null` if users enter tokens by hand. */
export async function issuer(): Promise<Issuer | null> {
  return (await config()).sign_in;
}

const text = (bytes: Uint8Array) => btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
const random = () => text(crypto.getRandomValues(new Uint8Array(32)));

/** Sends the browser to the issuer, which sends it back to this page. */
export async function begin(at: Issuer): Promise<void> {
  const [state, verifier] = [random(), random()];
  sessionStorage.setItem(UNDER_WAY, JSON.stringify({ state, verifier, hash: location.hash }));
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier));
  const query = new URLSearchParams({
    response_type: "code",
    client_id: at.client,
    redirect_uri: here(),
    scope: at.scope ?? "openid",
    state,
    code_challenge: text(new Uint8Array(digest)),
    code_challenge_method: "S256",
  });
  location.assign(`${at.authorize}?${query}`);
}

/** Completes a sign-in after the browser returns from the issuer. Returns why it failed, or an empty text. */
export async function finish(): Promise<string> {
  const query = new URLSearchParams(location.search);
  if (!query.has("state")) {
    renewInTime();
    return "";
  }
  const begun = JSON.parse(sessionStorage.getItem(UNDER_WAY) ?? "{}") as { state?: string; verifier?: string; hash?: string };
  sessionStorage.removeItem(UNDER_WAY);
  history.replaceState(null, "", here() + (begun.hash ?? ""));
  // Without this check, another website could sign in a user as somebody else.
  if (!begun.state || begun.state !== query.get("state")) return "The sign-in began in another tab.";
  const code = query.get("code");
  if (!code) return query.get("error_description") ?? query.get("error") ?? "The issuer sent no code.";
  try {
    const at = await issuer();
    if (!at) return "No issuer is configured.";
    await exchange(at, { grant_type: "authorization_code", code, redirect_uri: here(), code_verifier: begun.verifier ?? "" });
    return "";
  } catch (error) {
    return problemFrom(error).message;
  }
}

async function exchange(at: Issuer, grant: Record<string, string>): Promise<void> {
  const body = new URLSearchParams({ ...grant, client_id: at.client });
  const response = await fetch(at.token, { method: "POST", body });
  const answer = (await response.json().catch(() => ({}))) as {
    access_token?: string;
    refresh_token?: string;
    expires_in?: number;
    error_description?: string;
  };
  if (!response.ok || !answer.access_token) throw new Error(answer.error_description ?? "The issuer gave no token.");
  signIn(answer.access_token, grant.grant_type === "refresh_token");
  const refresh = answer.refresh_token ?? grant.refresh_token;
  if (refresh && answer.expires_in) {
    sessionStorage.setItem(RENEWAL, JSON.stringify({ refresh, at: Date.now() + answer.expires_in * 1000 - EARLY }));
    renewInTime();
  }
}

let timer: ReturnType<typeof setTimeout> | undefined;

/** Gets a new token before the present one expires. If that fails, the broker's refusal leads to a new sign-in. */
function renewInTime(): void {
  clearTimeout(timer);
  const stored = sessionStorage.getItem(RENEWAL);
  if (!stored) return;
  const { refresh, at } = JSON.parse(stored) as { refresh: string; at: number };
  timer = setTimeout(async () => {
    sessionStorage.removeItem(RENEWAL);
    const from = await issuer();
    if (from) await exchange(from, { grant_type: "refresh_token", refresh_token: refresh }).catch(() => undefined);
  }, Math.max(0, at - Date.now()));
}

export function forget(): void {
  clearTimeout(timer);
  sessionStorage.removeItem(RENEWAL);
}
