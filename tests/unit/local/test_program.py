"""The start of the program: its messages, and the reasons to refuse."""

import logging
import socket
import sqlite3

import pytest

from nakadi.app.shutdown import SignalHandler
from nakadi.engines.sqlite.mark import Marker
from nakadi.local.program import _parse_options, _variables_with_options, main

SENTENCE = "The broker cannot start. "


@pytest.fixture(autouse=True)
def logging_as_before():
    """The program configures logging for its process, which is the tests' process here; this restores it."""
    loggers = [logging.getLogger(name) for name in ("", "nakadi.access")]
    before = [(each.level, each.handlers[:]) for each in loggers]
    yield
    for each, (level, handlers) in zip(loggers, before, strict=True):
        each.setLevel(level)
        each.handlers[:] = handlers


def read_start_error(capsys, *arguments):
    """A function that runs a program that must not start, and returns its message on standard error."""
    assert main([*arguments], signals=SignalHandler()) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(SENTENCE)
    assert said.err.count("\n") == 1
    return said.err


def test_a_port_in_use_is_reported_in_a_sentence(capsys, tmp_path):
    """The message does not name the process that uses the port, but says that the port is taken, and the remedy."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        assert f"Port {port} is in use" in read_start_error(capsys, "--port", str(port), "--data", str(tmp_path / "d"))
    assert not (tmp_path / "d" / "nakadi.db").exists()


def test_a_misspelled_setting_is_warned_of(capsys, tmp_path, monkeypatch):
    """The program warns of a misspelled setting once, when it starts."""
    monkeypatch.setenv("NAKADI_MAX_BACH_EVENTS", "5")
    assert main(["--port", "70000", "--data", str(tmp_path)], signals=SignalHandler()) == 1
    assert capsys.readouterr().err.count("did you mean NAKADI_MAX_BATCH_EVENTS?") == 1


@pytest.mark.parametrize(
    ("arguments", "variables", "tables"),
    [
        ([], {}, "data/tables"),
        (["--data", "elsewhere"], {}, "elsewhere/tables"),
        ([], {"NAKADI_TABLES": "glue"}, "glue"),
        (["--engine", "memory"], {}, ""),
    ],
)
def test_queries_find_the_tables_that_jobs_make_of_the_data_folder(arguments, variables, tables):
    """Tables are beside the data file, unless `NAKADI_TABLES` names another place."""
    assert _variables_with_options(_parse_options(arguments), variables)["NAKADI_TABLES"] == tables


@pytest.mark.parametrize("port", ["70000", "-1"])
def test_a_port_that_there_is_not(capsys, tmp_path, port):
    """A port outside the valid range is reported with a message."""
    assert f"There is no port {port}" in read_start_error(capsys, f"--port={port}", "--data", str(tmp_path))


def test_a_host_that_is_not_ours(capsys, tmp_path):
    """An address of another machine is reported with a message."""
    assert "of 192.0.2.1 cannot be had" in read_start_error(
        capsys, "--port=0", "--host=192.0.2.1", "--data", str(tmp_path)
    )


def test_a_folder_that_cannot_be_written_to(capsys, tmp_path):
    """A data folder that cannot be written to is reported with a message."""
    (tmp_path / "file").write_text("not a folder")

    said = read_start_error(capsys, "--port=0", "--data", str(tmp_path / "file" / "data"))

    assert f"Nothing can be written to the folder {tmp_path / 'file' / 'data'}: Not a directory." in said


def test_a_full_disk_is_reported_in_a_sentence(capsys, tmp_path, monkeypatch):
    """If the disk has no room even for the contents of the data file's log, the message names the file and the
    remedy."""

    def find_no_room(_marker):
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    monkeypatch.setattr(Marker, "_truncate_log", find_no_room)

    said = read_start_error(capsys, "--port=0", "--data", str(tmp_path))

    assert f"The data file {tmp_path / 'nakadi.db'} cannot be opened: database or disk is full. Make room" in said


def test_a_data_file_that_is_none(capsys, tmp_path):
    """A file of another kind in place of the data file is reported with a message, and stays unchanged."""
    (tmp_path / "nakadi.db").write_text("my diary" * 100)

    assert "is not a data file of this broker" in read_start_error(capsys, "--port=0", "--data", str(tmp_path))
    assert (tmp_path / "nakadi.db").read_text().startswith("my diary")


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("NAKADI_MAX_PARTITIONS", "many", "NAKADI_MAX_PARTITIONS is not int: 'many'"),
        ("NAKADI_AUTH", "maybe", "NAKADI_AUTH is 'off', 'jwt' or 'gateway', not 'maybe'"),
        ("NAKADI_REGISTRY", "oracle://x", "No registry is known for 'oracle://x'"),
        ("NAKADI_EVENT_LOG", "tape://x", "No event log is known for 'tape://x'"),
    ],
)
def test_settings_that_make_no_sense(capsys, monkeypatch, tmp_path, variable, value, sentence):
    """The message names a variable whose value cannot be parsed."""
    monkeypatch.setenv(variable, value)

    assert sentence in read_start_error(capsys, "--port=0", "--data", str(tmp_path))


def test_an_option_that_there_is_not(capsys):
    """An unknown option is answered with the usage."""
    with pytest.raises(SystemExit) as end:
        main(["--prot", "1"], signals=SignalHandler())

    assert end.value.code == 2
    assert "usage: python -m nakadi.local" in capsys.readouterr().err
