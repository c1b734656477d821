"""The table of the settings that functions need."""

from contextlib import closing
from functools import cache
from importlib.metadata import packages_distributions

import pytest
from msgspec.structs import fields

from nakadi.app.broker import open_broker
from nakadi.app.routes import ROUTE_MAKER_BY_AREA, STREAMING_AREAS
from nakadi.app.settings import Settings
from nakadi_cdk.needs import NEEDS, OWN_EVENT_TYPE_SETTINGS, QUERIES, TELEMETRY_SETTINGS
from tests.support.functions import ROOT, Context, import_handler, load_handler, load_recorded_event, read_pins
from tests.support.read_settings import ReadRecordingSettings

ALL_NEEDS = {**NEEDS, "queries": QUERIES}

INVOCATIONS = {
    "publish": ["apigateway/publish_batch"],
    "event_types": ["apigateway/create_event_type", "apigateway/delete_event_type"],
    "cursors": ["apigateway/shift_cursors"],
    "subscriptions": ["apigateway/list_subscriptions_by_event_types"],
    "admin": ["apigateway/switch_feature"],
    "authorizer": ["authorizer/token"],
    "housekeeping": ["schedule/housekeeping"],
    "log_indexer": ["kinesis/batch"],
    "queries": ["apigateway/run_query"],
}


STREAM = {"NAKADI_EVENT_LOG": "kinesis://events", "NAKADI_LOG_INDEX": "dynamodb://live", "NAKADI_ARCHIVE": "memory:"}


@pytest.mark.usefixtures("broker")
@pytest.mark.parametrize("name", ALL_NEEDS)
def test_a_function_reads_the_settings_that_it_is_given(name, issuer, monkeypatch):
    """The deployment gives a function every setting that it reads, and none that it does not."""
    if name == "housekeeping":
        monkeypatch.delenv("NAKADI_AUTH")
        monkeypatch.setenv("NAKADI_TABLE_JOB", "any")
    if name == "log_indexer":
        for setting, url in STREAM.items():
            monkeypatch.setenv(setting, url)
    settings = ReadRecordingSettings(Settings.from_env({}))
    from_env = Settings.from_env

    def watch_settings(_, environ):
        settings._settings = from_env(environ)
        return settings

    monkeypatch.setattr(Settings, "from_env", classmethod(watch_settings))
    handler = load_handler(name).handler
    for event in INVOCATIONS[name]:
        handler(load_recorded_event(event) | {"authorizationToken": f"Bearer {issuer.token()}"}, Context())
    if ALL_NEEDS[name].settings.issuperset(OWN_EVENT_TYPE_SETTINGS):
        # These invocations do not need some settings: the broker creates the event type of the audit log only if it is
        # missing.
        with closing(open_broker(settings)) as broker:
            broker.prepare_for_requests()
            if name == "housekeeping":
                # housekeeping reports lost events in the audit log
                assert broker.audit

    # With a log in Kafka, which this test lacks, the function would read the setting for the archiver.
    given = ALL_NEEDS[name].settings
    assert settings.read - TELEMETRY_SETTINGS - ({"auth"} - given) | ({"archiver"} & given) == given


def test_every_function_is_known():
    """The table has every function's folder, with settings that exist."""
    folders = {path.parent.name for path in (ROOT / "functions").glob("*/handler.py")}

    assert folders == set(ALL_NEEDS)
    assert {setting for needs in ALL_NEEDS.values() for setting in needs.settings} <= {
        each.name for each in fields(Settings)
    }


def test_every_area_but_the_streams_has_one_function():
    """The functions serve each area of the API once, except streams, which last too long for a function. A deployment
    may leave out the function for queries; the streaming service then answers.
    """
    served = [area for needs in ALL_NEEDS.values() for area in needs.areas]

    assert sorted(served) == sorted(set(ROUTE_MAKER_BY_AREA) - {*STREAMING_AREAS} | {"queries"})


@pytest.mark.parametrize("name", ALL_NEEDS)
def test_a_handler_serves_its_areas(name):
    """The areas of a function in the table are those that its handler serves."""
    assert load_handler(name).handler.areas == ALL_NEEDS[name].areas


VALIDATION = ["nakadi.schemas.submission", "nakadi.schemas.validation", "nakadi.schemas.document"]
UNUSED = {
    "publish": [
        "nakadi.streaming",
        "nakadi.http.docs_page",
        "nakadi.event_types.creation",
        "jwt",
    ],
    "event_types": ["nakadi.streaming", "nakadi.http.docs_page", "jwt"],
    "cursors": [
        "nakadi.streaming",
        "nakadi.http.docs_page",
        "nakadi.publishing",
        "nakadi.event_types.creation",
        "jwt",
    ],
    "subscriptions": ["nakadi.streaming", "nakadi.http.docs_page", "nakadi.publishing", "jwt"],
    "admin": ["nakadi.streaming", "jwt"],
    "authorizer": ["pynamodb", "nakadi.app.broker", "nakadi.publishing", "nakadi.event_types", *VALIDATION],
    "housekeeping": ["nakadi.streaming", "nakadi.publishing", *VALIDATION, "jwt"],
    "log_indexer": ["nakadi.app.broker", "nakadi.event_types", "nakadi.publishing", *VALIDATION, "nakadi.http.routes"],
    "queries": [
        "duckdb",
        "pynamodb",
        "nakadi.app.broker",
        "nakadi.event_types",
        "nakadi.publishing",
        *VALIDATION,
        "jwt",
    ],
}
ENGINES = ["nakadi.engines.dynamodb.registry", "nakadi.engines.dynamodb.log_index", "nakadi.engines.kinesis.opening"]
LOADED = {
    "publish": ENGINES,
    "event_types": ENGINES,
    "cursors": ENGINES,
    "subscriptions": ENGINES,
    "admin": ENGINES,
    "authorizer": ["jwt"],
    "housekeeping": ENGINES,
    "log_indexer": ENGINES[1:],
    "queries": ["nakadi.queries.processes"],
}
EVERYWHERE = ["asyncio", "boto3", "uvicorn", "nakadi.local", "jsonschema"]


@pytest.mark.parametrize("name", ALL_NEEDS)
def test_importing_a_handler_does_nothing_but_import(name):
    """Importing opens, requests and starts nothing, needs no setting, and loads only modules that are used.

    It loads modules that are slow to load, because Lambda gives more processor time before the first invocation.
    """
    modules = import_handler(name)
    assert {module for module in [*UNUSED[name], *EVERYWHERE] if module in modules} == set()
    assert set(LOADED[name]) - modules == set()


distributions_by_package = cache(packages_distributions)


@pytest.mark.parametrize("name", ALL_NEEDS)
def test_everything_that_a_function_loads_is_in_the_layer(name):
    """No function imports a library that Lambda, or the function's image, lacks."""
    packages = distributions_by_package()
    loaded = {module.partition(".")[0] for module in import_handler(name)}
    needed = {packages[module][0].lower().replace("_", "-") for module in loaded if module in packages}

    # botocore has its own certificates, and uses certifi's only if certifi is installed.
    place = "functions/queries" if name == "queries" else "layers/dependencies"
    layer = read_pins(f"{place}/requirements.txt")
    assert needed - {"certifi", "pip", "setuptools", "nakadi-serverless"} <= set(layer)
