import { accessible, assert, call, configurationOfAnother, eventType, open, picture, test } from "./browser.mjs";

const PHONE = { viewport: { width: 390, height: 844 }, hasTouch: true };
const ANNOTATIONS = {
  "nakadi.zalando.org/subscription-max-event-send-count": "3",
  "nakadi.zalando.org/subscription-unprocessable-event-policy": "PARK_KEY",
};
const LONG = "a.name.that.is.as.long.as.names.of.event.types.are.where.many.teams.share.one.broker.order.placed";

const parked = (number, more = {}) => ({
  id: `000-${number}`, event_type: LONG, partition: "0", offset: `001-0001-00000000000000000${number}`, key: "a", state: "parked",
  failed_commits: 3, stored_at: "2026-01-02T03:04:05Z", parked_at: "2026-01-02T03:04:05Z", ...more,
});

/** Creates an event type with events and a subscription to it, with pretended parked events. */
async function withData(page) {
  const [known] = (await call("GET", "/subscriptions?owning_application=everywhere")).items;
  let id = known?.id;
  if (!id) {
    const schema = { type: "object", properties: { n: { type: "integer" }, text: { type: "string" } } };
    await eventType(LONG, { schema, labels: { team: "orders" } });
    await call("POST", `/event-types/${LONG}/events`, Array.from({ length: 30 }, (_, n) => ({ n, text: "word ".repeat(40) })));
    ({ id } = await call("POST", "/subscriptions", {
      owning_application: "everywhere", event_types: [LONG], read_from: "begin", annotations: ANNOTATIONS,
    }));
  }
  const events = [parked(0), parked(1, { failed_commits: 0 }), parked(2, { key: "b" })];
  await page.route(/\/parked-events\?/, (route) => route.fulfill({ json: { items: events, _links: {} } }));
  await page.route(/\/parked-events\/000-/, (route) => route.fulfill({ json: { ...events[0], event: { n: 1 } } }));
  return id;
}

/** Presses Tab until an element with this name has the focus. Fails if none gets it. */
async function walkTo(page, name) {
  const passed = [];
  for (let step = 0; step < 60; step++) {
    await page.keyboard.press("Tab");
    const found = await page.evaluate(() => {
      const { activeElement: at } = document;
      return (at?.getAttribute("aria-label") ?? at?.labels?.[0]?.textContent ?? at?.textContent ?? "").trim();
    });
    if (found.startsWith(name)) return;
    passed.push(found.slice(0, 40));
  }
  assert.fail(`${name} is not reached: ${passed.join(" | ")}`);
}

const focused = (page) => page.evaluate(() => document.activeElement?.textContent?.trim());

test("every page can be read on a phone, and axe finds nothing serious in either theme", async (page) => {
  const id = await withData(page);
  const type = `#/event-types/${LONG}`;
  const pages = [
    ["#/event-types", LONG],
    ["#/create-event-type", "Create an event type"],
    [type, "team=orders"],
    [`${type}/edit`, "Change"],
    [`${type}/schema`, "integer"],
    [`${type}/events?from=begin`, "word word"],
    [`${type}/events/0/001-0001-000000000000000003`, "word word"],
    [`${type}/publish`, "Publish"],
    [`${type}/partitions`, "Events / s"],
    [`${type}/subscriptions`, "everywhere"],
    ["#/subscriptions", "everywhere / default"],
    [`#/subscriptions/${id}`, "no stream: start a consumer"],
    [`#/subscriptions/${id}?tab=definition`, "PARK_KEY"],
    [`#/subscriptions/${id}?tab=parked`, "failed 3 times"],
    ["#/dead-letters", "There are no dead letters"],
    ["#/broker", "Up for"],
    ["#/broker?tab=storages", "Add a storage"],
    [`#/broker?tab=timelines&type=${LONG}`, "events go here"],
    ["#/broker?tab=features", "disable_subscription_creation"],
    ["#/broker?tab=blocked", "Blocked"],
    ["#/broker?tab=admins", "Administrators"],
  ];
  const wrong = [];
  for (const [at, text] of pages) {
    await open(page, at);
    await page.getByRole("main").getByText(text).first().waitFor();
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    if (wide > 0) wrong.push(`${at} is ${wide} pixels too wide`);
    await accessible(page).catch((error) => wrong.push(`${at}: ${error.message}`));
    await picture(page, `phone-${at.replace(LONG, "name").replace(id, "id").replace(/\W+/g, "-")}`);
  }
  assert.deepEqual(wrong, []);
}, PHONE);

test("a storage and a feature are changed by keyboard alone", async (page) => {
  await open(page, "#/broker?tab=storages");
  await page.getByRole("button", { name: "Add a storage…" }).waitFor();
  await walkTo(page, "Skip to the content");
  await page.keyboard.press("Enter");
  await walkTo(page, "Add a storage…");
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").waitFor();
  // Tab does not reach elements behind a dialog.
  for (let step = 0; step < 12; step++) {
    await page.keyboard.press("Tab");
    assert.ok(await page.evaluate(() => document.activeElement === document.body || !!document.activeElement.closest("dialog")));
  }
  await page.keyboard.press("Escape");
  await page.locator("dialog").waitFor({ state: "detached" });
  assert.equal(await focused(page), "Add a storage…");
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").waitFor();
  await walkTo(page, "Name");
  await page.keyboard.type("by-keyboard");
  await walkTo(page, "Configuration");
  await page.keyboard.press("ControlOrMeta+a");
  await page.keyboard.type(JSON.stringify(await configurationOfAnother()));
  await walkTo(page, "Add");
  await page.keyboard.press("Enter");
  await page.getByRole("button", { name: "Remove by-keyboard…" }).waitFor();
  await call("DELETE", "/storages/by-keyboard");
  await open(page, "#/broker?tab=features");
  await page.getByRole("button", { name: "Switch on disable_subscription_creation" }).waitFor();
  await walkTo(page, "Switch on disable_subscription_creation");
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").waitFor();
  await walkTo(page, "Type");
  await page.keyboard.type("disable_subscription_creation");
  await page.keyboard.press("Enter");
  await page.getByRole("button", { name: "Switch off disable_subscription_creation" }).waitFor();
  await call("POST", "/settings/features", { feature: "disable_subscription_creation", enabled: false });
});

test("parked events are chosen, looked at and left by keyboard alone", async (page) => {
  const id = await withData(page);
  await open(page, `#/subscriptions/${id}?tab=parked`);
  await page.getByText("3 events, 2 keys").waitFor();
  await walkTo(page, "Choose 000-0");
  await page.keyboard.press("Space");
  await page.getByRole("button", { name: "Skip 1 chosen…" }).waitFor();
  await walkTo(page, "Show 000-0");
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").getByRole("heading", { name: "Parked event" }).waitFor();
  await page.keyboard.press("Escape");
  await page.locator("dialog").waitFor({ state: "detached" });
  assert.equal(await focused(page), "Show");
});
