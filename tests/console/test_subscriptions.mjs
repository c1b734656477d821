import { accessible, assert, broker, call, eventType, open, picture, test } from "./browser.mjs";

const ANNOTATIONS = {
  "nakadi.zalando.org/subscription-max-event-send-count": "2",
  "nakadi.zalando.org/subscription-unprocessable-event-policy": "PARK_KEY",
};
const KEYED = {
  partition_strategy: "hash",
  partition_key_fields: ["key"],
  schema: { type: "object", properties: { key: { type: "string" } } },
};

const subscribe = (owner, event_types, more = {}) =>
  call("POST", "/subscriptions", { owning_application: owner, event_types, read_from: "begin", ...more });
const publish = (name, ...events) => call("POST", `/event-types/${name}/events`, events);

/** Opens a stream, and reads it until it ends, or until `seen` accepts its events: then the stream stays open. The
 * function
 * opens the stream again as long as an earlier stream has the partition.
 */
async function consume(id, parameters, seen = () => false) {
  const stopping = new AbortController();
  const query = new URLSearchParams({ batch_flush_timeout: 1, commit_timeout: 1, ...parameters });
  let response;
  for (let round = 0; round < 100 && response?.status !== 200; round++) {
    response = await fetch(`${broker}/subscriptions/${id}/events?${query}`, { signal: stopping.signal });
    if (response.status !== 200) await new Promise((done) => setTimeout(done, 200));
  }
  assert.equal(response.status, 200);
  const found = { stream: response.headers.get("x-nakadi-streamid"), batches: [], events: [], end: () => stopping.abort() };
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (!seen(found.events)) {
    const { value, done } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    found.batches.push(...lines.filter(Boolean).map((line) => JSON.parse(line)));
    found.events = found.batches.flatMap((batch) => batch.events ?? []);
  }
  return found;
}

/** Reads and commits `number` events. */
async function catchUp(id, number) {
  // With uncommitted events, the stream would keep the partition until the commit timeout.
  const limits = { batch_limit: 1, stream_limit: number, max_uncommitted_events: number, commit_timeout: 60 };
  const { stream, batches, end } = await consume(id, limits, ({ length }) => length === number);
  const response = await fetch(`${broker}/subscriptions/${id}/cursors`, {
    method: "POST",
    headers: { "content-type": "application/json", "x-nakadi-streamid": stream },
    body: JSON.stringify({ items: [batches.filter((batch) => batch.events)[number - 1].cursor] }),
  });
  assert.equal(response.status, 204);
  end();
}

/** Reads the first event of a subscription without a commit, again and again, until the event is parked. */
async function failUntilParked(id) {
  for (let round = 0; round < 20; round++) {
    const { items } = await call("GET", `/subscriptions/${id}/parked-events`);
    if (items.length) return items;
    await consume(id, { batch_limit: 1, stream_timeout: 5 });
  }
  throw new Error("Nothing was parked");
}

test("without subscriptions the list says what to do next", async (page) => {
  await open(page, "#/subscriptions");
  await page.getByRole("heading", { name: "There is no subscription yet" }).waitFor();
  await accessible(page);
  await picture(page, "subscriptions-none");
});

