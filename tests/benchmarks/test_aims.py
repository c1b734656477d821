"""The table of aims shows the measured figures of all rounds, and whether they meet the aims."""

import json
import sys

from benchmarks import aims
from benchmarks.aims import Aim, least_ratio, median_ratio, round_in


def compared(name, ratio):
    return {"name": name, "first": 3.0, "second": 2.0, "ratio": ratio, "fdatasync_ms": 0.5}


def written_round(folder, idle_kb, *rows):
    folder.mkdir()
    (folder / "stream.json").write_text(json.dumps({"idle_kb_per_stream": idle_kb}))
    (folder / "compare.json").write_text(json.dumps({"rows": rows, "failures": []}))
    return round_in(folder)


def test_a_row_has_the_median_the_least_and_the_greatest_of_its_rounds(tmp_path):
    rounds = [written_round(tmp_path / f"{number}", kb) for number, kb in enumerate((10.0, 30.0, 11.0))]

    idle = Aim("idle stream: KiB", "stream.idle_kb_per_stream", most=12.0)

    assert idle.row(rounds) == "| idle stream: KiB | 11.00 (10.00 to 30.00) | ≤ 12.00 | yes |"
    assert Aim("the same", idle.value, most=10.5).row(rounds).endswith("| ≤ 10.50 | **no** |")


def test_ratios_of_a_comparison_are_found_by_the_names_of_its_rows(tmp_path):
    rows = [compared(f"publish {shape}, 100 a batch", ratio) for shape, ratio in (("a", 1.0), ("b", 4.0), ("c", 2.0))]
    rounds = [written_round(tmp_path / "1", 10.0, *rows, compared("one low-level stream", 0.1))]

    assert Aim("median", median_ratio("publish .*"), least=2.0).row(rounds) == "| median | 2.00 | ≥ 2.00 | yes |"
    assert Aim("least", least_ratio("publish .*"), least=2.0).row(rounds) == "| least | 1.00 | ≥ 2.00 | **no** |"


def test_what_no_round_measured_is_said_to_be_missing(tmp_path):
    rounds = [written_round(tmp_path / "1", 10.0)]

    assert Aim("rate", "publish.rate", least=1.0).row(rounds) == "| rate | not measured | ≥ 1.00 | |"
    assert Aim("ratio", least_ratio("publish .*"), least=1.0).row(rounds) == "| ratio | not measured | ≥ 1.00 | |"


def test_the_table_says_what_was_met(tmp_path, monkeypatch, capsys):
    """The table contains figures from several files, including those computed from two, and names missing figures."""
    rates = {f"http_random_broker_{clients}_clients_100_per_batch_requests_per_s": clients for clients in (8, 64)}
    (tmp_path / "publish.json").write_text(json.dumps(rates))
    (tmp_path / "stream.json").write_text(json.dumps({"throughput_1_of_floor": 0.4, "idle_kb_per_stream": 9.5}))
    monkeypatch.setattr(sys, "argv", ["aims.py", str(tmp_path)])

    aims.main()

    rows = capsys.readouterr().out.splitlines()
    assert "| publish, 100 a batch: 64 clients against 8 | 8.00 | ≥ 1.00 | yes |" in rows
    assert "| publish, 100 a batch, 64 clients: events/s | 6,400 | ≥ 130,000 | **no** |" in rows
    assert "| one stream: of the floor | 0.40 | ≥ 0.50 | **no** |" in rows
    assert "| idle stream: KiB | 9.50 | ≤ 12.00 | yes |" in rows
    assert "| replay from the archive: of the hot log | not measured | ≥ 0.85 | |" in rows
