"""Catalogs, other than a folder and Glue's, that can hold tables."""

import pytest

from nakadi_jobs.event_type_tables import events_table
from nakadi_jobs.leftovers import relative_folder
from nakadi_jobs.session import BadCatalog, NoSpark, catalog_settings_for, open_spark
from tests.support.jobs import order
from tests.support.rest_catalog import rest_catalog

PREFIX = "spark.sql.catalog.nakadi"
BUCKET = "arn:aws:s3tables:eu-central-1:123456789012:bucket/nakadi-test"


@pytest.mark.long
def test_tables_in_a_rest_catalog(jobs, data, tables, tmp_path):
    """Every job keeps its tables in a catalog over HTTP, with a token that is not among the arguments."""
    warehouse = tables / "rest"
    orders = data.event_type("order.placed", retention_time=3_600_000)
    data.archive_events(orders, [order(number) for number in range(5)])
    secret = tmp_path / "catalog.properties"
    secret.write_text("# for the jobs\ntoken = secret\n\n")
    with rest_catalog(jobs.spark(), warehouse, "secret") as (catalog, url):
        places = ("--catalog", "rest", "--catalog-uri", url, "--tables", str(warehouse))
        known = (*places, "--catalog-properties", str(secret))

        assert jobs.compact(*places).code == 1
        told = jobs.compact(*known)
        assert (told.code, "5 events into order_placed" in told.told) == (0, True)
        assert "nothing new" in jobs.compact(*known).told
        told = jobs.drop_before(*known)
        assert (told.code, "5 events older than 1:00:00 are gone from order_placed" in told.told) == (0, True)
        spark = open_spark("look", str(warehouse), "rest", properties={"uri": url, "token": "secret"})
        table = events_table(spark, jobs.database, orders)
        # An erasure looks through this folder.
        assert relative_folder(warehouse.as_uri(), table.location()) == f"{jobs.database}/order_placed"
        assert table.rows().count() == 0

    assert ("POST", f"/v1/namespaces/{jobs.database}/tables/order_placed") in catalog.asked
    assert (warehouse / jobs.database / "order_placed").is_dir()
    assert not (tables / jobs.database).exists()


def test_table_buckets():
    """A table bucket's catalog is in its region, and requests to it are signed."""
    assert catalog_settings_for("s3://bucket/tables", "s3tables", {"warehouse": BUCKET}) == {
        PREFIX: "org.apache.iceberg.spark.SparkCatalog",
        f"{PREFIX}.type": "rest",
        f"{PREFIX}.uri": "https://s3tables.eu-central-1.amazonaws.com/iceberg",
        f"{PREFIX}.warehouse": BUCKET,
        f"{PREFIX}.rest.sigv4-enabled": "true",
        f"{PREFIX}.rest.signing-name": "s3tables",
        f"{PREFIX}.rest.signing-region": "eu-central-1",
        f"{PREFIX}.io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        f"{PREFIX}.cache-enabled": "false",
    }


@pytest.mark.parametrize(
    ("catalog", "properties", "reason"),
    [
        ("rest", {"warehouse": "w"}, "The catalog rest needs --catalog-uri."),
        ("s3tables", {"warehouse": "w"}, "The catalog s3tables needs the ARN of a table bucket as --warehouse."),
        ("s3tables", {}, "The catalog s3tables needs the ARN of a table bucket as --warehouse."),
    ],
)
def test_catalogs_that_lack_something(catalog, properties, reason):
    """A catalog without the necessary properties is refused before Spark connects to it."""
    with pytest.raises(BadCatalog, match=f"^{reason}$"):
        catalog_settings_for("data/tables", catalog, properties)


def test_a_spark_without_iceberg(jobs, tables, monkeypatch):
    """A Spark that lacks Iceberg is refused with the package and the jar that it needs."""
    jobs.spark()
    monkeypatch.setattr("nakadi_jobs.session.EXTENSIONS", "org.apache.iceberg.NotThere")

    with pytest.raises(NoSpark, match=r"no Iceberg\. 'nakadi-serverless\[jobs\]' installs it for Spark 3\.5\."):
        open_spark("look", str(tables), "hadoop")
