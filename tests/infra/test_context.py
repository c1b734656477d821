"""The configuration of a deployment."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from nakadi_cdk.context import BadContext, Context
from nakadi_cdk.settings import function_environment, streaming_environment

MSK = "arn:aws:kafka:eu-central-1:123456789012:cluster/shared/0a1b2c3d-0000-1111-2222-333344445555-7"
DEPLOY = Path(__file__).parents[2] / "docs" / "deploy.md"
ROW = re.compile(r"^\| `(\w+)` \| (?:`([^`]*)`)? ?\| (.+) \|$", re.MULTILINE)
VPC = {"vpc_id": "vpc-1", "vpc_subnets": "subnet-1,subnet-2", "vpc_zones": "eu-central-1a,eu-central-1b"}
DIRECT = {"direct_domain": "direct.example.org", "direct_certificate_arn": f"arn:aws:acm:eu:{'1' * 12}:certificate/a"}
CERTIFICATE = "arn:aws:acm:eu-central-1:123456789012:certificate/00000000-0000-0000-0000-000000000000"


class Node:
    """The part of a construct's node that the context reads."""

    def __init__(self, **given):
        self._given = given

    def get_all_context(self):
        return self._given


def test_without_anything_there_are_defaults():
    """No choice is required; the CDK's own context values are ignored."""
    told = {"aws:cdk:version-reporting": False, "@aws-cdk/core:x": True, "cli-telemetry": False}

    assert Context.of(Node(**told)) == Context()


