import { accessible, assert, broker, call, configurationOfAnother, eventType, open, picture, test } from "./browser.mjs";

test("metrics are shown as they are counted, and kept while other pages are seen", async (page) => {
  await eventType("metrics.seen", { schema: { type: "object", required: ["n"] } });
  await page.clock.install();
  await open(page, "#/broker");
  await page.getByText("Up for").waitFor();
  await page.getByRole("heading", { name: "No refused events" }).waitFor();
  await call("POST", "/event-types/metrics.seen/events", Array.from({ length: 100 }, (_, n) => ({ n })));
  await call("POST", "/event-types/metrics.seen/events", [{}]).catch(() => undefined);
  await page.getByRole("link", { name: "Features" }).click();
  await Promise.all([page.waitForResponse(/\/metrics/), page.clock.runFor(10_000)]);
  await page.getByRole("link", { name: "Metrics" }).click();
  await page.getByText(/^validating: \d/).waitFor();
  const events = page.getByRole("img", { name: /^Events\. Published: (?!0\.0)[\d.]+ \/ s/ });
  await events.waitFor();
  for (let step = 0; step < 6; step++) {
    await call("POST", "/event-types/metrics.seen/events", Array.from({ length: 50 * (step % 3) }, (_, n) => ({ n })));
    await Promise.all([page.waitForResponse(/\/metrics/), page.clock.runFor(10_000)]);
  }
  await accessible(page);
  await picture(page, "broker-metrics");
  await page.reload();
  await page.getByText(/^validating: \d/).waitFor();
});

