import { createServer } from "node:http";
import { accessible, assert, call, eventType, open, picture, test } from "./browser.mjs";

/** A receiver that answers as `decide` says. It keeps the numbers of the accepted events. */
async function receiver() {
  const found = { decide: () => [204, ""], taken: [] };
  const server = createServer((request, response) => {
    const chunks = [];
    request.on("data", (chunk) => chunks.push(chunk));
    request.on("end", () => {
      const { events } = JSON.parse(Buffer.concat(chunks).toString());
      const [status, text] = found.decide(events);
      if (status < 300) found.taken.push(...events.map(({ n }) => n));
      response.writeHead(status).end(text);
    });
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  // The server does not keep the process alive.
  server.unref();
  found.url = `http://127.0.0.1:${server.address().port}/hook`;
  return found;
}

async function subscription(name) {
  await eventType(name);
  const { id } = await call("POST", "/subscriptions", { owning_application: name, event_types: [name], read_from: "begin" });
  return id;
}

const publish = (name, ...numbers) => call("POST", `/event-types/${name}/events`, numbers.map((n) => ({ n })));
const register = (id, { url }) => call("PUT", `/subscriptions/${id}/sink`, { type: "http", url });

test("a sink is added, and its secret shown once", async (page) => {
  const sink = await receiver();
  const id = await subscription("sink.added");
  page.expectErrors(/404|422/);
  await open(page, `#/subscriptions/${id}?tab=sink`);
  await page.getByRole("heading", { name: "This subscription has no sink" }).waitFor();
  await accessible(page);
  await page.getByRole("button", { name: "Add a sink…" }).click();
  const dialog = page.getByRole("dialog");
  await accessible(page);
  await dialog.getByLabel("URL").fill("http://10.0.0.1/hook");
  await dialog.getByRole("button", { name: "Add" }).click();
  await dialog.getByRole("alert").getByText(/url/).waitFor();
  assert.equal(await dialog.getByLabel("URL").inputValue(), "http://10.0.0.1/hook");
  await dialog.getByLabel("URL").fill(sink.url);
  await dialog.getByLabel("Headers").fill("Authorization: Bearer 4711");
  await picture(page, "sink-edit");
  await dialog.getByRole("button", { name: "Add" }).click();
  const secret = page.getByRole("dialog", { name: "The new secret" });
  assert.match(await secret.locator("code").textContent(), /^whsec_/);
  await secret.getByRole("button", { name: "Close" }).click();
  await publish("sink.added", 1, 2);
  await page.getByText("2 events in", { exact: false }).waitFor();
  await page.getByText("delivering", { exact: true }).waitFor();
  await page.getByText("Authorization", { exact: true }).waitFor();
  await accessible(page);
  await picture(page, "sink");
  assert.deepEqual(sink.taken, [1, 2]);
  await page.getByRole("button", { name: "Send a test" }).click();
  await page.getByText("The sink answered 204").waitFor();
});

test("a sink may be a queue, and keeps its filter when it is edited", async (page) => {
  const id = await subscription("sink.queue");
  const queue = "arn:aws:sqs:eu-central-1:123456789012:orders.fifo";
  page.expectErrors(/404/);
  await open(page, `#/subscriptions/${id}?tab=sink`);
  await page.getByRole("button", { name: "Add a sink…" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Deliver to").selectOption("A queue in Amazon SQS");
  await accessible(page);
  await dialog.getByRole("textbox", { name: "Queue" }).fill(queue);
  await dialog.getByRole("textbox", { name: "Filter" }).fill("n > 1");
  await dialog.getByRole("button", { name: "Add" }).click();
  await page.getByText(queue, { exact: true }).waitFor();
  await page.getByRole("button", { name: "Edit…" }).click();
  assert.equal(await dialog.getByRole("textbox", { name: "Queue" }).inputValue(), queue);
  await dialog.getByLabel("Events in a batch").fill("7");
  await dialog.getByRole("button", { name: "Save" }).click();
  await page.getByText("up to 7 events", { exact: false }).waitFor();
  const stored = await call("GET", `/subscriptions/${id}/sink`);
  assert.deepEqual([stored.type, stored.queue, stored.filter, stored.batch_limit], ["sqs", queue, "n > 1", 7]);
  assert.equal(await page.getByRole("button", { name: "Rotate the secret…" }).count(), 0);
});

test("a failing delivery is shown with its answer, and tried again or skipped", async (page) => {
  const sink = await receiver();
  sink.decide = (events) => (events.some(({ n }) => n === 2) ? [500, "cannot read n"] : [204, ""]);
  const id = await subscription("sink.failing");
  await register(id, sink);
  await publish("sink.failing", 2);
  await open(page, `#/subscriptions/${id}?tab=sink`);
  const failing = page.getByRole("alert", { name: "The failing delivery" });
  await failing.getByRole("heading", { name: "The sink answers 500" }).waitFor();
  await failing.getByText("cannot read n").waitFor();
  await page.getByRole("link", { name: "Sink failing" }).waitFor();
  await accessible(page);
  await picture(page, "sink-failing");
  await failing.getByRole("button", { name: "Skip the event…" }).click();
  const dialog = page.getByRole("dialog", { name: "Skip the event" });
  await dialog.getByRole("textbox").fill("0");
  await dialog.getByRole("button", { name: "Skip" }).click();
  await page.getByText("The event is skipped").waitFor();
  await publish("sink.failing", 3);
  await page.getByText("1 event in 1 batch").waitFor();
  assert.deepEqual(sink.taken, [3]);
  sink.decide = () => [500, "has a bad day"];
  await publish("sink.failing", 4);
  await failing.getByText("has a bad day").waitFor();
  sink.decide = () => [204, ""];
  await failing.getByRole("button", { name: "Try now" }).click();
  await page.getByText("delivering", { exact: true }).waitFor();
  assert.deepEqual(sink.taken, [3, 4]);
});

test("a sink is paused, resumed, given a new secret, and removed", async (page) => {
  const sink = await receiver();
  const id = await subscription("sink.changed");
  page.expectErrors(/404/);
  await register(id, sink);
  await open(page, `#/subscriptions/${id}?tab=sink`);
  await page.getByRole("button", { name: "Pause" }).click();
  await page.getByText(/^paused since/).waitFor();
  await page.getByRole("button", { name: "Resume" }).click();
  await page.getByRole("button", { name: "Pause" }).waitFor();
  await page.getByRole("button", { name: "Rotate the secret…" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Rotate" }).click();
  const secret = page.getByRole("dialog", { name: "The new secret" });
  await secret.getByText("whsec_", { exact: false }).waitFor();
  await secret.getByRole("button", { name: "Close" }).click();
  await page.getByRole("button", { name: "Edit…" }).click();
  const dialog = page.getByRole("dialog", { name: "Edit the sink" });
  await dialog.getByLabel("Format").selectOption("cloudevents");
  await dialog.getByRole("button", { name: "Save" }).click();
  await page.getByText("CloudEvents", { exact: true }).waitFor();
  await page.getByRole("button", { name: "Remove…" }).click();
  const removing = page.getByRole("dialog", { name: "Remove the sink" });
  await removing.getByRole("textbox").fill("sink.changed / default");
  await removing.getByRole("button", { name: "Remove" }).click();
  await page.getByRole("heading", { name: "This subscription has no sink" }).waitFor();
});