def test_what_is_given_is_read_as_what_it_is():
    """The command line gives strings; a file gives numbers and booleans."""
    context = Context.of(Node(stage="live", shards="4", keep_data="false", log_days=90, analytics=False))

    assert (context.stage, context.shards, context.log_days) == ("live", 4, 90)
    assert (context.keep_data, context.analytics) == (False, False)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"shard": 4}, "shard is not a known value. Do you mean shards?"),
        ({"NAKADI_MAX_PARTITION": "9"}, "NAKADI_MAX_PARTITION is not a known value. Do you mean NAKADI_MAX_PARTITIONS"),
        ({"NAKADI_MAX_PARTITIONS": "many"}, "NAKADI_MAX_PARTITIONS is not int: 'many'"),
        ({"NAKADI_AUTH": "off"}, "NAKADI_AUTH is not a known value."),
        ({"compaction_hours": 5}, "compaction_hours is one of 1, 2, 3, 4, 6, 8, 12, 24"),
        ({"table_minutes": 4}, "table_minutes is 0, or from 5 to 1440"),
        ({"table_stream": True}, "table_stream needs table_minutes"),
        ({"NAKADI_TABLE_JOB": "mine"}, "NAKADI_TABLE_JOB is not a known value."),
        ({"colour": "red"}, "colour is not a known value."),
        ({"shards": "four"}, "shards is a whole number, and not 'four'"),
        ({"keep_data": "perhaps"}, "keep_data is true or false, and not 'perhaps'"),
        ({"stage": "Live!"}, "stage is a short word of a-z, 0-9 and -"),
        ({"stage": "a-name-that-is-much-too-long"}, "stage is a short word of a-z, 0-9 and -"),
        ({"name_prefix": "Shop"}, "name_prefix is a word of a-z, 0-9 and -"),
        ({"name_prefix": "an-application-with-a-name"}, "name_prefix is a word of a-z, 0-9 and -, and with the stage"),
        ({"kms_key_arn": "alias/mine"}, "kms_key_arn is the ARN of a key, not of an alias"),
        ({"network": "secret"}, "network is public or private"),
        ({"vpc_id": "vpc-1"}, "vpc_id, vpc_subnets and vpc_zones belong together"),
        ({**VPC, "vpc_id": "mine"}, "vpc_id is like vpc-0123456789abcdef0"),
        ({**VPC, "vpc_subnets": "a,b"}, "vpc_subnets are like subnet-1,subnet-2"),
        ({**VPC, "vpc_zones": "eu-central-1a"}, "vpc_zones has a zone for each of vpc_subnets"),
        ({**VPC, "vpc_zones": "eu-central-1a,eu-central-1a"}, "vpc_subnets are in at least two zones"),
        ({**DIRECT, "network": "private"}, "direct_domain needs network=public and no vpc_id"),
        ({**DIRECT, **VPC}, "direct_domain needs network=public and no vpc_id"),
        ({"permissions_boundary": "mine"}, "permissions_boundary is the ARN of a managed policy"),
        ({"domain": "events.example.org"}, "domain and certificate_arn belong together"),
        ({"domain": "https://events", "certificate_arn": CERTIFICATE}, "domain is the name of a host"),
        ({"domain": "events.example.org", "certificate_arn": "mine"}, "certificate_arn is the ARN of a certificate"),
        ({"direct_domain": "direct.example.org"}, "direct_domain and direct_certificate_arn belong together"),
        ({"direct_domain": "d", "direct_certificate_arn": CERTIFICATE}, "direct_domain is the name of a host"),
        (
            {
                **{f"{way}domain": "events.example.org" for way in ("", "direct_")},
                **{f"{way}certificate_arn": CERTIFICATE for way in ("", "direct_")},
            },
            "direct_domain is another host than domain",
        ),
        ({"fan_out": "perhaps"}, "fan_out is auto, true or false"),
        ({"storage": "kafka"}, "storage is kinesis or msk"),
        ({"storage": "msk", "msk": "large"}, "msk is serverless, express, provisioned, or the ARN of a cluster"),
        ({"storage": "msk", "msk": "express"}, "subnets in three zones"),
        ({"storage": "msk", "msk": MSK}, "msk_servers and msk_security_group belong to the ARN"),
        ({"storage": "msk", "msk_servers": "b-1:9098"}, "msk_servers and msk_security_group belong to the ARN"),
        ({"storage": "msk", "msk": MSK, "msk_servers": "b-1:9098", "msk_security_group": "sg-1"}, "needs vpc_id"),
        ({"storage": "msk", "msk": MSK, "msk_servers": "b-1", "msk_security_group": "sg-1"}, "addresses like"),
        ({"storage": "msk", "msk": MSK, "msk_servers": "b-1:9098", "msk_security_group": "mine"}, "is like sg-"),
        ({"storage": "msk", "msk_instance": "m7g.large"}, "is like express.m7g.large"),
        ({"storage": "msk", "msk_instance": "express.m7g.large"}, "begins with express. for msk=express"),
        ({"storage": "msk", "msk_brokers": "4"}, "a multiple of 3"),
        ({"storage": "msk", "msk_disk_gb": "0"}, "msk_disk_gb is from 1"),
        ({"storage": "msk", "indexers": "0"}, "indexers is from 1"),
        ({"storage": "msk", "dedicated_streams": "orders=1"}, "dedicated_streams needs storage=kinesis"),
        ({"storage": "msk", "fan_out": "true"}, "fan_out needs storage=kinesis"),
        ({"storage": "msk", "table_minutes": "10"}, "table_minutes with storage=msk needs vpc_id"),
        ({"stream_mode": "wild"}, "stream_mode is provisioned or on-demand"),
        ({"shards": 0}, "shards is from 1 to 1000"),
        ({"dedicated_streams": "orders"}, "dedicated_streams is like orders=4,payments=2"),
        ({"dedicated_streams": "orders=0"}, "dedicated_streams is like orders=4,payments=2"),
        ({"stream_retention_hours": 12}, "stream_retention_hours is from 24 to 8760"),
        ({"index_seconds": 600}, "index_seconds is from 0 to 300"),
        ({"retention_max_days": 0}, "retention_max_days is from 1 to 3650"),
        ({"auth_issuer": "issuer.example"}, "auth_issuer is an https:// URL"),
        ({"auth_jwks": "file:///keys"}, "auth_jwks is an https:// URL"),
        ({"authorizer_cache_seconds": 7200}, "authorizer_cache_seconds is from 0 to 3600"),
        ({"default_admin": "me"}, "default_admin is like service=nakadi_admin"),
        ({"alarm_email": "me"}, "alarm_email is an address of e-mail"),
        ({"publish_memory": 64}, "publish_memory is from 128 to 10240, in MiB"),
        ({"streaming_cpu": 300}, "streaming_cpu is one of 256, 512, 1024"),
        ({"streaming_cpu": 256, "streaming_memory": 4096}, "streaming_memory is from 512 to 2048 in steps of 512"),
        ({"streaming_min_tasks": 3, "streaming_max_tasks": 2}, "streaming_min_tasks <= streaming_max_tasks"),
        ({"concurrency": 100}, "concurrency is 0, which reserves nothing, or at least 200"),
        ({"table_days": 4000}, "table_days is from 0 to 3650"),
        ({"tables": "hive"}, "tables is glue or s3tables"),
        (
            {"tables": "s3tables", "table_readers": "arn:aws:iam::123456789012:role/analyst"},
            "table_readers needs tables=glue",
        ),
        ({"queries": True, "analytics": False}, "queries needs analytics and tables=glue"),
        ({"queries": True, "tables": "s3tables"}, "queries needs analytics and tables=glue"),
        ({"queries_per_second": 0}, "queries_per_second is at least 1"),
        ({"query_memory": 1024}, "query_memory is from 1536 to 10240, in MiB"),
        ({"query_image": "nakadi/queries:1"}, "query_image is an image in ECR"),
        ({"NAKADI_QUERY_MEGABYTES": "512"}, "NAKADI_QUERY_MEGABYTES is not a known value."),
        ({"table_readers": "ann"}, "table_readers are ARNs of IAM roles or users, with commas between"),
        ({"sinks": True, "sink_targets": "orders.fifo"}, "sink_targets are ARNs of functions, queues, topics"),
        ({"sinks": True, "sink_targets": "arn:aws:sqs:*:*:*"}, "with a region and an account"),
        ({"sinks": True, "sink_targets": "arn:aws:s3:eu:123456789012:*"}, "sink_targets are ARNs of functions"),
        ({"sink_targets": "arn:aws:sqs:eu-central-1:123456789012:orders"}, "sink_targets needs sinks"),
        ({"sinks": True, "storage": "msk"}, "sinks with storage=msk needs vpc_id"),
        ({"NAKADI_SINK_TARGETS": "*"}, "NAKADI_SINK_TARGETS is not a known value."),
        ({"otel_layers": "AWSOpenTelemetryDistroPython"}, "otel_layers are at most three ARNs"),
        ({"recovery_days": "36"}, "recovery_days is from 0 to 35"),
        ({"version_days": "366"}, "version_days is from 0 to 365"),
        ({"version_days": "1", "archive_replica": "copies"}, "archive_replica is the ARN of a bucket"),
        ({"archive_replica": "arn:aws:s3:::copies"}, "archive_replica needs version_days"),
        ({"canary_minutes": "7"}, "canary_minutes is 0, 5, 10, 15 or 30"),
        ({"web_acl_arn": "mine"}, "web_acl_arn is the ARN of a regional web ACL of AWS WAF"),
        ({"streams_per_task": 0}, "streams_per_task is at least 1"),
        ({"log_days": 8}, "log_days is one of 1, 3, 7"),
        ({"job_workers": 1}, "job_workers is from 2 to 100"),
    ],
)
def test_what_cannot_be_is_reported_in_a_sentence(given, said):
    """A value that cannot be deployed is refused by name, before anything is created."""
    with pytest.raises(BadContext, match=re.escape(said)):
        Context.of(Node(**given))


