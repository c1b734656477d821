/** Dead letters: the events that the broker gave up on for subscriptions with the policy `DEAD_LETTER_QUEUE`. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { api, body, type Problem, problemFrom } from "../api";
import { Dialog } from "../components/confirm";
import { Search } from "../components/fields";
import { EmptyState, ProblemNotice } from "../components/notices";
import { Facts, PageHead, type PageProps } from "../components/page";
import { type Column, VirtualTable } from "../components/table";
import { toast } from "../components/toast";
import { Tree } from "../components/tree";
import { exactly } from "../exact";
import { count, moment, plural } from "../format";
import { href, replaceQuery } from "../router";
import { read } from "../tail";

const QUEUE = "nakadi.dead.letter.queue";
const REDRIVE = "nakadi.dead.letter.redrive";
// How many of the newest dead letters the page keeps. It says how many older ones it left out.
const MOST = 5000;

type Letter = {
  subscription_id: string;
  event_type: string;
  partition: string;
  offset: string;
  error?: { message?: string };
  event: Record<string, unknown>;
  metadata?: { occurred_at?: string };
  /** The whole dead letter as it was stored. */
  text: string;
};

export function DeadLetters({ query }: PageProps) {
  const [letters, setLetters] = useState<Letter[]>([]);
  const [passedOver, setPassedOver] = useState(0);
  const [open, setOpen] = useState(false);
  const [problem, setProblem] = useState<Problem>();
  const [looking, setLooking] = useState<Letter>();
  const subscription = query.get("subscription") ?? "";
  const text = query.get("q") ?? "";

  useEffect(() => {
    const stopping = new AbortController();
    const work = async () => {
      const params = { path: { name: QUEUE } };
      const partitions = await body(api.GET("/event-types/{name}/partitions", { params, signal: stopping.signal }));
      await read(QUEUE, {
        cursors: partitions.map(({ partition }) => ({ partition, offset: "BEGIN" })),
        onOpen: () => setOpen(true),
        onCursors: () => undefined,
        onEvents: (events) =>
          setLetters((old) => {
            const all = [...events.map(({ event, text }) => ({ ...(event as Letter), text })).reverse(), ...old];
            setPassedOver((number) => number + Math.max(0, all.length - MOST));
            return all.slice(0, MOST);
          }),
      }, stopping.signal);
    };
    work().catch((error: unknown) => !stopping.signal.aborted && setProblem(problemFrom(error)));
    return () => stopping.abort();
  }, []);

  const rows = useMemo(() => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    return letters.filter((each) => {
      if (subscription && each.subscription_id !== subscription) return false;
      const searched = words.length ? each.text.toLowerCase() : "";
      return words.every((word) => searched.includes(word));
    });
  }, [letters, subscription, text]);
  const columns: Column<Letter>[] = [
    { title: "Given up", width: "12.5rem", wide: true, cell: (each) => moment(each.metadata?.occurred_at) },
    { title: "Event type", cell: (each) => <a href={href(["event-types", each.event_type])}>{each.event_type}</a> },
    { title: "Partition and offset", wide: true, cell: (each) => <code>{each.partition}:{each.offset}</code> },
    { title: "Subscription", wide: true, cell: (each) => <a href={href(["subscriptions", each.subscription_id])}>{each.subscription_id}</a> },
    {
      title: "",
      width: "6rem",
      cell: (each) => (
        <button type="button" class="quiet" aria-label={`Show ${each.event_type}:${each.partition}:${each.offset}`}
          onClick={() => setLooking(each)}>
          Show
        </button>
      ),
    },
  ];
  return (
    <>
      <PageHead title="Dead letters" />
      {problem && problem.status !== 404 && <ProblemNotice problem={problem} />}
      <div class="filters" role="search">
        <Search label="Search dead letters" value={text} onChange={(q) => replaceQuery({ q })} />
        {subscription && (
          <button type="button" class="quiet" onClick={() => replaceQuery({ subscription: "" })}>Of all subscriptions</button>
        )}
        <span class="faint" role="status">
          {`${count(rows.length)} of ${plural(letters.length, "dead letter")}`}
          {passedOver > 0 && `, ${plural(passedOver, "older one")} skipped`}
        </span>
      </div>
      {rows.length ? (
        <VirtualTable label="Dead letters" rows={rows} columns={columns}
          rowKey={(each) => `${each.subscription_id} ${each.event_type} ${each.partition} ${each.offset}`} />
      ) : (
        <EmptyState title={open || problem ? "There are no dead letters here" : "Loading…"}>
          A subscription whose policy for unprocessable events is <code>DEAD_LETTER_QUEUE</code> puts them here; they stay
          for the retention time of <code>{QUEUE}</code>.
        </EmptyState>
      )}
      {looking && <Look letter={looking} onClose={() => setLooking(undefined)} />}
    </>
  );
}

function Look({ letter, onClose }: { letter: Letter; onClose: () => void }) {
  const [problem, setProblem] = useState<Problem>();
  const { event } = useMemo(() => exactly(letter.text) as Letter, [letter]);
  const redrive = async () => {
    const tag = { "X-CONSUMER-TAG": `CONSUMER_SUBSCRIPTION_ID=${letter.subscription_id}` };
    try {
      await api.POST("/event-types/{name}/events", { params: { path: { name: REDRIVE }, header: tag }, body: [event] });
      toast("The subscription gets the event again within a minute");
      onClose();
    } catch (error) {
      setProblem(problemFrom(error));
    }
  };
  return (
    <Dialog title="Dead letter" onClose={onClose}>
      <Facts facts={[
        ["Why", letter.error?.message],
        ["Event type", letter.event_type],
        ["Partition and offset", <code>{letter.partition}:{letter.offset}</code>],
        ["Subscription", <a href={href(["subscriptions", letter.subscription_id])}>{letter.subscription_id}</a>],
        ["Given up", moment(letter.metadata?.occurred_at)],
      ]} />
      <Tree value={event} open={4} />
      {problem?.status === 404 && (
        <p class="notice">To redrive dead letters, an operator creates the event type <code>{REDRIVE}</code> first.</p>
      )}
      {problem && problem.status !== 404 && <ProblemNotice problem={problem} />}
      <div class="actions">
        <button type="button" class="quiet" onClick={onClose}>Close</button>
        <button type="button" onClick={() => void redrive()}>Redrive</button>
      </div>
    </Dialog>
  );
}
