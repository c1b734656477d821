import pytest

from tests.support.jobs import DataFolder, Jobs
from tests.support.spark import quick_spark

__all__ = ["quick_spark"]  # the fixture for all tests of this folder


@pytest.fixture(scope="session")
def tables(tmp_path_factory):
    """The folder for the tables of all tests, because the catalog of a Spark has one location."""
    return tmp_path_factory.mktemp("tables")


@pytest.fixture
def data(tmp_path):
    folder = DataFolder(tmp_path / "data")
    yield folder
    folder.close()


@pytest.fixture
def jobs(data, tables):
    return Jobs(data, tables)
