import { accessible, assert, broker, eventType, open, picture, test, token } from "./browser.mjs";

test("a user signs in at the issuer, comes back to the same page, and signs out", async (page) => {
  // The list requests measurements of all event types, also of the broker's own, which not everyone may view.
  page.expectErrors(/40[13]/);
  await eventType("order.secret");
  await open(page, "#/event-types/order.secret");
  await page.getByRole("heading", { name: "Sign in" }).waitFor();
  await accessible(page);
  await picture(page, "sign-in");
  const renewed = page.waitForResponse((response) => response.request().postData()?.includes("grant_type=refresh_token"));
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("heading", { name: "order.secret" }).waitFor();
  assert.equal(page.url(), `${broker}/console/#/event-types/order.secret`);
  assert.equal((await renewed).status(), 200);
  await open(page, "#/event-types");
  await page.getByRole("link", { name: "order.secret" }).waitFor();
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByRole("heading", { name: "Sign in" }).waitFor();
});

test("a sign-in that was begun elsewhere is refused", async (page) => {
  page.expectErrors(/401/);
  await page.goto(`${broker}/console/?code=code-0&state=another#/event-types`);
  await page.getByText("The sign-in began in another tab.").waitFor();
  assert.equal(await page.evaluate(() => sessionStorage.length), 0);
});

test("without an issuer a token is entered, and a refused one is asked for again", async (page) => {
  page.expectErrors(/40[13]/);
  await page.route("**/console/config.json", (route) => route.fulfill({ json: { sign_in: null } }));
  await open(page, "#/event-types");
  await page.getByLabel("Token").fill("no.such.token");
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByText("The broker rejects the token: it may have expired.").waitFor();
  await accessible(page);
  await page.getByLabel("Token").fill(`Bearer ${token}`);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("heading", { name: "Event types" }).waitFor();
  await page.getByText(/\d+ event types?/).waitFor();
});
