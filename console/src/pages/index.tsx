/** All pages with their addresses. `menu` is the name of a page in the menu. */

import type { ComponentType } from "preact";
import type { PageProps } from "../components/page";
import { BrokerPage } from "./broker";
import { DeadLetters } from "./dead-letters";
import { Definition } from "./event-type/definition";
import { CreateEventType, EditEventType } from "./event-type/edit";
import { SingleEvent } from "./event-type/event";
import { Events } from "./event-type/events";
import { Partitions } from "./event-type/partitions";
import { Publish } from "./event-type/publish";
import { Schema } from "./event-type/schema";
import { Subscriptions as SubscriptionsOfType } from "./event-type/subscriptions";
import { TableRuns } from "./event-type/table-runs";
import { EventTypes } from "./event-types";
import { Queries } from "./queries";
import { Subscriptions } from "./subscriptions/list";
import { OneSubscription } from "./subscriptions/one";

type Page = {
  /** The parts of the address. A part that begins with a colon stands for any name. */
  path: string[];
  page: ComponentType<PageProps>;
  menu?: string;
  /** Whether the menu has the page only if the broker answers queries. */
  needsQueries?: boolean;
};

export const pages: Page[] = [
  { path: [], page: EventTypes },
  { path: ["event-types"], page: EventTypes, menu: "Event types" },
  { path: ["event-types", ":name"], page: Definition },
  { path: ["create-event-type"], page: CreateEventType },
  { path: ["event-types", ":name", "edit"], page: EditEventType },
  { path: ["event-types", ":name", "schema"], page: Schema },
  { path: ["event-types", ":name", "events"], page: Events },
  { path: ["event-types", ":name", "events", ":partition", ":offset"], page: SingleEvent },
  { path: ["event-types", ":name", "publish"], page: Publish },
  { path: ["event-types", ":name", "partitions"], page: Partitions },
  { path: ["event-types", ":name", "subscriptions"], page: SubscriptionsOfType },
  { path: ["event-types", ":name", "table"], page: TableRuns },
  { path: ["subscriptions"], page: Subscriptions, menu: "Subscriptions" },
  { path: ["subscriptions", ":id"], page: OneSubscription },
  { path: ["queries"], page: Queries, menu: "Queries", needsQueries: true },
  { path: ["dead-letters"], page: DeadLetters, menu: "Dead letters" },
  { path: ["broker"], page: BrokerPage, menu: "Broker" },
];
