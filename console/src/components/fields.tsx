/** Parts of forms. */

import type { ComponentChildren } from "preact";

/** A label above its control. What is wrong with the value stands below it, and is read out with it. */
export function Labelled({ text, hint, error, children }: {
  text: string;
  hint?: ComponentChildren;
  error?: string;
  children: ComponentChildren;
}) {
  return (
    <label class={error ? "field wrong" : "field"}>
      <span>{text}</span>
      {children}
      {hint && <small class="faint">{hint}</small>}
      {error && <small class="error" role="alert">{error}</small>}
    </label>
  );
}

/** The search field of a page; the key `/` leads to it. */
export function Search({ label, value, onChange }: { label: string; value: string; onChange: (text: string) => void }) {
  return (
    <input type="search" aria-label={label} placeholder={`${label} ( / )`} value={value} autocomplete="off"
      spellcheck={false} onInput={(event) => onChange(event.currentTarget.value)} />
  );
}

/** One of a few values; the first choice, with an empty value, is all of them. */
export function Choice({ label, value, options, onChange }: {
  label: string;
  value: string;
  options: readonly (string | readonly [value: string, text: string])[];
  onChange: (value: string) => void;
}) {
  return (
    <select aria-label={label} value={value} onChange={(event) => onChange(event.currentTarget.value)}>
      {options.map((option) => {
        const [own, text] = typeof option === "string" ? [option, option] : option;
        return <option key={own} value={own}>{text}</option>;
      })}
    </select>
  );
}
