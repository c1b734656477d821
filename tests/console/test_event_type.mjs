import { accessible, assert, call, eventType, open, picture, test } from "./browser.mjs";

const SCHEMA = {
  type: "object",
  description: "What a customer bought",
  properties: {
    number: { type: "string", description: "The number on the bill", pattern: "^[0-9]+$" },
    customer: { type: "object", properties: { id: { type: "string" }, city: { type: "string" } }, required: ["id"] },
    items: { type: "array", items: { type: "object", properties: { sku: { type: "string" }, price: { type: "number" } } } },
  },
  required: ["number"],
};

test("the definition shows what holds, who may do what, and how long events stay", async (page) => {
  await eventType("order.defined", {
    schema: SCHEMA,
    partition_strategy: "hash",
    partition_key_fields: ["number"],
    labels: { team: "orders" },
    options: { retention_time: 86_400_000 },
    default_statistic: { messages_per_minute: 600, message_size: 400, read_parallelism: 3, write_parallelism: 1 },
    authorization: {
      admins: [{ data_type: "user", value: "ann" }],
      readers: [{ data_type: "*", value: "*" }],
      writers: [{ data_type: "service", value: "till" }],
    },
  });
  await open(page, "#/event-types");
  await page.getByRole("link", { name: "order.defined" }).click();
  await page.getByRole("heading", { name: "order.defined" }).waitFor();
  for (const text of ["1 day", "hash", "number", "team=orders", "service: till", "everyone", "600"]) {
    await page.getByText(text, { exact: true }).first().waitFor();
  }
  await accessible(page);
  await picture(page, "definition");
});

test("the schema is a tree, and versions have a readable difference", async (page) => {
  await eventType("order.evolving", { schema: SCHEMA });
  const type = await call("GET", "/event-types/order.evolving");
  const properties = { ...SCHEMA.properties, coupon: { type: "string" } };
  const schema = { type: "json_schema", schema: JSON.stringify({ ...SCHEMA, properties }) };
  await call("PUT", "/event-types/order.evolving", { ...type, authorization: undefined, schema });
  await open(page, "#/event-types/order.evolving/schema");
  await page.getByRole("heading", { name: "Version 1.1.0" }).waitFor();
  await page.getByText("The number on the bill", { exact: true }).waitFor();
  await page.getByText("sku", { exact: true }).waitFor();
  await page.getByText("#/properties/coupon").waitFor();
  await page.getByText('+ "coupon": {').waitFor();
  await accessible(page);
  await picture(page, "schema");
  await page.getByLabel("Version").selectOption("1.0.0");
  await page.getByText("It is the first version.").waitFor();
});

test("partitions show their events, where they begin and end, and what comes in", async (page) => {
  const default_statistic = { messages_per_minute: 60, message_size: 100, read_parallelism: 2, write_parallelism: 1 };
  await eventType("order.parted", { partition_strategy: "hash", partition_key_fields: ["n"], default_statistic,
    schema: { properties: { n: { type: "integer" } }, required: ["n"] } });
  await call("POST", "/event-types/order.parted/events", Array.from({ length: 50 }, (_, n) => ({ n })));
  await open(page, "#/event-types/order.parted/partitions");
  await page.getByText("50 events in all").waitFor();
  await page.getByRole("region", { name: "Timelines" }).getByText("default").waitFor();
  await page.getByText(/a second now/).waitFor();
  assert.equal(await page.getByRole("region", { name: "Partitions" }).getByRole("row").count(), 3);
  await accessible(page);
  await picture(page, "partitions");
});

