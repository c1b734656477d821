/** The frame around every page, with navigation, sign-in and theme, and the choice of the page for an address. */

import { useEffect, useRef, useState } from "preact/hooks";
import { address, signIn, signOut, token, useLoad } from "./api";
import { Labelled } from "./components/fields";
import { EmptyState } from "./components/notices";
import { Toasts } from "./components/toast";
import { config } from "./config";
import { pages } from "./pages";
import { href, useRoute } from "./router";
import { begin, forget, issuer } from "./sign-in";
import { applyTheme, theme, type Theme } from "./theme";

export function App({ refused }: { refused: string }) {
  const { path, query } = useRoute();
  const [signedAs, setSigned] = useState(token());
  const [asked, setAsked] = useState(refused !== "");
  const offered = useLoad(config, []).data;
  const main = useRef<HTMLElement>(null);
  const shown = path.join("/");

  useEffect(() => {
    const signed = () => {
      setSigned(token());
      setAsked(false);
    };
    const refused = () => setAsked(true);
    addEventListener("nakadi.signed", signed);
    addEventListener("nakadi.refused", refused);
    return () => {
      removeEventListener("nakadi.signed", signed);
      removeEventListener("nakadi.refused", refused);
    };
  }, []);
  useEffect(slashFocusesSearch, []);

  // Screen readers continue at the beginning of a new page. A link that only changes a filter does not move them.
  const first = useRef(true);
  useEffect(() => {
    document.title = [...path].reverse().concat("Nakadi").join(" · ");
    if (!first.current) main.current?.focus();
    first.current = false;
  }, [shown]);

  const found = pages.find((page) => matches(page.path, path));
  const names = path.filter((_, at) => found?.path[at]?.startsWith(":"));
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), main.current?.focus())}>
        Skip to the content
      </a>
      <header class="top">
        <a class="brand" href="#/">
          Nakadi
        </a>
        <nav aria-label="Pages">
          {pages.filter((page) => page.menu && (!page.needsQueries || offered?.queries)).map((page) => (
            <a href={href(page.path)} aria-current={page.page === found?.page || path[0] === page.path[0] ? "page" : undefined}>
              {page.menu}
            </a>
          ))}
        </nav>
        <div class="spring" />
        <a href={`${address}/docs`}>API reference</a>
        <ThemeChoice />
        {signedAs && (
          <button type="button" class="quiet" onClick={() => (forget(), signOut())}>
            Sign out
          </button>
        )}
      </header>
      <main id="main" ref={main} tabIndex={-1} key={signedAs}>
        {asked ? <SignIn why={refused} /> : found ? <found.page key={shown} names={names} query={query} /> : <NotFound />}
      </main>
      <Toasts />
    </>
  );
}

function matches(pattern: string[], path: string[]): boolean {
  return pattern.length === path.length && pattern.every((part, at) => part.startsWith(":") || part === path[at]);
}

function NotFound() {
  return (
    <EmptyState title="There is no such page (404)">
      The address leads nowhere. Begin with the <a href="#/event-types">event types</a>.
    </EmptyState>
  );
}

function SignIn({ why }: { why: string }) {
  const [given, setGiven] = useState("");
  const at = useLoad(issuer, []);
  if (at.loading) return null;
  const reason = why || (token() ? "The broker rejects the token: it may have expired." : "This broker requires a token.");
  if (at.data) {
    const chosen = at.data;
    return (
      <section class="card narrow">
        <h1>Sign in</h1>
        <p>{reason}</p>
        <p class="faint">You are sent to {new URL(chosen.authorize).host}, and back.</p>
        <button type="button" onClick={() => void begin(chosen)}>Sign in</button>
      </section>
    );
  }
  return (
    <form class="card narrow" onSubmit={(event) => (event.preventDefault(), signIn(given))}>
      <h1>Sign in</h1>
      <p>{reason}</p>
      <Labelled text="Token">
        <textarea rows={4} required autocomplete="off" spellcheck={false} value={given}
          onInput={(event) => setGiven(event.currentTarget.value)} />
      </Labelled>
      <p class="faint">This tab keeps it, and sends it only to this broker.</p>
      <button type="submit">Sign in</button>
    </form>
  );
}

function ThemeChoice() {
  const [chosen, setChosen] = useState(theme());
  return (
    <select class="quiet" aria-label="Theme" value={chosen}
      onChange={(event) => {
        const value = event.currentTarget.value as Theme;
        applyTheme(value);
        setChosen(value);
      }}>
      <option value="system">System</option>
      <option value="light">Light</option>
      <option value="dark">Dark</option>
    </select>
  );
}

function slashFocusesSearch() {
  const pressed = (event: KeyboardEvent) => {
    const typing = (event.target as HTMLElement).closest("input, textarea, select, [contenteditable]");
    if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const search = document.querySelector<HTMLInputElement>("input[type=search]");
    if (!search) return;
    event.preventDefault();
    search.focus();
    search.select();
  };
  addEventListener("keydown", pressed);
  return () => removeEventListener("keydown", pressed);
}