test("a storage is added, chosen for new event types, and removed when its name is typed", async (page) => {
  await open(page, "#/broker?tab=storages");
  await page.getByRole("button", { name: "Add a storage…" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Name").fill("orders");
  await dialog.getByLabel("Configuration").fill("{");
  await dialog.getByRole("button", { name: "Add" }).click();
  await dialog.getByText(/^This is not JSON/).waitFor();
  await dialog.getByLabel("Configuration").fill(JSON.stringify(await configurationOfAnother()));
  await accessible(page);
  await dialog.getByRole("button", { name: "Add" }).click();
  await page.getByRole("button", { name: "Choose orders" }).click();
  await page.getByText("New event types go to orders").waitFor();
  assert.deepEqual((await call("GET", "/storages")).filter((each) => each.default).map((each) => each.id), ["orders"]);
  await accessible(page);
  await picture(page, "broker-storages");
  await page.getByRole("button", { name: "Choose default" }).click();
  await page.getByRole("button", { name: "Choose orders" }).waitFor();
  await page.getByRole("button", { name: "Remove orders…" }).click();
  await page.getByRole("dialog").getByRole("textbox").fill("orders");
  await page.getByRole("dialog").getByRole("button", { name: "Remove" }).click();
  await page.getByText("Storage orders is removed").waitFor();
  assert.deepEqual((await call("GET", "/storages")).map((each) => each.id), ["default"]);
});

test("a timeline is started and watched", async (page) => {
  await eventType("timeline.it");
  await open(page, "#/broker?tab=timelines");
  await page.getByRole("heading", { name: "No event type is chosen" }).waitFor();
  await accessible(page);
  await open(page, "#/broker?tab=timelines&type=timeline.it");
  await page.getByText("events go here").waitFor();
  await page.getByRole("button", { name: "Start…" }).click();
  const dialog = page.getByRole("dialog");
  assert.ok(await dialog.getByRole("button", { name: "Start" }).isDisabled());
  await dialog.getByRole("textbox").fill("timeline.it");
  await dialog.getByRole("button", { name: "Start" }).click();
  await page.getByRole("region", { name: "Timelines" }).getByRole("row").nth(2).getByText("events go here").waitFor();
  await page.getByRole("region", { name: "Timelines" }).getByRole("row").nth(1).getByText(/^closed/).waitFor();
  assert.equal((await call("GET", "/event-types/timeline.it/timelines")).length, 2);
  await accessible(page);
  await picture(page, "broker-timelines");
});

test("a feature that hinders clients is switched on when its name is typed, and off at once", async (page) => {
  const feature = "disable_subscription_creation";
  const isOn = async () => (await call("GET", "/settings/features")).items.find((each) => each.feature === feature).enabled;
  await open(page, "#/broker?tab=features");
  await page.getByRole("button", { name: `Switch on ${feature}` }).click();
  assert.equal(await isOn(), false);
  await page.getByRole("dialog").getByRole("textbox").fill(feature);
  await page.getByRole("dialog").getByRole("button", { name: "Switch on" }).click();
  await page.getByRole("button", { name: `Switch off ${feature}` }).waitFor();
  assert.equal(await isOn(), true);
  await accessible(page);
  await picture(page, "broker-features");
  await page.getByRole("button", { name: `Switch off ${feature}` }).click();
  await page.getByRole("button", { name: `Switch on ${feature}` }).waitFor();
  assert.equal(await isOn(), false);
});

test("applications and event types are blocked and unblocked", async (page) => {
  await open(page, "#/broker?tab=blocked");
  await page.getByRole("heading", { name: "Nothing is blocked" }).waitFor();
  await page.getByLabel("What is blocked").selectOption("CONSUMER_ET");
  await page.getByLabel("Name").fill("order.raw");
  await page.getByRole("button", { name: "Block", exact: true }).click();
  await page.getByRole("button", { name: "Unblock order.raw" }).waitFor();
  assert.deepEqual((await call("GET", "/settings/blacklist")).consumers.event_types, ["order.raw"]);
  await accessible(page);
  await picture(page, "broker-blocked");
  await page.getByRole("button", { name: "Unblock order.raw" }).click();
  await page.getByRole("heading", { name: "Nothing is blocked" }).waitFor();
});

test("administrators are added and removed, and a list keeps its last one", async (page) => {
  const before = await call("GET", "/settings/admins");
  await open(page, "#/broker?tab=admins");
  await page.getByText("the only one").first().waitFor();
  await page.getByLabel("Role").selectOption("writers");
  await page.getByLabel("User, service or team").fill("ann");
  await page.getByRole("button", { name: "Add" }).click();
  await page.getByText(/^Write kind and name/).waitFor();
  await page.getByLabel("User, service or team").fill("user:ann");
  await page.getByRole("button", { name: "Add" }).click();
  await page.getByRole("button", { name: "Remove ann from writers" }).waitFor();
  const { writers } = await call("GET", "/settings/admins");
  assert.deepEqual(writers.at(-1), { data_type: "user", value: "ann" });
  await accessible(page);
  await picture(page, "broker-admins");
  await page.getByRole("button", { name: "Remove ann from writers" }).click();
  await page.getByRole("button", { name: "Remove ann from writers" }).waitFor({ state: "detached" });
  assert.deepEqual(await call("GET", "/settings/admins"), before);
});

test("dead letters are searched, looked at and sent once more", async (page) => {
  const queue = "nakadi.dead.letter.queue";
  await eventType("dead.one");
  const { id } = await call("POST", "/subscriptions", { owning_application: "dead", event_types: ["dead.one"] });
  const letter = (n, reason) => ({
    subscription_id: id,
    event_type: "dead.one",
    partition: "0",
    offset: `001-0001-00000000000000000${n}`,
    error: { message: reason },
    event: { n, metadata: { eid: crypto.randomUUID(), event_type: "dead.one", occurred_at: new Date().toISOString() } },
    metadata: { eid: crypto.randomUUID(), occurred_at: new Date().toISOString() },
  });
  await open(page, "#/dead-letters");
  await page.getByRole("heading", { name: "There are no dead letters here" }).waitFor();
  await accessible(page);
  // The page redrives a number that JavaScript cannot represent unchanged.
  const exact = '"big":1234567890123456789';
  const letters = JSON.stringify([letter(1, "too long"), letter(2, "too heavy")]).replaceAll('"n":2', `"n":2,${exact}`);
  const headers = { "content-type": "application/json" };
  await fetch(`${broker}/event-types/${queue}/events`, { method: "POST", headers, body: letters });
  await page.getByText("2 of 2 dead letters").waitFor();
  await page.getByLabel("Search dead letters").fill("HEAVY");
  await page.getByText("1 of 2 dead letters").waitFor();
  await accessible(page);
  await picture(page, "dead-letters");
  await page.getByRole("button", { name: /^Show dead\.one/ }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByText("too heavy").waitFor();
  await dialog.getByText("1234567890123456789", { exact: true }).waitFor();
  await accessible(page);
  page.expectErrors(/404/);
  await dialog.getByRole("button", { name: "Redrive" }).click();
  await dialog.getByText("an operator creates the event type").waitFor();
  await eventType("nakadi.dead.letter.redrive");
  const again = page.waitForRequest(/redrive\/events$/);
  await dialog.getByRole("button", { name: "Redrive" }).click();
  await page.getByText("The subscription gets the event again").waitFor();
  const [{ newest_available_offset: newest }] = await call("GET", "/event-types/nakadi.dead.letter.redrive/partitions");
  assert.match(newest, /0$/);
  assert.ok((await again).postData().includes(exact));
  await open(page, "#/dead-letters?subscription=another");
  await page.getByText("0 of 2 dead letters").waitFor();
  await page.getByRole("button", { name: "Of all subscriptions" }).click();
  await page.getByText("2 of 2 dead letters").waitFor();
});
