/** A browser for the tests of the console, and what they say to it and to the broker. */

import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import { delimiter, join, resolve } from "node:path";
import { after, before, test as nodeTest } from "node:test";
import assert from "node:assert/strict";

const root = resolve(import.meta.dirname, "../..");
const installed = createRequire(join(root, "console", "package.json"));
const { chromium } = installed("playwright-core");
const axe = installed.resolve("axe-core/axe.min.js");

/** Where the broker is, and a token for it if it wants one. */
export const broker = process.env.BROKER;
export const token = process.env.TOKEN ?? "";
export const screenshots = join(root, ".cache/console/screenshots");
const unpacked = join(root, ".cache/console/browser");

/** The program: one that the environment names, the one of the npm package, or the system's. */
function program() {
  const places = (process.env.PATH ?? "").split(delimiter);
  const named = ["chromium", "chromium-browser", "google-chrome"].flatMap((name) => places.map((at) => join(at, name)));
  const found = [process.env.CHROMIUM ?? "", join(unpacked, "chromium"), ...named].find((path) => path && existsSync(path));
  return found;
}

/** Whether libraries are missing; a copy of them came with the browser. */
function lacksLibraries(path) {
  try {
    return execFileSync("ldd", [path], { encoding: "utf8" }).includes("not found");
  } catch {
    return false;
  }
}

export const hasBrowser = program() !== undefined;

let browser;
before(async () => {
  mkdirSync(screenshots, { recursive: true });
  const executablePath = program();
  const libraries = lacksLibraries(executablePath) ? { LD_LIBRARY_PATH: join(unpacked, "al2023", "lib") } : {};
  browser = await chromium.launch({
    executablePath,
    env: { ...process.env, ...libraries },
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--font-render-hinting=none"],
  });
});
after(() => browser?.close());

// That of `make run ENGINE=aws-local`.
const STREAM = "nakadi-laptop";

// What a busy machine may need; nothing waits for so long that can be had sooner.
const PATIENCE = 60_000;

/** A test with a page of its own; a message of the browser about an error in the page fails it. */
export function test(sentence, work, options = {}) {
  nodeTest(sentence, async () => {
    const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
    context.setDefaultTimeout(PATIENCE);
    const page = await context.newPage();
    const errors = [];
    page.on("pageerror", (error) => errors.push(String(error)));
    page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
    page.expectErrors = (pattern) => {
      errors.expected = pattern;
    };
    try {
      await work(page);
      const wrong = errors.filter((error) => !errors.expected?.test(error));
      assert.deepEqual(wrong, []);
    } catch (error) {
      const picture = join(screenshots, `failed-${sentence.replace(/\W+/g, "-").slice(0, 80)}.png`);
      await page.screenshot({ path: picture }).catch(() => undefined);
      error.message += `\nThe page: ${page.url()}, ${picture}`;
      throw error;
    } finally {
      await context.close();
    }
  });
}

/** Opens a page of the console: `open(page, "#/event-types")`. */
export async function open(page, address = "") {
  await page.goto(`${broker}/console/${address}`);
}

/** Keeps a picture of the page in both themes. */
export async function picture(page, name) {
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    await page.screenshot({ path: join(screenshots, `${name}-${colorScheme}.png`) });
  }
}

/** What axe finds serious or critical, in both themes. */
export async function accessible(page) {
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    if (!(await page.evaluate(() => "axe" in window))) {
      // By the protocol of the browser, for the policy of the page lets no other script in.
      const { readFileSync } = await import("node:fs");
      await page.evaluate(readFileSync(axe, "utf8"));
    }
    const { violations } = await page.evaluate(() => window.axe.run({ resultTypes: ["violations"] }));
    const serious = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
    const told = serious.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map((node) => node.html).slice(0, 3).join(" ")}`);
    assert.deepEqual(told, [], `axe, ${colorScheme}`);
  }
}

/** Calls the broker as any other client does; what it refuses is an error. */
export async function call(method, path, body) {
  const response = await fetch(broker + path, {
    method,
    headers: { "content-type": "application/json", ...(token && { authorization: `Bearer ${token}` }) },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await response.text();
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
  return text ? JSON.parse(text) : undefined;
}

/** Creates an event type; what is not given is as simple as can be. */
export async function eventType(name, fields = {}) {
  const { schema = {}, ...rest } = fields;
  await call("POST", "/event-types", {
    name,
    owning_application: "shop",
    category: "undefined",
    schema: { type: "json_schema", schema: JSON.stringify(schema) },
    ...rest,
  });
}

/** The configuration of another storage that is like the usual one: of Kinesis in its own stream, which is named for it. */
export async function configurationOfAnother() {
  const [usual] = await call("GET", "/storages");
  return usual.storage_type === "kinesis" ? { stream: STREAM } : usual[`${usual.storage_type}_configuration`];
}

export { assert };
