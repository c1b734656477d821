"""The table of aims shows the measured figures, and whether they are enough."""

import json
import sys

from benchmarks import aims


def test_the_table_says_what_was_met(tmp_path, monkeypatch, capsys):
    """It contains figures of several files, also those computed from two, and names missing ones."""
    rates = {f"http_random_broker_{clients}_clients_100_per_batch_requests_per_s": clients for clients in (8, 64)}
    (tmp_path / "publish.json").write_text(json.dumps(rates))
    (tmp_path / "stream.json").write_text(json.dumps({"throughput_1_of_floor": 0.4, "idle_kb_per_stream": 9.5}))
    monkeypatch.setattr(sys, "argv", ["aims.py", str(tmp_path)])

    aims.main()

    rows = capsys.readouterr().out.splitlines()
    assert "| publish, 100 a batch: 64 clients against 8 | 8.00 | ≥ 1.00 | yes |" in rows
    assert "| publish, 100 a batch, 64 clients: events/s | 6,400 | ≥ 130,000 | no |" in rows
    assert "| one stream: of the floor | 0.40 | ≥ 0.50 | no |" in rows
    assert "| idle stream: KiB | 9.50 | ≤ 12.00 | yes |" in rows
    assert "| replay from the archive: of the hot log | not measured | ≥ 0.85 | |" in rows
