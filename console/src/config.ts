/** What the broker says about itself to its console, beside the API. */

import type { Issuer } from "./sign-in";

type Config = {
  /** Where tokens are issued; `null` if they are entered by hand. */
  sign_in: Issuer | null;
  /** Whether the broker answers queries with SQL. */
  queries?: boolean;
};

const NOTHING: Config = { sign_in: null };

export async function config(): Promise<Config> {
  const response = await fetch("config.json");
  return response.ok ? ((await response.json()) as Config) : NOTHING;
}