test("runs that filled the table are listed, with what was wrong", async (page) => {
  await eventType("order.tabled");
  await open(page, "#/event-types/order.tabled/table");
  await page.getByRole("heading", { name: "No run has added events to a table" }).waitFor();
  const run = (minute, more) => ({
    job: "compaction", started_at: `2026-11-20T02:0${minute}:04Z`, ended_at: `2026-11-20T02:0${minute}:17Z`,
    rows: 18250, late_events: null, duplicates: 0, missing_events: 0, misfits: 0, misfit_reasons: [], expectations: [],
    lag_seconds: 74.2, cost: { seconds: 9.8, bytes_read: 1840211, bytes_written: 1120034 }, ...more,
  });
  const wrong = { misfits: 2, misfit_reasons: [{ rule: "bigint", path: "customer.points", events: 2 }],
    expectations: [{ annotation: "nakadi.io/expect", condition: "total >= 0", unmet: 3 }], late_events: 12 };
  await page.route(/\/table-runs/, (route) => route.fulfill({ json: { items: [run(7, wrong), run(2, wrong), run(1, {})] } }));
  await page.reload();
  const runs = page.getByRole("region", { name: "Runs" });
  await runs.getByText("18,250").first().waitFor();
  assert.equal(await runs.getByText("not counted").count(), 1);
  assert.match(await page.getByRole("region", { name: "Misfits" }).textContent(), /customer\.points.*bigint.*4/);
  assert.match(await page.getByRole("region", { name: "Expectations" }).textContent(), /total >= 0.*6/);
  const plot = page.getByRole("img", { name: /Faulty events/ });
  assert.match(await plot.locator("path").first().getAttribute("d"), /^M.*L.*L/);
  await accessible(page);
  await picture(page, "table-runs");
});

test("who subscribes is listed, and without anyone it says how to subscribe", async (page) => {
  await eventType("order.read");
  await open(page, "#/event-types/order.read/subscriptions");
  await page.getByRole("heading", { name: "No application subscribes to this event type" }).waitFor();
  await picture(page, "subscribers-none");
  const { id } = await call("POST", "/subscriptions", { owning_application: "mailer", event_types: ["order.read"] });
  await page.reload();
  await page.getByRole("link", { name: id }).waitFor();
  await page.getByText("mailer").waitFor();
  await accessible(page);
});

test("what subscriptions declare to read is listed, and what no one reads", async (page) => {
  await eventType("order.declared", { schema: { properties: { a: { type: "string" }, b: { type: "number" } } } });
  await call("POST", "/subscriptions", { owning_application: "mailer", event_types: ["order.declared"], reads: ["a"], projection: true });
  await call("POST", "/subscriptions", { owning_application: "printer", event_types: ["order.declared"] });
  await open(page, "#/event-types/order.declared/subscriptions");
  const readers = page.getByRole("region", { name: "Who reads what" });
  await readers.getByRole("row").filter({ hasText: "mailer" }).getByText("a", { exact: true }).waitFor();
  await readers.getByRole("row").filter({ hasText: "printer" }).getByText("declares nothing").waitFor();
  await readers.getByText("No subscription declares that it reads b. 1 subscription may read it all the same.").waitFor();
  await accessible(page);
  await picture(page, "readers");
});

test("an event type is deleted only after its name was typed", async (page) => {
  await eventType("order.unwanted");
  await open(page, "#/event-types/order.unwanted");
  await page.getByRole("button", { name: "Delete…" }).click();
  const sure = page.getByRole("dialog").getByRole("button", { name: "Delete" });
  await page.getByLabel("Type order.unwanted to confirm").fill("order.wanted");
  assert.ok(await sure.isDisabled());
  await picture(page, "delete");
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  await page.getByRole("button", { name: "Delete…" }).click();
  await page.getByLabel("Type order.unwanted to confirm").fill("order.unwanted");
  await page.keyboard.press("Enter");
  await page.getByText("order.unwanted is deleted").waitFor();
  const left = await call("GET", "/event-types");
  assert.ok(left.every(({ name }) => name !== "order.unwanted"));
});

test("a refusal is shown with its reason and its flow id", async (page) => {
  page.expectErrors(/404/);
  await open(page, "#/event-types/order.missing");
  await page.getByRole("alert").getByText('EventType "order.missing" does not exist.').waitFor();
  await page.getByText(/Flow id \w+/).waitFor();
  await accessible(page);
  await picture(page, "refusal");
});