test("subscriptions are listed with what waits, and found by words and owner", async (page) => {
  await eventType("list.first");
  await eventType("list.second");
  await publish("list.first", ...Array.from({ length: 12 }, (_, n) => ({ n })));
  const { id } = await subscribe("list-shipping", ["list.first"]);
  await subscribe("list-billing", ["list.first", "list.second"]);
  await catchUp(id, 5);
  await open(page, "#/subscriptions");
  const row = page.getByRole("row").filter({ hasText: "list-shipping / default" });
  await row.getByRole("cell", { name: "7", exact: true }).waitFor();
  await row.getByText("not read").waitFor();
  // The subscription that is furthest behind comes first: the other one has not been read yet.
  const first = page.getByRole("table", { name: "Subscriptions" }).getByRole("row").nth(1);
  await page.getByRole("button", { name: "Waiting", exact: true }).click();
  await first.getByText("list-shipping").waitFor();
  assert.match(page.url(), /sort=Waiting&down=1/);
  await page.getByRole("button", { name: "Waiting", exact: true }).click();
  await first.getByText("list-billing").waitFor();
  await picture(page, "subscriptions");
  await page.keyboard.press("/");
  await page.keyboard.type("list.sec");
  await page.getByText(/^1 of \d subscriptions$/).waitFor();
  await page.getByRole("link", { name: "list-billing / default" }).waitFor();
  await open(page, "#/subscriptions?owner=list-shipping");
  await page.getByText(/^1 of \d subscriptions$/).waitFor();
  await accessible(page);
  await page.getByLabel("Search subscriptions").fill("none of them");
  await page.getByRole("button", { name: "Show all" }).click();
  await page.getByText(/^\d subscriptions$/).waitFor();
});

test("of five thousand subscriptions only those in sight are drawn and measured", async (page) => {
  const one = await subscribe("many", ["list.first"]);
  const many = Array.from({ length: 5000 }, (_, at) => ({ ...one, id: `id-${at}`, owning_application: `team-${at % 97}`, consumer_group: `${at}` }));
  const status = (waiting) => {
    const partition = { partition: "0", state: "assigned", stream_id: "one", unconsumed_events: waiting, consumer_lag_seconds: 90, stalled: true };
    return [{ event_type: "list.first", partitions: [partition] }];
  };
  let asked = 0;
  let pages = 0;
  await page.route(/\/subscriptions\?/, (route) => {
    const query = new URL(route.request().url()).searchParams;
    const [limit, owner] = [Number(query.get("limit")), query.get("owning_application")];
    const wanted = many.filter((each) => !owner || each.owning_application === owner);
    if (!query.get("show_stats")) {
      const from = Number(query.get("offset"));
      return route.fulfill({ json: { items: wanted.slice(from, from + limit), _links: {} } });
    }
    pages++;
    const from = query.get("token") === "new" ? 0 : Number(query.get("token"));
    const items = wanted.slice(from, from + limit).map((each) => ({ ...each, status: status(Number(each.consumer_group)) }));
    const next = { href: `/subscriptions?show_stats=true&token=${from + limit}&limit=${limit}` };
    return route.fulfill({ json: { items, _links: from + limit < wanted.length ? { next } : {} } });
  });
  await page.route(/\/stats\?/, (route) => {
    asked++;
    return route.fulfill({ json: { items: status(Number(/id-(\d+)/.exec(route.request().url())[1])) } });
  });
  await open(page, "#/subscriptions");
  await page.getByText("5,000 subscriptions").waitFor();
  await page.getByText("1 stalled").first().waitFor();
  await page.getByRole("cell", { name: "11", exact: true }).waitFor();
  await page.getByRole("cell", { name: "1.5 minutes" }).first().waitFor();
  const rows = await page.getByRole("table", { name: "Subscriptions" }).getByRole("row").count();
  assert.ok(rows < 60, `${rows} rows are drawn`);
  assert.ok(asked < 200, `${asked} were measured`);
  await picture(page, "subscriptions-many");
  await page.getByLabel("Search subscriptions").fill("team-96");
  await page.getByText("51 of 5,000 subscriptions").waitFor();
  // All subscriptions found by the search are measured, even if their rows were never visible.
  await page.getByRole("button", { name: "Waiting", exact: true }).click();
  await page.getByRole("table", { name: "Subscriptions" }).getByRole("row").nth(1).getByText("team-96 / 4946").waitFor();
  assert.ok(asked < 250, `${asked} were measured`);
  assert.equal(pages, 0);
  // Many subscriptions are measured together.
  await page.getByLabel("Search subscriptions").fill("");
  await page.getByRole("table", { name: "Subscriptions" }).getByRole("row").nth(1).getByText("/ 4999").waitFor();
  await page.getByText("5,000 subscriptions", { exact: true }).waitFor();
  assert.equal(pages, 50);
  assert.ok(asked < 400, `${asked} were measured`);
  await page.getByLabel("Search subscriptions").fill("team-5 / 4564");
  await page.getByText("1 of 5,000 subscriptions").waitFor();
});

