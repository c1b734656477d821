/** Every page with its address. A page of the menu names itself there. */

import type { ComponentType } from "preact";
import type { PageProps } from "../components/page";
import { EventTypes } from "./event-types";

type Page = {
  /** The parts of the address; one that begins with a colon stands for any name. */
  path: string[];
  page: ComponentType<PageProps>;
  menu?: string;
};

export const pages: Page[] = [
  { path: [], page: EventTypes },
  { path: ["event-types"], page: EventTypes, menu: "Event types" },
];
