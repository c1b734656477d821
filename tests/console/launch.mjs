/** Finds and starts a browser, for tests with their own browser and for `serve_browser.mjs`. */

import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import { delimiter, join, resolve } from "node:path";

const root = resolve(import.meta.dirname, "../..");
export const installed = createRequire(join(root, "console", "package.json"));
export const { chromium } = installed("playwright-core");
export const screenshots = join(root, ".cache/console/screenshots");
const unpacked = join(root, ".cache/console/browser");

/** The browser's program: the one that the environment names, the one of the npm package, or the system's. */
function program() {
  const places = (process.env.PATH ?? "").split(delimiter);
  const named = ["chromium", "chromium-browser", "google-chrome"].flatMap((name) => places.map((at) => join(at, name)));
  const found = [process.env.CHROMIUM ?? "", join(unpacked, "chromium"), ...named].find((path) => path && existsSync(path));
  return found;
}

/** Whether the system lacks libraries, a copy of which came with the browser. */
function lacksLibraries(path) {
  try {
    return execFileSync("ldd", [path], { encoding: "utf8" }).includes("not found");
  } catch {
    return false;
  }
}

export const hasBrowser = program() !== undefined;

/** The options with which Playwright starts the browser. */
export function launchOptions() {
  mkdirSync(screenshots, { recursive: true });
  const executablePath = program();
  const libraries = lacksLibraries(executablePath) ? { LD_LIBRARY_PATH: join(unpacked, "al2023", "lib") } : {};
  return {
    executablePath,
    env: { ...process.env, ...libraries },
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--font-render-hinting=none"],
  };
}
