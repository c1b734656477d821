import { accessible, assert, call, eventType, open, picture, test } from "./browser.mjs";

/** A control with its label, hint and error. */
const field = (page, label) => page.locator(".field", { has: page.getByLabel(label, { exact: true }) });

test("an event type is created from a sample event, with a schema that is proposed and can be edited", async (page) => {
  await open(page);
  await page.getByRole("link", { name: "Create an event type" }).click();
  await page.getByLabel("Name", { exact: true }).fill("order.sampled");
  await page.getByLabel("Owner").fill("shop");
  await page.getByLabel("Labels").fill("team=orders");
  await page.getByLabel("Retention in hours").fill("24");
  await page.getByLabel("Publish once within, in seconds").fill("300");
  await page.getByLabel("Read", { exact: true }).fill("*");
  await page.getByLabel("Publish", { exact: true }).fill("service:till");
  await page.getByLabel("Change and delete", { exact: true }).fill("user:unauthenticated\nuser:ann");
  const sample = '{"metadata": {"eid": "x"}, "number": "17", "items": [{"sku": "a", "price": 1}, {"sku": "b", "price": 2.5}]}';
  await page.getByLabel("Sample events").fill(sample);
  await page.getByRole("button", { name: "Propose a schema" }).click();
  const schema = page.getByLabel("JSON schema");
  assert.deepEqual(JSON.parse(await schema.inputValue()), {
    type: "object",
    properties: {
      number: { type: "string" },
      items: {
        type: "array",
        items: { type: "object", properties: { sku: { type: "string" }, price: { type: "number" } }, required: ["sku", "price"] },
      },
    },
    required: ["number", "items"],
  });
  await schema.fill((await schema.inputValue()).replace('"number",', ""));
  await accessible(page);
  await picture(page, "create");
  await page.getByRole("button", { name: "Create", exact: true }).click();
  await page.getByText("order.sampled is created").waitFor();
  const type = await call("GET", "/event-types/order.sampled");
  assert.equal(type.options.retention_time, 86_400_000);
  assert.deepEqual(type.deduplication, { window_seconds: 300 });
  assert.deepEqual(type.labels, { team: "orders" });
  assert.deepEqual(type.authorization.readers, [{ data_type: "*", value: "*" }]);
  assert.deepEqual(JSON.parse(type.schema.schema).required, ["items"]);
});

test("a refusal stands at the fields that it speaks of, with its flow id", async (page) => {
  page.expectErrors(/4\d\d/);
  await open(page, "#/create-event-type");
  await page.getByLabel("Name", { exact: true }).fill("9.wrong");
  await page.getByLabel("Owner").fill("shop");
  await page.getByLabel("Labels").fill("#=x");
  await page.getByRole("button", { name: "Create", exact: true }).click();
  await field(page, "Name").getByText("format not allowed").waitFor();
  await field(page, "Labels").getByText(/Key name should start/).waitFor();
  await page.getByText(/Flow id \w+/).waitFor();
  await accessible(page);
  await picture(page, "create-refused");
  await page.getByLabel("Name", { exact: true }).fill("order.right");
  await page.getByLabel("Labels").fill("");
  await page.getByLabel("Partition strategy").selectOption("hash");
  await page.getByRole("button", { name: "Create", exact: true }).click();
  await field(page, "Partition keys").getByText(/should be set/).waitFor();
  await page.getByLabel("Partition strategy").selectOption("random");
  await page.getByLabel("JSON schema").fill('{"properties": {"n": {"type": "strin"}}}');
  await page.getByRole("button", { name: "Create", exact: true }).click();
  await field(page, "JSON schema").getByText(/unknown type: \[strin\]/).waitFor();
});

test("a schema change is explained before it is made, by rule and path", async (page) => {
  page.expectErrors(/422/);
  const schema = { type: "object", properties: { a: { type: "string" }, b: { type: "number" } } };
  await eventType("order.changing", { schema, labels: { team: "orders" }, options: { retention_time: 86_400_000 } });
  await open(page, "#/event-types/order.changing");
  await page.getByRole("link", { name: "Change", exact: true }).click();
  const text = page.getByLabel("JSON schema");
  await text.fill(JSON.stringify({ type: "object", properties: { a: { type: "integer" } } }));
  const meaning = page.getByRole("region", { name: "The effect of the change" });
  await meaning.getByText("Mode forward does not allow it after version 1.0.0").waitFor();
  await meaning.getByText("The type of the schema at #/properties/a changed").waitFor();
  await meaning.getByText("The property `b` was removed").waitFor();
  await accessible(page);
  await picture(page, "change-refused");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByRole("list", { name: "Reasons" }).getByText("PROPERTY_REMOVED").waitFor();
  assert.equal((await call("GET", "/event-types/order.changing")).schema.version, "1.0.0");
  await text.fill(JSON.stringify({ ...schema, properties: { ...schema.properties, c: { type: "boolean" } } }));
  await meaning.getByText("Mode forward allows it").waitFor();
  await meaning.getByText("as a minor version").waitFor();
  await meaning.getByText("Properties were added at #/properties").waitFor();
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByText("order.changing is changed").waitFor();
  const type = await call("GET", "/event-types/order.changing");
  assert.equal(type.schema.version, "1.1.0");
  assert.deepEqual([type.labels, type.options.retention_time], [{ team: "orders" }, 86_400_000]);
});

