/** Measures the speed of the console. `make bench-console` runs it with a broker and prints the results. */

import { readdirSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { gzipSync } from "node:zlib";
import { assert, call, eventType, open, test } from "./browser.mjs";

const SECONDS = Number(process.env.SECONDS ?? 60);
const PER_SECOND = 1000;
const BATCHES = 10;
const built = resolve(import.meta.dirname, "../../.cache/console/built");

const say = (text) => process.stderr.write(`${text}\n`);
const middle = (numbers) => [...numbers].sort((a, b) => a - b)[Math.floor(numbers.length / 2)];
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

test("size of the files", async () => {
  const assets = readdirSync(join(built, "assets")).map((name) => join(built, "assets", name));
  const files = [join(built, "index.html"), ...assets].map((path) => readFileSync(path));
  const whole = files.reduce((sum, file) => sum + file.length, 0);
  const packed = files.reduce((sum, file) => sum + gzipSync(file).length, 0);
  say(`files: ${(whole / 1000).toFixed(0)} KB, packed ${(packed / 1000).toFixed(0)} KB`);
  assert.ok(packed < 300_000);
});

test("first paint", async (page) => {
  const painted = [];
  for (let round = 0; round < 7; round++) {
    const fresh = await page.context().browser().newContext();
    const other = await fresh.newPage();
    await open(other, "#/event-types");
    await other.getByRole("heading", { name: "Event types" }).waitFor();
    painted.push(await other.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0].startTime));
    await fresh.close();
  }
  say(`first contentful paint: median ${middle(painted).toFixed(0)} ms of ${painted.map((each) => each.toFixed(0)).join(", ")}`);
});

test("the live tail keeps up", async (page) => {
  const name = `figures.tail.${Date.now()}`;
  await eventType(name);
  await open(page, `#/event-types/${name}/events`);
  await page.getByText("Live.").waitFor();
  const session = await page.context().newCDPSession(page);
  await session.send("Performance.enable");
  const metrics = async () => Object.fromEntries((await session.send("Performance.getMetrics")).metrics.map((each) => [each.name, each.value]));
  const received = async () =>
    Number(/([\d,]+) events? received/.exec(await page.getByRole("main").innerText())?.[1].replaceAll(",", "") ?? 0);
  const size = PER_SECOND / BATCHES;
  const begun = Date.now();
  let before = await metrics();
  let published = 0;
  for (let second = 1; second <= SECONDS; second++) {
    for (let batch = 0; batch < BATCHES; batch++) {
      const events = Array.from({ length: size }, (_, n) => ({ n: published + n, customer: "c-4711", items: [{ sku: "apple", pieces: 3 }] }));
      await call("POST", `/event-types/${name}/events`, events);
      published += size;
      const due = begun + (published / PER_SECOND) * 1000;
      await pause(Math.max(0, due - Date.now()));
    }
    if (second % 10 === 0 || second === SECONDS) {
      const now = await metrics();
      const busy = ((now.TaskDuration - before.TaskDuration) / (now.Timestamp - before.Timestamp)) * 100;
      before = now;
      const behind = published - (await received());
      say(`tail after ${second} s: ${published} published, ${behind} behind, page busy ${busy.toFixed(0)} %, heap ${(now.JSHeapUsedSize / 1e6).toFixed(0)} MB`);
    }
  }
  say(`published in ${((Date.now() - begun) / 1000).toFixed(1)} s`);
  await page.getByText(`${published.toLocaleString("en")} events received`).waitFor();
  say((await page.getByText(/events received/).innerText()).replaceAll("\n", " "));
});