test("a subscription shows who reads its partitions, and what waits in them", async (page) => {
  await eventType("page.read");
  await publish("page.read", ...Array.from({ length: 9 }, (_, n) => ({ n })));
  const { id } = await subscribe("page-reader", ["page.read"], { labels: { team: "shipping" } });
  const read = await consume(id, { batch_limit: 3, commit_timeout: 60 }, ({ length }) => length > 0);
  await open(page, `#/subscriptions/${id}`);
  const row = page.getByRole("region", { name: "Partitions" }).getByRole("row").nth(1);
  await row.getByText(read.stream).waitFor();
  await row.getByText("read", { exact: true }).waitFor();
  await row.getByRole("cell", { name: "9", exact: true }).waitFor();
  await page.getByText("1 stream, 1 of 1 partition").waitFor();
  await accessible(page);
  await picture(page, "subscription");
  await page.getByRole("link", { name: "Definition" }).click();
  await page.getByText("team=shipping").waitFor();
  await accessible(page);
  read.end();
});

test("a reset shows how many events will wait before it is made", async (page) => {
  await eventType("reset.it");
  await publish("reset.it", ...Array.from({ length: 20 }, (_, n) => ({ n })));
  const { id } = await subscribe("resetting", ["reset.it"]);
  await catchUp(id, 20);
  const waiting = async () => {
    const { items } = await call("GET", `/subscriptions/${id}/stats`);
    return items[0].partitions[0].unconsumed_events;
  };
  assert.equal(await waiting(), 0);
  await open(page, `#/subscriptions/${id}`);
  await page.getByRole("button", { name: "Reset…" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByText("20 events will wait.").waitFor();
  await dialog.getByText("20 events more than now: they come again.").waitFor();
  await accessible(page);
  await picture(page, "subscription-reset");
  assert.equal(await waiting(), 0);
  const [{ oldest_available_offset: oldest }] = await call("GET", "/event-types/reset.it/partitions");
  await dialog.getByLabel("After an offset of one partition").click();
  await dialog.getByRole("combobox").selectOption("reset.it 0");
  await dialog.getByRole("textbox", { name: "Offset" }).fill(oldest);
  await dialog.getByText("19 events will wait.").waitFor();
  await dialog.getByRole("button", { name: "Reset", exact: true }).click();
  await dialog.waitFor({ state: "detached" });
  assert.equal(await waiting(), 19);
  await page.getByRole("button", { name: "Reset…" }).click();
  await dialog.getByLabel("A time").click();
  await dialog.locator("input[type=datetime-local]").fill("2020-01-01T00:00:00");
  await dialog.getByText("1 event more than now: they come again.").waitFor();
  await dialog.getByLabel("Events published from now on").click();
  await dialog.getByText("19 events fewer than now: they are skipped.").waitFor();
  await dialog.getByRole("button", { name: "Reset", exact: true }).click();
  await dialog.waitFor({ state: "detached" });
  assert.equal(await waiting(), 0);
});

test("a place that the broker refuses is explained where it was chosen", async (page) => {
  const { items } = await call("GET", "/subscriptions?owning_application=resetting");
  await open(page, `#/subscriptions/${items[0].id}`);
  await page.getByRole("button", { name: "Reset…" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("After an offset of one partition").check();
  await dialog.getByText("Choose the position at which the subscription continues.").waitFor();
  assert.ok(await dialog.getByRole("button", { name: "Reset", exact: true }).isDisabled());
  await page.keyboard.press("Escape");
  await dialog.waitFor({ state: "detached" });
});

test("a partition that is given back in the middle of an event is free at once", async (page) => {
  await eventType("give.it");
  await publish("give.it", { n: "the first" });
  const { id } = await subscribe("giving", ["give.it"]);
  await open(page, `#/subscriptions/${id}`);
  await page.getByRole("button", { name: "Take over give.it 0" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByRole("button", { name: "Take over" }).click();
  await dialog.getByText('"the first"').waitFor();
  await dialog.getByRole("button", { name: "More time" }).click();
  await page.getByText("60 more seconds").waitFor();
  await dialog.getByRole("button", { name: "Give it back" }).click();
  await page.getByText("Consumers have the partition again").waitFor();
  await dialog.waitFor({ state: "detached" });
  // There is one partition, so a stream that still had it would leave no room for the new stream.
  const { events, end } = await consume(id, { batch_limit: 1 }, ({ length }) => length > 0);
  end();
  assert.equal(events[0].n, "the first");
});

test("a partition is taken from a stream, its event looked at and committed, and given back", async (page) => {
  await eventType("take.it");
  await publish("take.it", { n: "the first" }, { n: "the second" });
  const { id } = await subscribe("taking", ["take.it"]);
  // The stream does not commit, so it has to give up the partition. On a slow machine it already has.
  const reading = await consume(id, { batch_limit: 1, commit_timeout: 5 }, ({ length }) => length > 0);
  await open(page, `#/subscriptions/${id}`);
  await page.getByRole("button", { name: "Take over take.it 0" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByRole("button", { name: "Take over" }).click();
  await dialog.getByText('"the first"').waitFor();
  await picture(page, "subscription-take");
  reading.end();
  await dialog.getByRole("button", { name: "Commit it and continue" }).click();
  await dialog.getByText('"the second"').waitFor();
  await dialog.getByRole("button", { name: "Commit it and continue" }).click();
  await dialog.getByRole("heading", { name: "The partition is taken; no event waits" }).waitFor();
  await accessible(page);
  await dialog.getByRole("button", { name: "Give it back" }).click();
  await dialog.waitFor({ state: "detached" });
  await page.getByText("no stream: start a consumer").waitFor();
  await publish("take.it", { n: "the third" });
  const { events, end } = await consume(id, { batch_limit: 1 }, ({ length }) => length > 0);
  end();
  assert.equal(events[0].n, "the third");
});

test("parked events are browsed by key, looked at, sent once more, and skipped", async (page) => {
  await eventType("park.it", KEYED);
  await publish("park.it", { key: "a", event: "a1" }, { key: "a", event: "a2" }, { key: "b", event: "b1" });
  const { id } = await subscribe("parking", ["park.it"], { annotations: ANNOTATIONS });
  await open(page, `#/subscriptions/${id}?tab=parked`);
  await page.getByRole("heading", { name: "No event is parked" }).waitFor();
  await failUntilParked(id);
  // Events with the same key follow as soon as a stream reads them.
  const rest = await consume(id, { batch_limit: 1 }, ({ length }) => length > 0);
  rest.end();
  await open(page);
  await open(page, `#/subscriptions/${id}?tab=parked`);
  await page.getByText("2 events, 1 key").waitFor();
  const first = page.getByRole("row").nth(1);
  await first.getByText("failed 2 times").waitFor();
  await first.getByRole("cell", { name: "1", exact: true }).waitFor();
  await page.getByRole("row").nth(2).getByText("waits after another one").waitFor();
  await accessible(page);
  await picture(page, "parked");
  await first.getByRole("button", { name: /^Show/ }).click();
  await page.getByRole("dialog").getByText('"a1"').waitFor();
  await accessible(page);
  await page.keyboard.press("Escape");
  await page.getByLabel("Only the key").fill("b");
  await page.getByRole("button", { name: "Show all keys" }).click();
  await page.getByRole("row").nth(2).getByRole("checkbox").check();
  await page.getByRole("button", { name: "Skip 1 chosen…" }).click();
  const dialog = page.getByRole("dialog");
  assert.ok(await dialog.getByRole("button", { name: "Skip" }).isDisabled());
  await dialog.getByLabel("Type 1 to confirm").fill("1");
  await dialog.getByRole("button", { name: "Skip" }).click();
  await page.getByText("1 event, 1 key").waitFor();
  await page.getByRole("row").nth(1).getByRole("checkbox").check();
  await page.getByRole("button", { name: "Redrive the keys of 1 chosen" }).click();
  await page.getByText("is being redriven").waitFor();
  const again = await consume(id, { batch_limit: 1 }, ({ length }) => length > 0);
  again.end();
  assert.equal(again.events[0].event, "a1");
});

test("all parked events are sent once more at once, and what waited after them follows", async (page) => {
  await eventType("park.all", KEYED);
  await publish("park.all", { key: "a", event: "a1" }, { key: "b", event: "b1" }, { key: "a", event: "a2" });
  const { id } = await subscribe("parking-all", ["park.all"], { annotations: ANNOTATIONS });
  for (let round = 0, found = []; found.length < 3; round++) {
    assert.ok(round < 40, "not all were parked");
    await consume(id, { batch_limit: 1, stream_timeout: 5 });
    found = (await call("GET", `/subscriptions/${id}/parked-events`)).items;
  }
  await open(page, `#/subscriptions/${id}?tab=parked`);
  await page.getByText("3 events, 2 keys").waitFor();
  await page.getByRole("button", { name: "Redrive all" }).click();
  await page.getByText("is being redriven").nth(2).waitFor();
  const again = await consume(id, { batch_limit: 1, max_uncommitted_events: 10 }, ({ length }) => length >= 2);
  again.end();
  assert.deepEqual(new Set(again.events.map((each) => each.key)), new Set(["a", "b"]));
});

test("a subscription without a policy says how its events are parked", async (page) => {
  const { items } = await call("GET", "/subscriptions?owning_application=taking");
  await open(page, `#/subscriptions/${items[0].id}?tab=parked`);
  await page.getByRole("heading", { name: "A failed event is redelivered indefinitely" }).waitFor();
  await page.getByText("subscription-unprocessable-event-policy=PARK_KEY").waitFor();
  await accessible(page);
});

test("a subscription is deleted when its name is typed", async (page) => {
  const { id } = await subscribe("deleting", ["list.first"]);
  await open(page, `#/subscriptions/${id}`);
  await page.getByRole("button", { name: "Delete…" }).click();
  const dialog = page.getByRole("dialog");
  const remove = dialog.getByRole("button", { name: "Delete", exact: true });
  await dialog.getByRole("textbox").fill("deleting");
  assert.ok(await remove.isDisabled());
  await dialog.getByRole("textbox").fill("deleting / default");
  await remove.click();
  await page.getByRole("heading", { name: "Subscriptions" }).waitFor();
  const { items } = await call("GET", "/subscriptions?owning_application=deleting");
  assert.equal(items.length, 0);
});

test("an objective is set, and says which partition is late and why", async (page) => {
  await eventType("objective.set");
  const { id } = await subscribe("objective.set", ["objective.set"]);
  await publish("objective.set", {}, {});
  await catchUp(id, 1);
  page.expectErrors(/404|422/);
  await open(page, `#/subscriptions/${id}?tab=objective`);
  await page.getByRole("button", { name: "Set an objective…" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Percent of the events").fill("100");
  await dialog.getByRole("button", { name: "Set" }).click();
  await dialog.getByRole("alert").getByText(/percent/).waitFor();
  await dialog.getByLabel("Percent of the events").fill("99.5");
  await dialog.getByLabel("Seconds").fill("1");
  await accessible(page);
  await dialog.getByRole("button", { name: "Set" }).click();
  await page.getByText("99.5 % of the events within 1 second", { exact: true }).waitFor();
  await page.getByText(/no stream reads it|commits nothing|slower than/).waitFor();
  await accessible(page);
  await picture(page, "objective");
  await page.getByRole("button", { name: "Remove" }).click();
  await page.getByRole("heading", { name: "This subscription has no objective" }).waitFor();
});