test("a schema change names those who read what it takes away, and can be made in spite of them", async (page) => {
  page.expectErrors(/422/);
  await eventType("order.watched", { schema: { properties: { a: { type: "integer" } } } });
  const { id } = await call("POST", "/subscriptions", { owning_application: "mailer", event_types: ["order.watched"], reads: ["a"] });
  await open(page, "#/event-types/order.watched/edit");
  await page.getByLabel("JSON schema").fill(JSON.stringify({ properties: { a: { type: "number" } } }));
  const meaning = page.getByRole("region", { name: "The effect of the change" });
  await meaning.getByText("The broker refuses it after version 1.0.0 because of its readers.").waitFor();
  await meaning.getByText("`a` may now be a fraction, but was always an integer.").waitFor();
  await accessible(page);
  await picture(page, "change-readers");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByRole("button", { name: "Change it in spite of them" }).click();
  await page.getByText("order.watched is changed").waitFor();
  await open(page, `#/subscriptions/${id}?tab=definition`);
  await page.getByRole("list", { name: "Changed since" }).getByText("`a` may now be a fraction").waitFor();
  await accessible(page);
  await picture(page, "subscription-changed-reads");
});

test("a schema is rehearsed with the stored events before it is saved", async (page) => {
  page.expectErrors(/422/);
  await eventType("order.rehearsed", { schema: { properties: { a: {} } }, compatibility_mode: "none" });
  await call("POST", "/event-types/order.rehearsed/events", [{ a: "x" }, { a: 1 }]);
  await open(page, "#/event-types/order.rehearsed/edit");
  await page.getByLabel("JSON schema").fill(JSON.stringify({ properties: { a: { type: "string" } } }));
  const rehearsal = page.getByRole("region", { name: "Rehearsal" });
  await rehearsal.getByRole("button", { name: "Rehearse this schema" }).click();
  await rehearsal.getByText("It refuses 1 of 2 events.").waitFor();
  await rehearsal.getByRole("list", { name: "Broken rules" }).getByText("#/a").waitFor();
  await rehearsal.getByText(/^Partition 0, offset/).click();
  await accessible(page);
  await picture(page, "change-rehearsed");
  await rehearsal.getByLabel("Events of the last").fill("a week");
  await rehearsal.getByRole("button", { name: "Rehearse this schema" }).click();
  await rehearsal.getByText(/is a number with a unit/).waitFor();
  await rehearsal.getByLabel("Events of the last").fill("1h");
  await page.getByLabel("JSON schema").fill("{}");
  await rehearsal.getByRole("button", { name: "Rehearse this schema" }).click();
  await rehearsal.getByText("It refuses none of 2 events.").waitFor();
});

test("a refused schema change comes with one that is accepted", async (page) => {
  await eventType("order.proposed", { schema: { type: "object", properties: { a: { type: "string" }, "b/c": { type: "number" } } } });
  await open(page, "#/event-types/order.proposed");
  await page.getByRole("link", { name: "Change", exact: true }).click();
  const text = page.getByLabel("JSON schema");
  await text.fill(JSON.stringify({ type: "object", properties: { a: { type: "integer" } } }));
  const meaning = page.getByRole("region", { name: "The effect of the change" });
  await meaning.getByText("A schema that would be accepted").click();
  await accessible(page);
  await picture(page, "change-proposed");
  await meaning.getByRole("button", { name: "Use this schema" }).click();
  await meaning.getByText("Mode forward allows it").waitFor();
  assert.deepEqual(JSON.parse(await text.inputValue()), {
    type: "object",
    properties: { a: { type: "string" }, a_2: { type: "integer" }, "b/c": { type: "number" } },
  });
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByText("order.proposed is changed").waitFor();
});

test("an event type with an Avro schema is shown and changed, and keeps the schema", async (page) => {
  const schema = JSON.stringify({ type: "record", name: "Order", fields: [{ name: "id", type: "string" }] });
  const draft = { name: "order.avro", owning_application: "shop", category: "undefined", schema: { type: "avro_schema", schema } };
  await call("POST", "/event-types", draft);
  await open(page, "#/event-types/order.avro/schema");
  await page.getByText("It is an Avro schema.").waitFor();
  await page.getByLabel("Source").getByText('"record"').waitFor();
  await page.getByRole("link", { name: "Change the schema" }).click();
  await page.getByLabel("Avro schema").waitFor();
  assert.equal(await page.getByText("Rehearsal with stored events").count(), 0);
  await page.getByLabel("Owner").fill("other-shop");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await page.getByText("order.avro is changed").waitFor();
  const type = await call("GET", "/event-types/order.avro");
  assert.deepEqual([type.owning_application, type.schema.type, type.schema.schema], ["other-shop", "avro_schema", schema]);
});
