/** The broker's configuration for its console, which is not a part of the API. */

import type { Issuer } from "./sign-in";

type Config = {
  /** The issuer of tokens, or `null` if users enter tokens by hand. */
  sign_in: Issuer | null;
  /** Whether the broker answers queries with SQL. */
  queries?: boolean;
};

const NOTHING: Config = { sign_in: null };

export async function config(): Promise<Config> {
  const response = await fetch("config.json");
  return response.ok ? ((await response.json()) as Config) : NOTHING;
}
