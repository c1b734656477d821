"""HTML that is safe by construction: text is escaped unless it is known to be HTML already."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

# What may stand in a tag without a closing one.
VOID = frozenset({"meta", "input", "wbr"})

WORDS = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*")


class Html(str):
    """Text that is HTML. Only this module makes any from nothing."""

    __slots__ = ()


Child = str | None


def element(name: str, /, *children: Child, **attributes: str | None) -> Html:
    """An element; `class_` stands for `class`, a dash may be written as an underscore, None leaves an attribute out."""
    opening = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return Html(f"<{name}{opening}>")
    return Html(f"<{name}{opening}>{joined(children)}</{name}>")


def joined(children: Iterable[Child], between: str = "") -> Html:
    return Html(escaped(between).join(escaped(each) for each in children if each is not None))


def escaped(text: str) -> Html:
    return text if isinstance(text, Html) else Html(html.escape(text))


def trusted(text: str) -> Html:
    """HTML, CSS or script of our own that must not be escaped."""
    return Html(text)


def prose(text: str) -> Html:
    """Paragraphs, lists, `code`, **strong** and *stressed* words: as much of CommonMark as our descriptions use."""
    blocks = re.split(r"\n\s*\n", text.strip())
    return joined(_block(block) for block in blocks if block)


def _block(text: str) -> Html:
    if not text.startswith("- "):
        return element("p", words(_unfolded(text)))
    items = re.split(r"(?:^|\n)- ", text)[1:]
    return element("ul", *(element("li", words(_unfolded(item))) for item in items))


def _unfolded(text: str) -> str:
    return " ".join(text.split())


def words(text: str) -> Html:
    pieces: list[Html] = []
    rest = 0
    for match in WORDS.finditer(text):
        code, strong, stressed = match.groups()
        name, inside = ("code", code) if code else ("strong", strong) if strong else ("em", stressed)
        pieces += [escaped(text[rest : match.start()]), element(name, inside)]
        rest = match.end()
    return joined([*pieces, escaped(text[rest:])])
