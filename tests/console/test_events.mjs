import { accessible, assert, broker, call, eventType, open, picture, test, textOf } from "./browser.mjs";

const rows = (page) => page.getByRole("table", { name: "Events" }).getByRole("row");
const publish = (name, events) => call("POST", `/event-types/${name}/events`, events);

test("events are shown as they come, one opens as a tree, and has an address of its own", async (page) => {
  await eventType("tail.live");
  await open(page, "#/event-types/tail.live/events");
  await page.getByRole("heading", { name: "Waiting for events" }).waitFor();
  await page.getByText("Live.").waitFor();
  await accessible(page);
  await picture(page, "events-none");
  await publish("tail.live", [{ order: { number: "17", items: [{ sku: "apple" }] } }, { order: { number: "18" } }]);
  await page.getByText("2 events received").waitFor();
  await page.getByRole("button", { name: "0: 0", exact: true }).click();
  const details = page.getByRole("region", { name: "Event", exact: true });
  await details.getByText("number:").waitFor();
  await details.getByText('"apple"').waitFor();
  await accessible(page);
  await picture(page, "events-open");
  await details.getByRole("link", { name: "Open alone" }).click();
  await page.getByText("2 events received").waitFor({ state: "hidden" });
  await page.getByText('"apple"', { exact: true }).waitFor();
  assert.match(page.url(), /#\/event-types\/tail.live\/events\/0\/001-0001-0+$/);
  await page.reload();
  await page.getByText('"apple"', { exact: true }).waitFor();
});

test("reading begins at the beginning, after an offset, or at a time, and is filtered by text and by path", async (page) => {
  await eventType("tail.past");
  await publish("tail.past", Array.from({ length: 20 }, (_, n) => ({ n, tags: [{ name: n % 2 ? "odd" : "even" }] })));
  await open(page, "#/event-types/tail.past/events?from=begin");
  await page.getByText("20 events received, 20 shown").waitFor();
  await page.getByLabel("Filter by text").fill('"n":1');
  await page.getByText("20 events received, 11 shown").waitFor();
  await page.getByLabel("Filter by JSON path").fill('$.tags[*].name == "odd" and n > 11');
  await page.getByText("20 events received, 4 shown").waitFor();
  assert.match(page.url(), /where=/);
  await page.getByLabel("Filter by JSON path").fill("n >");
  await page.getByRole("alert").getByText(/Write a path and a comparison/).waitFor();
  await page.getByLabel("Filter by JSON path").fill("");
  await page.getByLabel("Filter by text").fill("");
  const [{ oldest_available_offset: oldest }] = await call("GET", "/event-types/tail.past/partitions");
  await page.getByLabel("From", { exact: true }).selectOption("Behind an offset…");
  await page.getByLabel("Partition").fill("0");
  await page.getByLabel("Offset").fill(oldest);
  await page.getByRole("button", { name: "Read", exact: true }).click();
  await page.getByText("19 events received").waitFor();
  await page.getByLabel("From", { exact: true }).selectOption("From a time…");
  await page.getByRole("button", { name: "Read", exact: true }).click();
  await page.getByText("20 events received").waitFor();
  const [download] = await Promise.all([
    page.waitForEvent("download"),
    page.getByRole("button", { name: "Export as NDJSON" }).click(),
  ]);
  assert.equal(download.suggestedFilename(), "tail.past.ndjson");
  const lines = (await textOf(download)).trim().split("\n").map(JSON.parse);
  assert.deepEqual(lines.map(({ n }) => n), Array.from({ length: 20 }, (_, n) => n));
});

test("numbers keep all of their digits, in what is published, shown, copied and exported", async (page) => {
  await eventType("tail.exact");
  const text = '{"id":1234567890123456789,"price":1.10}';
  await open(page, "#/event-types/tail.exact/publish");
  await page.getByLabel("Events").fill(text);
  await page.getByRole("button", { name: "Publish", exact: true }).click();
  await page.getByRole("heading", { name: "1 event stored" }).waitFor();
  await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
  await open(page, "#/event-types/tail.exact/events?from=begin");
  await page.getByRole("button", { name: "0: 0", exact: true }).click();
  const details = page.getByRole("region", { name: "Event", exact: true });
  await details.getByText("1234567890123456789", { exact: true }).waitFor();
  await details.getByText("1.10", { exact: true }).waitFor();
  await details.getByRole("button", { name: "Copy", exact: true }).click();
  await page.getByText("Copied").waitFor();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), '{\n  "id": 1234567890123456789,\n  "price": 1.10\n}');
  const [download] = await Promise.all([
    page.waitForEvent("download"),
    page.getByRole("button", { name: "Export as NDJSON" }).click(),
  ]);
  assert.equal((await textOf(download)), `${text}\n`);
});

