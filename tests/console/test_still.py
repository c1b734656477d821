"""The picture of the console in the README."""

from tests.console.conftest import ROOT


def test_still(failure):
    """Each sentence in the module's script names a test, which passes in the browser."""
    assert not failure, failure


def test_the_picture_in_the_readme_is_there():
    """The README shows the picture, which is an SVG without a script."""
    drawn = (ROOT / "docs" / "console.svg").read_text()

    assert "](docs/console.svg)" in (ROOT / "README.md").read_text()
    assert drawn.startswith("<svg ")
    assert "<script" not in drawn
