/** Short messages at the edge of the window: `toast("Copied")`. They vanish by themselves, and screen readers
 * read them. */

import { useEffect, useState } from "preact/hooks";
import { problemFrom } from "../api";

type Toast = { id: number; text: string; kind: "done" | "failed" };

let show: (toast: Toast) => void = () => undefined;
let last = 0;

export function toast(text: string, kind: Toast["kind"] = "done"): void {
  show({ id: ++last, text, kind });
}

/** Runs the action of a button, and shows its success or failure. */
export async function attempt(work: () => Promise<unknown>, done: string): Promise<boolean> {
  try {
    await work();
    if (done) toast(done);
    return true;
  } catch (error) {
    const problem = problemFrom(error);
    const flow = problem.flowId ? ` (flow id ${problem.flowId})` : "";
    toast(`${problem.title}. ${problem.detail}${flow}`, "failed");
    return false;
  }
}

export function Toasts() {
  const [toasts, setToasts] = useState<Toast[]>([]);
  useEffect(() => {
    const remove = (id: number) => setToasts((old) => old.filter((each) => each.id !== id));
    show = (added) => {
      setToasts((old) => [...old.slice(-3), added]);
      setTimeout(() => remove(added.id), added.kind === "failed" ? 15_000 : 4000);
    };
  }, []);
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.map((each) => <p key={each.id} class={each.kind}>{each.text}</p>)}
    </div>
  );
}