test("a pause keeps what comes, and what there is no room for is counted", async (page) => {
  await eventType("tail.many");
  await open(page, "#/event-types/tail.many/events");
  await page.getByText("Live.").waitFor();
  await page.getByRole("button", { name: "Pause" }).click();
  await publish("tail.many", [{ n: -1 }]);
  for (let batch = 0; batch < 8; batch++) {
    await publish("tail.many", Array.from({ length: 1000 }, (_, n) => ({ n: batch * 1000 + n })));
  }
  await page.getByText("Paused. 0 events received").waitFor();
  await page.getByRole("button", { name: "Go on" }).click();
  await page.getByText("8,001 events received, 5,000 shown").waitFor();
  await page.getByText("3,001 skipped: the newest 5,000 are kept").waitFor();
  await rows(page).nth(1).getByText('{"n":7999}').waitFor();
  assert.ok((await rows(page).count()) < 60);
  await accessible(page);
  await picture(page, "events-many");
});

test("a thousand events a second are kept up with, and none is missing", async (page) => {
  await eventType("tail.fast");
  await open(page, "#/event-types/tail.fast/events");
  await page.getByText("Live.").waitFor();
  for (let batch = 0; batch < 40; batch++) {
    await publish("tail.fast", Array.from({ length: 100 }, (_, n) => ({ n: batch * 100 + n, text: "x".repeat(300) })));
    await new Promise((done) => setTimeout(done, 100));
  }
  await page.getByText("4,000 events received, 4,000 shown").waitFor();
  assert.equal(await page.getByText("skipped").count(), 0);
});

test("a test event is published, and the answer for each event is shown", async (page) => {
  page.expectErrors(/422/);
  await eventType("tail.try", { schema: { properties: { n: { type: "integer" }, at: { type: "string", format: "date-time" } } } });
  await open(page, "#/event-types/tail.try/publish");
  assert.match(await page.getByLabel("Events").inputValue(), /"n": 1/);
  await page.getByRole("button", { name: "Publish", exact: true }).click();
  await page.getByRole("heading", { name: "1 event stored" }).waitFor();
  await page.getByLabel("Events").fill('[{"n": 1}, {"n": "one"}]');
  await page.getByRole("button", { name: "Publish", exact: true }).click();
  await page.getByRole("heading", { name: "0 of 2 events stored" }).waitFor();
  await page.getByText("#/n: expected type: Number, found: String").waitFor();
  await page.getByText("aborted").waitFor();
  await accessible(page);
  await picture(page, "publish");
  await page.getByLabel("Events").fill("{ no JSON");
  await page.getByRole("button", { name: "Publish", exact: true }).click();
  await page.getByRole("alert").getByText(/This is not JSON/).waitFor();
});

test("the list and the tail can be looked at on a phone", async (page) => {
  await eventType("tail.small");
  await publish("tail.small", [{ order: { number: "17" } }]);
  await open(page, "#/event-types/tail.small/events?from=begin");
  await page.getByText("1 event received").waitFor();
  const width = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(width <= 390, `the page is ${width} wide`);
  await picture(page, "phone-events");
  await open(page, "#/event-types");
  await page.getByRole("link", { name: "tail.small" }).waitFor();
  await picture(page, "phone-event-types");
}, { viewport: { width: 390, height: 800 } });

test("the page begins with the last fifty events and goes on live", async (page) => {
  await eventType("tail.recent");
  await publish("tail.recent", Array.from({ length: 70 }, (_, n) => ({ n })));
  await open(page, "#/event-types/tail.recent/events");
  await page.getByText("Live. 50 events received, 50 shown").waitFor();
  await page.getByRole("button", { name: "0: 69", exact: true }).waitFor();
  await page.getByRole("columnheader", { name: "Partition and offset" }).waitFor();
  await publish("tail.recent", [{ n: 70 }]);
  await page.getByText("51 events received").waitFor();
  await picture(page, "events-recent");
});
