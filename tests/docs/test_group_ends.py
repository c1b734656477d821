"""Resources of a group of tests end with the group, not with the run."""

import pytest

from tests.support import group_ends

ends: list[str] = []


@pytest.fixture(scope="session")
def group_fixture():
    yield
    ends.append("fixture")


@pytest.mark.usefixtures("group_fixture")
def test_fixtures_of_the_session_end_with_the_group(monkeypatch):
    """Ending a group finishes the fixtures that were set up, once each."""
    own = [each for each in group_ends._fixtures if each[0].argname == "group_fixture"]
    monkeypatch.setattr(group_ends, "_fixtures", own)
    group_ends.finish_fixtures()
    group_ends.finish_fixtures()
    assert ends == ["fixture"]


def test_what_began_last_ends_first(monkeypatch):
    """Resources end in the reverse order of their start, so a server is stopped before its folder is removed."""
    ended = []
    monkeypatch.setattr(group_ends, "_endings", [])
    group_ends.end_with_group(lambda: ended.append("folder"))
    group_ends.end_with_group(lambda: ended.append("server"))
    group_ends.end_shared()
    group_ends.end_shared()
    assert ended == ["server", "folder"]
