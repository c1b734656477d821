import { accessible, assert, call, eventType, open, picture, test } from "./browser.mjs";

const field = (page) => page.getByLabel("SQL");
const result = (page) => page.getByRole("region", { name: "Result" });

test("the page has an example that runs by Ctrl+Enter, and its result is a table and a plot", async (page) => {
  await eventType("query.orders", { schema: { properties: { n: { type: "integer" } } } });
  await call("POST", "/event-types/query.orders/events", Array.from({ length: 7 }, (_, n) => ({ n })));
  await open(page);
  await page.getByRole("link", { name: "Queries" }).click();
  await page.waitForFunction(() => document.querySelector("textarea")?.value.includes('from "query.orders"'));
  await field(page).press("Control+Enter");
  await page.getByText(/^1 row in /).waitFor();
  await result(page).getByRole("cell", { name: "7", exact: true }).waitFor();
  await field(page).fill("select timestamptz '2026-11-27 10:00:00+00' + interval 1 hour * range as hour, range * range as events, 60 - range as others from range(20)");
  await page.getByRole("button", { name: "Run" }).click();
  await page.getByText(/^20 rows in /).waitFor();
  await page.getByRole("img", { name: /^Over hour\. events: 361, others: 41\. At most 361\./ }).waitFor();
  await accessible(page);
  await picture(page, "queries-times");
});

test("numbers over names are bars, values keep their digits, and a longer result says so", async (page) => {
  await open(page, `#/queries?sql=${encodeURIComponent("select 'country ' || range as country, range * 1.10 as sold, null as note, 1234567890123456789 as id from range(200)")}`);
  await page.getByRole("button", { name: "Run" }).click();
  await page.getByText(/^cut after 50 rows in /).waitFor();
  await page.getByText("There are more rows: these are the first 50.").waitFor();
  await page.getByRole("figure").getByText("sold by country, the first 30").waitFor();
  await result(page).getByRole("cell", { name: "1234567890123456789" }).first().waitFor();
  await result(page).getByRole("cell", { name: "1.10", exact: true }).waitFor();
  await accessible(page);
  await picture(page, "queries-names");
});

test("numbers over numbers are bars, places of events are not drawn, and a wide result scrolls", async (page) => {
  await eventType("query.wide", { schema: { properties: { amount: { type: "integer" }, note: { type: "string" } } } });
  await call("POST", "/event-types/query.wide/events", [1, 2, 3].map((amount) => ({ amount, note: "long ".repeat(60) })));
  await open(page, `#/queries?sql=${encodeURIComponent("select nakadi_partition, count(*) as events from (from \"query.wide\" union all select * replace (7 as nakadi_partition) from \"query.wide\") group by all order by all")}`);
  await page.getByRole("button", { name: "Run" }).click();
  await page.getByRole("figure").getByText("events by nakadi_partition").waitFor();
  await field(page).fill("select * replace (now() + interval 1 hour * amount as nakadi_time) from \"query.wide\" order by amount");
  await page.getByRole("button", { name: "Run" }).click();
  await page.getByText(/^3 rows in /).waitFor();
  await page.getByRole("img", { name: /^Over nakadi_time\. nakadi_size: [0-9,]+, amount: 3\. / }).waitFor();
  const texts = result(page).getByText(/^long /);
  assert.ok((await texts.first().boundingBox()).width > 400);
  await accessible(page);
  await picture(page, "queries-wide");
  await field(page).fill("select now() as time, amount from \"query.wide\" limit 2");
  await page.getByRole("button", { name: "Run" }).click();
  await page.getByText(/^2 rows in /).waitFor();
  assert.equal(await page.getByRole("img").count(), 0);
});

test("a refused query shows why, and one that runs can be stopped", async (page) => {
  page.expectErrors(/422|ERR_ABORTED/);
  await open(page, "#/queries");
  await field(page).fill("from read_csv('/etc/passwd')");
  await page.getByRole("button", { name: "Run" }).click();
  await page.getByRole("alert").getByText("The function read_csv cannot be used in FROM: a query reads event types.").waitFor();
  await accessible(page);
  await picture(page, "queries-refused");
  await field(page).fill("select max(hash(a.range + b.range)) from range(10000000000) a, range(1000000) b");
  await page.getByRole("button", { name: "Run" }).click();
  await page.getByText("Running…").waitFor();
  await page.getByRole("button", { name: "Stop" }).click();
  await page.getByText("Running…").waitFor({ state: "hidden" });
  assert.equal(await page.getByRole("alert").count(), 0);
});

test("a broker without queries has no page for them in its menu, and says why it refuses one", async (page) => {
  page.expectErrors(/501/);
  await page.route("**/console/config.json", (route) => route.fulfill({ json: { sign_in: null, queries: false } }));
  await page.route("**/queries", (route) => route.fulfill({
    status: 501, contentType: "application/problem+json",
    json: { title: "Not Implemented", status: 501, detail: "duckdb is missing: pip install 'nakadi-serverless[sql]'" },
  }));
  await open(page);
  await page.getByRole("link", { name: "Dead letters" }).waitFor();
  assert.equal(await page.getByRole("link", { name: "Queries" }).count(), 0);
  await open(page, "#/queries?sql=select");
  await page.getByRole("button", { name: "Run" }).click();
  await page.getByText("duckdb is missing: pip install 'nakadi-serverless[sql]'").waitFor();
});

test("a result can be looked at on a phone", async (page) => {
  await open(page, `#/queries?sql=${encodeURIComponent("select 'a country with a long name ' || range as country, range as sold, repeat('word ', 40) as text from range(9)")}`);
  await page.getByRole("button", { name: "Run" }).click();
  await page.getByText(/^9 rows in /).waitFor();
  const width = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(width <= 390, `the page is ${width} wide`);
  await picture(page, "queries-phone");
}, { viewport: { width: 390, height: 800 } });