def test_settings_of_the_broker_can_be_chosen():
    """Every setting that functions and the service read can be set under its own name."""
    context = Context.of(Node(NAKADI_MAX_PARTITIONS=32, NAKADI_SCOPE_UID="nakadi/use", shards=2))

    assert (context.chosen.max_partitions, context.chosen.scope_uid, context.shards) == (32, "nakadi/use", 2)
    assert function_environment("event_types", context, {})["NAKADI_MAX_PARTITIONS"] == "32"
    assert (
        streaming_environment(context, {"event_log": "kinesis://live?region=here"})["NAKADI_SCOPE_UID"] == "nakadi/use"
    )


def test_keys_are_at_the_issuers_usual_place():
    """Without a choice of keys, the issuer's keys are used."""
    assert Context(auth_issuer="https://issuer.example/").jwks == "https://issuer.example/.well-known/jwks.json"
    assert Context(auth_jwks="https://keys.example/all").jwks == "https://keys.example/all"


def test_streams_of_their_own_have_names_of_the_stage():
    """Beside the shared stream, there is a stream for each name, with its shards."""
    context = Context(stage="live", shards=3, dedicated_streams="orders=4,payments=2")

    assert context.streams == {"nakadi-live": 3, "nakadi-live-orders": 4, "nakadi-live-payments": 2}


def test_every_value_is_explained():
    """docs/deploy.md has a row for each field, with its true default, and no other rows."""
    explained = {name: default for name, default, _ in ROW.findall(DEPLOY.read_text())}

    assert explained == {
        each.name: _format_default(each.default) for each in fields(Context) if each.name != "settings"
    }


def _format_default(default):
    return str(default).lower() if isinstance(default, bool) else str(default)
