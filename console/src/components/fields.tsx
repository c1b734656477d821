/** Parts of forms. */

import { cloneElement, type ComponentChildren, type VNode } from "preact";
import { useId } from "preact/hooks";

/** A control with its label above, and with a hint and the error of its value below. */
export function Labelled({ text, hint, error, children }: {
  text: string;
  hint?: ComponentChildren;
  error?: string;
  children: VNode;
}) {
  const id = useId();
  const described = { "aria-describedby": hint || error ? id : undefined, "aria-invalid": error ? true : undefined };
  return (
    <div class={error ? "field wrong" : "field"}>
      <label>
        <span>{text}</span>
        {cloneElement(children, described)}
      </label>
      <div id={id}>
        {hint && <small class="faint">{hint}</small>}
        {error && <small class="error" role="alert">{error}</small>}
      </div>
    </div>
  );
}

/** The search field of a page. The key `/` moves the focus to it. */
export function Search({ label, value, onChange }: { label: string; value: string; onChange: (text: string) => void }) {
  return (
    <input type="search" aria-label={label} placeholder={`${label} ( / )`} value={value} autocomplete="off"
      spellcheck={false} onInput={(event) => onChange(event.currentTarget.value)} />
  );
}

/** A choice of one value. The first option has an empty value and often stands for all values. */
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
