"""The functions: the settings and permissions of each, and the input of the log's indexer."""

import json
from contextlib import closing

import pytest

from nakadi.app import routes
from nakadi.app.broker import open_broker
from nakadi.app.routes import make_application
from nakadi.app.settings import Settings
from nakadi_cdk.needs import NEEDS, TELEMETRY_SETTINGS
from nakadi_cdk.settings import DIRECT_SETTINGS, STREAMING_SETTINGS
from tests.support.lazy_modules import LazyModule
from tests.support.read_settings import ReadRecordingSettings
from tests.support.templates import text

functions = LazyModule("nakadi_cdk.functions")


def test_there_is_a_function_for_each_folder(serving):
    """Every folder with a handler is deployed, and nothing else."""
    assert set(serving.functions()) == set(NEEDS)


@pytest.mark.parametrize("name", NEEDS)
def test_a_function_gets_what_it_reads(serving, name):
    """A function's environment has a variable for every setting that the function reads, with a value that it
    understands.
    """
    environment = serving.environment(name)

    assert set(environment) == {*NEEDS[name].variables, functions.NAMESPACE_VARIABLE}
    Settings.from_env(environment)


def test_functions_find_what_is_kept(serving):
    """The settings of functions name the registry, index, log and archive of the data stack."""
    settings = Settings.from_env(serving.environment("housekeeping"))

    assert settings.registry == settings.log_index == "dynamodb://nakadi-test?region=eu-central-1"
    assert settings.event_log == "kinesis://nakadi-test?region=eu-central-1"
    assert settings.archive == "s3://nakadi-test-archive-123456789012-eu-central-1/?region=eu-central-1"


def test_the_authorizer_knows_the_issuer(serving):
    """The authorizer checks tokens, and the functions behind rely on it."""
    authorizer = Settings.from_env(serving.environment("authorizer"))

    assert authorizer.auth_issuer == "https://issuer.example"
    assert authorizer.auth_jwks == "https://issuer.example/.well-known/jwks.json"
    assert Settings.from_env(serving.environment("publish")).auth == "gateway"


@pytest.mark.parametrize("name", NEEDS)
def test_a_function_runs_on_what_its_layers_are_built_for(serving, name):
    """A function has Python 3.13 on arm64, both layers, traces, and a log group that does not grow forever."""
    function = serving.functions()[name]

    assert function["Runtime"] == "python3.13"
    assert function["Architectures"] == ["arm64"]
    assert function["Handler"] == "handler.handler"
    assert len(function["Layers"]) == 2
    assert function["TracingConfig"] == {"Mode": "Active"}
    log_group = serving.resources[function["LoggingConfig"]["LogGroup"]["Ref"]]["Properties"]
    assert log_group["LogGroupName"] == f"/aws/lambda/nakadi-test-{name.replace('_', '-')}"
    assert log_group["RetentionInDays"] == 30


def test_functions_are_traced_from_within_by_a_layer(serving, large_deployment):
    """A layer with OpenTelemetry is added to the broker's, and wraps the handler; without it there is none."""
    layer = "arn:aws:lambda:eu-central-1:123456789012:layer:AWSOpenTelemetryDistroPython:20"
    for name in NEEDS:
        assert large_deployment.serving.functions()[name]["Layers"][2:] == [layer]
        assert large_deployment.serving.environment(name)["AWS_LAMBDA_EXEC_WRAPPER"] == "/opt/otel-instrument"
        assert len(serving.functions()[name]["Layers"]) == 2


def test_the_indexer_counts_every_record_in_order(serving):
    """The indexer gets one batch of a shard at a time; a failing batch is split, retried, finally sent to a queue."""
    mappings = serving.all("AWS::Lambda::EventSourceMapping").values()

    assert len({text(each["EventSourceArn"]) for each in mappings}) == 2
    for mapping in mappings:
        assert mapping["StartingPosition"] == "TRIM_HORIZON"
        assert mapping["ParallelizationFactor"] == 1
        assert (mapping["BatchSize"], mapping["MaximumBatchingWindowInSeconds"]) == (10_000, 10)
        assert mapping["BisectBatchOnFunctionError"] is True
        assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
        assert mapping["MaximumRetryAttempts"] > 0
        destination = mapping["DestinationConfig"]["OnFailure"]["Destination"]["Fn::GetAtt"][0]
        assert serving.resources[destination]["Type"] == "AWS::SQS::Queue"
        assert "MaximumRecordAgeInSeconds" not in mapping


def rules(serving, schedule):
    return [each for each in serving.all("AWS::Events::Rule").values() if each["ScheduleExpression"] == schedule]


def test_the_way_to_the_streams_is_kept_open(serving):
    """A VPC link that carries nothing for 60 days is removed, so a public page behind the link is requested
    every week.
    """
    [rule] = rules(serving, "rate(7 days)")
    [target] = rule["Targets"]

    assert serving.resources[target["Arn"]["Fn::GetAtt"][0]]["Properties"]["FunctionName"] == "nakadi-test-housekeeping"
    assert json.loads(text(target["Input"])) == {"ask": "https://events.example.org/health/streams"}


def test_the_house_is_kept(serving):
    """Housekeeping runs every five minutes, and rarely takes longer than that."""
    [rule] = rules(serving, "rate(5 minutes)")
    [target] = rule["Targets"]

    assert serving.resources[target["Arn"]["Fn::GetAtt"][0]]["Properties"]["FunctionName"] == "nakadi-test-housekeeping"


def test_the_streaming_service_gets_what_it_reads(serving, tmp_path):
    """The container of the streaming service has a variable for every setting that its parts read, with a
    valid value.
    """
    [container] = serving.one("AWS::ECS::TaskDefinition")["ContainerDefinitions"]
    environment = {each["Name"]: text(each["Value"]) for each in container["Environment"]}
    keys = tmp_path / "jwks.json"
    keys.write_text('{"keys": []}')
    settings = ReadRecordingSettings(Settings(auth="jwt", auth_jwks=str(keys)))
    broker = open_broker(settings)
    make_application(broker, *routes.STREAMING_AREAS, "monitoring")
    broker.prepare_for_requests()
    broker.close()

    # A log with an index and an archive reads their settings and which process archives, and the program reads the
    # memory.
    assert set(environment) == {f"NAKADI_{name.upper()}" for name in STREAMING_SETTINGS}
    read = settings.read - TELEMETRY_SETTINGS | {"log_index", "archive", "archiver", "max_request_memory_bytes"}
    assert read == STREAMING_SETTINGS
    Settings.from_env(environment)


def test_the_streaming_service_gets_what_direct_requests_need(tmp_path):
    """If the streaming service also serves publishing and subscriptions, it has the settings that these read, and no
    others.
    """
    keys = tmp_path / "jwks.json"
    keys.write_text('{"keys": []}')
    settings = ReadRecordingSettings(Settings(auth="jwt", auth_jwks=str(keys)))
    with closing(open_broker(settings)) as broker:
        make_application(broker, *routes.STREAMING_AREAS, *routes.DIRECT_AREAS, "monitoring")
        broker.prepare_for_requests()

    read = settings.read - TELEMETRY_SETTINGS | {"log_index", "archive", "archiver", "max_request_memory_bytes"}
    assert read == STREAMING_SETTINGS | DIRECT_SETTINGS
