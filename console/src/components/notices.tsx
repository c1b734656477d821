/** Notices in place of data: there is no data yet, it is being loaded, or it cannot be loaded, with the reason. */

import type { ComponentChildren } from "preact";
import type { Loaded, Problem } from "../api";

/** Says that there is no data, and, in `children`, what to do next. */
export function EmptyState({ title, children }: { title: string; children: ComponentChildren }) {
  return (
    <section class="empty">
      <h2>{title}</h2>
      <div>{children}</div>
    </section>
  );
}

/** A refusal or failure with its reasons, and the flow id, by which users find the request in the broker's log. */
export function ProblemNotice({ problem, retry }: { problem: Problem; retry?: () => void }) {
  return (
    <section class="problem" role="alert">
      <h2>{problem.title}</h2>
      {problem.detail && <p class="lines">{problem.detail}</p>}
      <p class="faint">
        {problem.status > 0 && <>Status {problem.status}. </>}
        {problem.flowId && <>Flow id <code>{problem.flowId}</code></>}
      </p>
      {retry && <button type="button" onClick={retry}>Try again</button>}
    </section>
  );
}

/** The data, or a notice until it is loaded. */
export function Await<T>({ of, children }: { of: Loaded<T>; children: (data: T) => ComponentChildren }) {
  if (of.data !== undefined) {
    return (
      <>
        {of.problem && <ProblemNotice problem={of.problem} retry={of.reload} />}
        {children(of.data)}
      </>
    );
  }
  if (of.problem) return <ProblemNotice problem={of.problem} retry={of.reload} />;
  return <p class="loading" role="status">Loading…</p>;
}
