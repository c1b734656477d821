"""The links of the documentation lead to existing places."""

from collections import Counter

import pytest

from tests.support.pages import ROOT, find_anchors, pages, read_anchors, read_links, read_text


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_of_a_page_lead_to_a_file_and_an_anchor(page):
    """Every relative link of a page leads to an existing file, and to an anchor or a heading in it."""
    assert [link for link in read_links(page) if not leads_somewhere(page, link)] == []


def test_an_anchor_of_a_page_is_unique():
    """No two places of a page have the same anchor."""
    twice = {
        page.name: [anchor for anchor, count in Counter(find_anchors(read_text(page))).items() if count > 1]
        for page in pages()
    }

    assert {page: anchors for page, anchors in twice.items() if anchors} == {}


def leads_somewhere(page, link):
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not anchor or anchor in read_anchors(target))
