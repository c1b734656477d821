/** The most important metrics. */

import { EmptyState, ProblemNotice } from "../../components/notices";
import { Facts } from "../../components/page";
import { Plot } from "../../components/plot";
import { bytes, count, duration } from "../../format";
import { gaugeOf, meanOf, rateOf, reasons, span, useHistory } from "./history";

const perSecond = (value: number): string => `${value < 10 ? value.toFixed(1) : count(Math.round(value))} / s`;
const milliseconds = (value: number): string => `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;

export function MetricsTab() {
  const { latest, problem, look } = useHistory();
  if (!latest) return problem ? <ProblemNotice problem={problem} retry={look} /> : <p class="loading" role="status">Loading…</p>;
  const value = (name: string) => latest.gauges[name]?.value ?? 0;
  const of = (name: string, title = name) => ({ name: title, points: rateOf(name) });
  const refused = reasons();
  const between = span();
  return (
    <>
      {problem && <ProblemNotice problem={problem} retry={look} />}
      <section class="card" aria-label="Now">
        <Facts facts={[
          ["Up for", duration(1000 * value("nakadi.uptime"))],
          ["Stalled subscriptions", value("nakadi.stalled_subscriptions") ? <a class="error" href="#/subscriptions">{count(value("nakadi.stalled_subscriptions"))}</a> : "none"],
          ["Partitions read here", count(value("nakadi.partitions_held"))],
          ["Memory for bodies", bytes(value("nakadi.http_request_memory_bytes"))],
        ]} />
      </section>
      <div class="cards">
        <Plot title="Events" shown={perSecond} {...between} lines={[of("published", "Published"), of("sent", "Sent")]} />
        {refused.length ? (
          <Plot title="Refused" shown={perSecond} {...between} lines={refused.slice(0, 4).map((name) => of(name, name.slice(8)))} />
        ) : (
          <EmptyState title="No refused events">Refused events appear here, by reason.</EmptyState>
        )}
        <Plot title="Mean time" shown={milliseconds} {...between} lines={[
          { name: "Publishing", points: meanOf("publishing") },
          { name: "Commits", points: meanOf("commits") },
          { name: "Delivery", points: meanOf("delivery") },
        ]} />
        <Plot title="Open streams" shown={(number) => count(Math.round(number))} {...between}
          lines={[{ name: "Streams", points: gaugeOf("streams") }]} />
        <Plot title="Bytes" shown={(number) => `${bytes(number)} / s`} {...between}
          lines={[of("bytes in", "Published"), of("bytes out", "Sent")]} />
        <Plot title="Failed requests (5xx)" shown={perSecond} {...between} lines={[of("failed", "Failed")]} />
      </div>
      <p class="faint">
        The figures are those of the broker's process that answers. This tab has fetched them every ten seconds since it
        first showed this page, and keeps them for an hour. For a longer history, use Prometheus, or CloudWatch on AWS.
      </p>
    </>
  );
}
