/** The page about the broker itself. */

import { PageHead, type PageProps, Tabs } from "../../components/page";
import { href } from "../../router";
import { MetricsTab } from "./metrics";
import { AdminsTab, BlockedTab, FeaturesTab } from "./settings";
import { StoragesTab, TimelinesTab } from "./storages";

const TABS = [["", "Metrics"], ["storages", "Storages"], ["timelines", "Timelines"], ["features", "Features"],
  ["blocked", "Blocked"], ["admins", "Administrators"]] as const;

export function BrokerPage({ query }: PageProps) {
  const tab = query.get("tab") ?? "";
  return (
    <>
      <PageHead title="Broker" />
      <Tabs label="About the broker"
        tabs={TABS.map(([key, text]) => ({ text, to: href(["broker"], { tab: key }), current: tab === key }))} />
      {tab === "" && <MetricsTab />}
      {tab === "storages" && <StoragesTab />}
      {tab === "timelines" && <TimelinesTab name={query.get("type") ?? ""} />}
      {tab === "features" && <FeaturesTab />}
      {tab === "blocked" && <BlockedTab />}
      {tab === "admins" && <AdminsTab />}
    </>
  );
}
