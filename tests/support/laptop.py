"""The deployment on this machine, for tests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cached_property

from infra.laptop.cloud import Strictness
from infra.laptop.laptop import Front, Laptop
from infra.laptop.synthesis import STAGE
from infra.laptop.templates import REGION
from nakadi.app.broker import BrokerServices, open_broker
from nakadi.app.settings import Settings
from tests.support import kafka

TABLES = f"dynamodb://nakadi-{STAGE}?region={REGION}"
STREAM = f"kinesis://nakadi-{STAGE}?region={REGION}"

# `make test-aws-local` runs all end-to-end tests, which takes minutes. `make test-long` runs each test with its first
# example only, and `make test` runs the tests that are selected here.
ALL = os.environ.get("AWS_LOCAL") == "all"

# Each part may only do what its role allows. Enforcing the limits of AWS takes time, so only `make test-aws-local
# STRICT=1` does so.
STRICTNESS = Strictness(roles=True, limits=os.environ.get("AWS_LOCAL_STRICT", "") != "")

# These options do not change how long tasks share what they have read, because clients must see correct results
# although tasks share it. When all tests run, the log has its usual options.
FAST_OPTIONS = "" if ALL else "&lease=0.05&poll=0.1&reads_per_second=10000"

FAST_SETTINGS: Mapping[str, str] = {
    # Functions cache for a second, and changes wait for that, only if limits are enforced, because waiting takes time.
    **({} if STRICTNESS.limits else {"NAKADI_CACHE_SECONDS": "0"}),
    "NAKADI_EVENT_LOG": f"{STREAM}{FAST_OPTIONS}",
    # This is the administrator of the broker's own event types.
    "NAKADI_DEFAULT_ADMIN": "user=the-admin",
}

# Without authentication, the administrator is the default of a broker's settings.
OPEN: Mapping[str, str] = {"NAKADI_DEFAULT_ADMIN": "service=nakadi_admin"}

# These test requests that cross the gateway, the authorizer, the functions and the streaming service in different ways:
# each kind of operation, tokens and scopes, compressed or large bodies, streams and their ends, and changes that
# another process has to see. The tests that are selected for Kafka are included, because logs may differ in them.
SELECTED_TESTS = kafka.SELECTED_TESTS | {
    "test_a_batch",
    "test_a_block_ends_the_response_at_once",
    "test_a_blocked_application_may_not_stream",
    "test_a_body_that_is_no_batch_has_two_megabytes",
    "test_a_browser_that_comes_back_goes_on_where_it_was",
    "test_a_changed_event_type_is_published_to_as_it_is_now",
    "test_a_client_that_asks_gets_server_sent_events",
    "test_a_client_that_leaves_gives_its_partitions_back_at_once",
    "test_a_client_that_needs_longer_gets_more_time",
    "test_a_deleted_event_type_is_gone",
    "test_a_deleted_subscription_is_gone",
    "test_a_feature_is_in_force_for_the_next_request",
    "test_a_feature_is_switched",
    "test_a_flow_id_is_short",
    "test_a_head_request_takes_no_slot",
    "test_a_keep_alive_limit_ends_the_stream",
    "test_a_lost_connection_releases_partitions_if_the_client_wants_it",
    "test_a_query_cannot_leave_its_database",
    "test_a_query_finds_events_with_the_rights_of_its_token",
    "test_a_reset_moves_in_both_directions",
    "test_a_storage_is_kept_as_it_was_given",
    "test_a_storage_that_nothing_can_reach_is_not_added",
    "test_a_subscription_has_defaults",
    "test_a_subscription_is_found_again",
    "test_adding_a_schema_makes_it_current",
    "test_admins_are_replaced_as_a_whole",
    "test_an_entry_comes_and_goes",
    "test_an_event_type_lives_in_the_storage_that_was_chosen",
    "test_an_unknown_event_type",
    "test_an_unknown_event_type_has_its_own_words",
    "test_answers_may_be_packed",
    "test_authorization_annotations_and_labels_change",
    "test_batches_and_keep_alives_are_these_bytes",
    "test_blocks_take_effect_at_once",
    "test_bombs_do_not_go_off",
    "test_cloud_events_come_back_from_a_subscription_and_are_committed",
    "test_changes_are_reported_while_the_feature_is_on",
    "test_commits_are_judged_in_order",
    "test_committing_takes_the_right_to_read",
    "test_creating_answers_with_nothing_but_a_warning",
    "test_dead_letters_can_be_subscribed_to_before_there_is_one",
    "test_delivery_begins_behind_the_cursor",
    "test_directed_batches_are_not_for_everyone",
    "test_events_come_out_as_they_went_in",
    "test_events_go_with_their_event_type",
    "test_every_field_comes_back_as_it_was_sent",
    "test_every_operation_needs_a_token_with_its_scope",
    "test_flow_id_and_span",
    "test_good_batches",
    "test_gzip_is_flushed_with_every_batch",
    "test_hashes_choose_among_the_partitions",
    "test_head_is_a_get_without_its_body",
    "test_headers_come_at_once",
    "test_health_is_ok",
    "test_it_is_ready",
    "test_keep_alives_come_through_silence",
    "test_losing_permission_ends_the_stream_with_a_problem",
    "test_metrics_can_be_read_by_people",
    "test_more_partitions",
    "test_names_with_dots_are_one_segment",
    "test_new_event_type_begins_at_zero",
    "test_only_writers_may_publish",
    "test_other_methods",
    "test_packed_bodies",
    "test_pages_follow_each_other",
    "test_permissions_for_partitions_and_cursors",
    "test_publishing_needs_a_token_and_its_scope",
    "test_rejected_batches",
    "test_retention_moves_with_its_setting",
    "test_server_sent_events",
    "test_slots",
    "test_strategies_are_listed",
    "test_the_description_and_its_page_are_for_everyone",
    "test_the_head_comes_at_once",
    "test_the_list_can_be_had_in_parts",
    "test_the_list_can_be_narrowed_to_a_writer",
    "test_the_newest_come_first",
    "test_the_next_events_go_by_the_new_count",
    "test_the_stream_has_to_be_named",
    "test_the_version_is_reported",
    "test_versions_are_listed_from_the_newest",
    "test_what_was_read_can_be_written_back",
}

# Tests that cannot pass on this deployment, and why.
SKIPPED_TESTS: Mapping[str, str] = {
    "test_metrics_count_what_was_done": "each function counts for itself, and CloudWatch adds up",
    "test_a_client_that_leaves_while_idle_is_noticed": "it looks into the process that serves streams",
}


class LaptopBroker:
    """A deployment on this machine. `services` are those of a broker on the same stores, for calls that only internal
    code can make.
    """

    def __init__(self, laptop: Laptop, front: Front) -> None:
        front.warm_up()
        self.url = front.url
        self._front = front
        self._endpoints = laptop.cloud.endpoints

    @cached_property
    def services(self) -> BrokerServices:
        tables = f"{TABLES}&endpoint={self._endpoints['dynamodb']}"
        settings = Settings(
            registry=tables,
            log_index=tables,
            event_log=f"{STREAM}&endpoint={self._endpoints['kinesis']}",
        )
        return open_broker(settings)

    def close(self) -> None:
        """Also close the gateway and the services behind it: otherwise, these would keep polling during all later
        tests.
        """
        if "services" in vars(self):
            self.services.close()
        self._front.close()


def runs_here(test: str) -> bool:
    return "e2e/" in test and "aws-local" in test


def select_tests(names: Iterator[tuple[str, str]]) -> Iterator[bool]:
    """For each test, given by its function and its whole name, whether this run includes it."""
    tried: set[str] = set()
    for function, whole in names:
        if not runs_here(whole):
            yield True
            continue
        yield function.rpartition("::")[2] not in SKIPPED_TESTS and (ALL or function not in tried)
        tried.add(function)


def variables(settings: Mapping[str, object]) -> Mapping[str, str]:
    """Settings as variables, without `auth`, because the deployment decides about authentication."""
    return {f"NAKADI_{name.upper()}": _text(value) for name, value in settings.items() if name != "auth"}


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join("=".join(each) if isinstance(each, tuple) else str(each) for each in value)
    return str(value)
