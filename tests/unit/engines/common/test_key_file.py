"""Secrets that are sealed with a key in a file."""

import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from nakadi.engines.common.key_file import AesSecretBox, read_or_make_key
from nakadi.model.outcomes import Unavailable


def test_what_was_sealed_is_opened_with_the_same_key_and_context_only():
    """(X5)"""
    box, other = AesSecretBox(lambda: b"a" * 32), AesSecretBox(lambda: b"b" * 32)
    sealed = box.seal(b"secret", "here")
    assert box.open(sealed, "here") == b"secret"
    assert box.seal(b"secret", "here") != sealed
    assert "secret" not in sealed
    broken = sealed[:-6] + ("AAAAAA" if sealed[-6:] != "AAAAAA" else "BBBBBB")
    for opener, text, context in (
        (other, sealed, "here"),
        (box, sealed, "there"),
        (box, broken, "here"),
        (box, "", ""),
    ):
        with pytest.raises(Unavailable):
            opener.open(text, context)


def test_the_key_is_made_once_for_its_owner_alone(tmp_path):
    """Processes that start at the same time agree on one key. (X5)"""
    path = tmp_path / "nakadi.db.key"
    with ThreadPoolExecutor(8) as threads:
        keys = set(threads.map(lambda _: read_or_make_key(path), range(8)))
    assert len(keys) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_key_that_is_cut_off_or_cannot_be_read_is_a_fault(tmp_path):
    short = tmp_path / "short"
    short.write_bytes(b"short")
    for path in (short, tmp_path / "missing" / "key", tmp_path):
        with pytest.raises(Unavailable):
            read_or_make_key(path)
