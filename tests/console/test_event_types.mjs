import { accessible, assert, call, eventType, open, picture, test } from "./browser.mjs";

test("without event types the list says what to do next", async (page) => {
  for (const { name } of await call("GET", "/event-types")) await call("DELETE", `/event-types/${name}`);
  await open(page);
  await page.getByRole("heading", { name: "There is no event type yet" }).waitFor();
  assert.equal(await page.getByRole("navigation").getByRole("link", { name: "Event types" }).getAttribute("aria-current"), "page");
  assert.match(await page.getByRole("link", { name: "Create the first one" }).getAttribute("href"), /create-event-type/);
  await accessible(page);
  await picture(page, "event-types-none");
});

test("event types are found by words, category, owner and label, at an address that can be shared", async (page) => {
  await eventType("order.created", { labels: { team: "orders" } });
  await eventType("order.paid", { owning_application: "billing" });
  await eventType("parcel.sent", { category: "business", enrichment_strategies: ["metadata_enrichment"], labels: { team: "parcels" } });
  await open(page, "#/event-types");
  const rows = page.getByRole("table", { name: "Event types" }).getByRole("row");
  await page.getByRole("link", { name: "parcel.sent" }).waitFor();
  assert.equal(await rows.count(), 4);
  await page.keyboard.press("/");
  await page.keyboard.type("ord");
  await page.getByText("2 of 3 event types").waitFor();
  await page.getByLabel("Owner").selectOption("billing");
  await page.getByText("1 of 3 event types").waitFor();
  assert.match(page.url(), /q=ord&owner=billing/);
  await open(page, "#/event-types?category=business&label=team%3Dparcels");
  await page.getByText("1 of 3 event types").waitFor();
  assert.equal(await page.getByLabel("Search names").inputValue(), "");
  await page.getByLabel("Search names").fill("none of them");
  await page.getByRole("button", { name: "Show all" }).click();
  await page.getByText("3 event types", { exact: true }).waitFor();
  await accessible(page);
  await picture(page, "event-types");
});

test("ten thousand event types are listed, sorted and searched without drawing them all", async (page) => {
  const [one] = await call("GET", "/event-types");
  const many = Array.from({ length: 10_000 }, (_, at) => ({
    ...one,
    name: `team-${at % 97}.thing-${at}`,
  }));
  // The measurements are in each event type itself. The console requests them for visible rows.
  let asked = 0;
  await page.route(/\/event-types\/team-/, (route) => {
    asked++;
    const at = Number(/thing-(\d+)$/.exec(route.request().url())[1]);
    const measured_statistic = { messages_per_minute: at, message_size: 500 + at, read_parallelism: 1, write_parallelism: 1 };
    return route.fulfill({ json: { ...many[at], measured_statistic } });
  });
  // The list arrives in parts: the first part is shown while the next one is still loading.
  let goOn;
  const seen = new Promise((resolve) => (goOn = resolve));
  await page.route(/\/event-types\?/, async (route) => {
    const query = new URL(route.request().url()).searchParams;
    const from = many.findIndex(({ name }) => name === query.get("after")) + 1;
    if (from) await seen;
    await route.fulfill({ json: many.slice(from, from + Number(query.get("limit"))) });
  });
  await open(page);
  await page.getByText("200 event types, loading…").waitFor();
  await page.getByRole("link", { name: "team-0.thing-0", exact: true }).waitFor();
  goOn();
  await page.getByText("10,000 event types", { exact: true }).waitFor();
  const rows = page.getByRole("table", { name: "Event types" }).getByRole("row");
  assert.ok((await rows.count()) < 60, `${await rows.count()} rows are drawn`);
  await page.getByRole("button", { name: "Name", exact: true }).click();
  await page.getByRole("row").filter({ hasText: "team-96.thing-9990" }).getByRole("cell", { name: "9,990" }).waitFor();
  assert.ok(asked < 200, `${asked} were asked for`);
  await picture(page, "event-types-many");
  // The console requests all event types found by the search, even if their rows were never visible.
  await page.getByLabel("Search names").fill("team-96");
  await page.getByText("103 of 10,000 event types", { exact: true }).waitFor();
  await page.getByRole("button", { name: "Events / min" }).click();
  await rows.nth(1).getByText("team-96.thing-9990").waitFor();
  await page.getByText("103 of 10,000 event types", { exact: true }).waitFor();
  await page.getByRole("button", { name: "Event size" }).click();
  await page.getByRole("button", { name: "Event size" }).click();
  await rows.nth(1).getByText("team-96.thing-96", { exact: true }).waitFor();
  assert.match(page.url(), /sort=Event\+size/);
  assert.ok(asked < 310, `${asked} were asked for`);
  await page.getByLabel("Search names").fill("thing-1234");
  await page.getByText("1 of 10,000 event types").waitFor();
});

test("of event types that a user may not look at, one is asked for what was measured", async (page) => {
  page.expectErrors(/403/);
  const [one] = await call("GET", "/event-types");
  const only = (value) => ({ admins: [{ data_type: "user", value }], readers: [], writers: [] });
  const types = ["mine", "theirs"].flatMap((owner) =>
    Array.from({ length: 8 }, (_, at) => ({ ...one, name: `${owner}-${at}`, authorization: only(owner) })),
  );
  const asked = [];
  await page.route(/\/event-types\/(mine|theirs)-/, (route) => {
    const name = /[^/]+$/.exec(route.request().url())[0];
    asked.push(name);
    const measured_statistic = { messages_per_minute: 7, message_size: 500, read_parallelism: 1, write_parallelism: 1 };
    if (name.startsWith("mine")) return route.fulfill({ json: { ...one, name, measured_statistic } });
    return route.fulfill({ status: 403, json: { title: "Forbidden", status: 403, detail: "Access on VIEW is not allowed" } });
  });
  await page.route(/\/event-types\?/, (route) => route.fulfill({ json: types }));
  await open(page);
  await page.getByRole("button", { name: "Events / min" }).click();
  await page.getByText("16 event types", { exact: true }).waitFor();
  await page.getByRole("cell", { name: "7", exact: true }).nth(7).waitFor();
  assert.deepEqual(asked.filter((name) => name.startsWith("theirs")), ["theirs-0"]);
  assert.equal(asked.length, 9);
});

test("an address that leads nowhere says so, and leads back", async (page) => {
  await open(page, "#/no/such/page");
  await page.getByRole("heading", { name: "There is no such page (404)" }).waitFor();
  await page.getByRole("main").getByRole("link", { name: "event types" }).click();
  await page.getByRole("heading", { name: "Event types" }).waitFor();
});
