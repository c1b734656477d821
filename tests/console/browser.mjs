/** A browser for the tests of the console, and functions to use it and the broker. */

import { after, before, test as nodeTest } from "node:test";
import assert from "node:assert/strict";
import { join } from "node:path";
import { chromium, installed, launchOptions, screenshots } from "./launch.mjs";

export { hasBrowser, screenshots } from "./launch.mjs";

const axe = installed.resolve("axe-core/axe.min.js");

/** The broker's URL, and a token if the broker requires one. */
export const broker = process.env.BROKER;
export const token = process.env.TOKEN ?? "";

let browser;
before(async () => {
  const served = process.env.BROWSER;
  browser = served ? await chromium.connect(served) : await chromium.launch(launchOptions());
});
after(() => browser?.close());

// The stream of `make run ENGINE=aws-local`.
const STREAM = "nakadi-laptop";

// A busy machine may need so long. Tests continue as soon as the awaited element is there.
const PATIENCE = 60_000;

/** A test with its own page. It fails if the browser reports an error of the page. */
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

/** The content of a download. Another process may have started the browser, so there is no path to its file. */
export async function textOf(download) {
  let text = "";
  for await (const part of (await download.createReadStream()).setEncoding("utf8")) text += part;
  return text;
}

/** Opens a page of the console: `open(page, "#/event-types")`. */
export async function open(page, address = "") {
  await page.goto(`${broker}/console/${address}`);
}

/** Stores a picture of the page in both themes, but only with `PICTURES=1`, because drawing takes most of the time. */
export async function picture(page, name) {
  if (!process.env.PICTURES) return;
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    await page.screenshot({ path: join(screenshots, `${name}-${colorScheme}.png`) });
  }
}

// The rules of axe about colors. All other rules find the same problems in each theme.
const ABOUT_COLORS = ["color-contrast", "link-in-text-block"];

/** Fails if axe finds a serious or critical problem in one of the themes. */
export async function accessible(page) {
  for (const [colorScheme, some] of [["light", {}], ["dark", { runOnly: ABOUT_COLORS }]]) {
    await page.emulateMedia({ colorScheme });
    if (!(await page.evaluate(() => "axe" in window))) {
      // The script comes through the browser's protocol, because the page's policy does not admit other scripts.
      const { readFileSync } = await import("node:fs");
      await page.evaluate(readFileSync(axe, "utf8"));
    }
    const { violations } = await page.evaluate((rules) => window.axe.run({ resultTypes: ["violations"], ...rules }), some);
    const serious = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
    const told = serious.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map((node) => node.html).slice(0, 3).join(" ")}`);
    assert.deepEqual(told, [], `axe, ${colorScheme}`);
  }
}

/** Calls the broker's API. A refusal throws an error. */
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

/** Creates an event type. Members that are not in `fields` have the simplest possible values. */
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

/** The configuration for another storage of the same type as the default one. For Kinesis, it names the local stream.
 * */
export async function configurationOfAnother() {
  const [usual] = await call("GET", "/storages");
  return usual.storage_type === "kinesis" ? { stream: STREAM } : usual[`${usual.storage_type}_configuration`];
}

export { assert };
