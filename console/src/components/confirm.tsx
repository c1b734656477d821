/** A dialog that asks for a confirmation before a destructive action: users have to type the name of its object. */

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { type Problem, problemFrom } from "../api";
import { Labelled } from "./fields";
import { ProblemNotice } from "./notices";

export function ConfirmByName({ name, title, action, children, onConfirm, onClose }: {
  name: string;
  title: string;
  action: string;
  children: ComponentChildren;
  /** Performs the action. If it throws an error, the dialog shows the error and stays open. */
  onConfirm: () => Promise<unknown>;
  onClose: () => void;
}) {
  const [typed, setTyped] = useState("");
  const [problem, setProblem] = useState<Problem>();
  const [busy, setBusy] = useState(false);
  const confirm = async () => {
    setBusy(true);
    setProblem(undefined);
    try {
      await onConfirm();
    } catch (error) {
      setProblem(problemFrom(error));
    }
    setBusy(false);
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <form onSubmit={(event) => (event.preventDefault(), void confirm())}>
        {children}
        {problem && <ProblemNotice problem={problem} />}
        <Labelled text={`Type ${name} to confirm`}>
          <input value={typed} autocomplete="off" spellcheck={false}
            onInput={(event) => setTyped(event.currentTarget.value)} />
        </Labelled>
        <div class="actions">
          <button type="button" class="quiet" onClick={onClose}>Cancel</button>
          <button type="submit" class="danger" disabled={typed !== name || busy}>{action}</button>
        </div>
      </form>
    </Dialog>
  );
}

/** A modal dialog. Escape closes it, and the focus returns to the earlier element. */
export function Dialog({ title, children, onClose }: {
  title: string;
  children: ComponentChildren;
  onClose: () => void;
}) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} aria-label={title} onClose={onClose}>
      <h2>{title}</h2>
      {children}
    </dialog>
  );
}
