/** A browser for the tests of the console, and what they say to it and to the broker. */

import { after, before, test as nodeTest } from "node:test";
import assert from "node:assert/strict";
import { join } from "node:path";
import { chromium, installed, launchOptions, screenshots } from "./launch.mjs";

export { hasBrowser, screenshots } from "./launch.mjs";

const axe = installed.resolve("axe-core/axe.min.js");

/** Where the broker is, and a token for it if it wants one. */
export const broker = process.env.BROKER;
export const token = process.env.TOKEN ?? "";

let browser;
before(async () => {
  const served = process.env.BROWSER;
  browser = served ? await chromium.connect(served) : await chromium.launch(launchOptions());
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

/** What was downloaded; the browser may be another program's, so there is no path to it. */
export async function textOf(download) {
  let text = "";
  for await (const part of (await download.createReadStream()).setEncoding("utf8")) text += part;
  return text;
}

/** Opens a page of the console: `open(page, "#/event-types")`. */
export async function open(page, address = "") {
  await page.goto(`${broker}/console/${address}`);
}

/** Keeps a picture of the page in both themes, with `PICTURES=1`: drawing takes most of the time. */
export async function picture(page, name) {
  if (!process.env.PICTURES) return;
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    await page.screenshot({ path: join(screenshots, `${name}-${colorScheme}.png`) });
  }
}

// Rules of axe about colors; the others find the same in each theme.
const ABOUT_COLORS = ["color-contrast", "link-in-text-block"];

/** What axe finds serious or critical, in both themes. */
export async function accessible(page) {
  for (const [colorScheme, some] of [["light", {}], ["dark", { runOnly: ABOUT_COLORS }]]) {
    await page.emulateMedia({ colorScheme });
    if (!(await page.evaluate(() => "axe" in window))) {
      // By the protocol of the browser, for the policy of the page lets no other script in.
      const { readFileSync } = await import("node:fs");
      await page.evaluate(readFileSync(axe, "utf8"));
    }
    const { violations } = await page.evaluate((rules) => window.axe.run({ resultTypes: ["violations"], ...rules }), some);
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
