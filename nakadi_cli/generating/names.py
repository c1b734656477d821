"""Identifiers and source text made from names, titles and values that strangers chose.

The content of a schema reaches generated source in three forms only: as an identifier of ASCII letters, digits and
underscores, as a literal whose special characters are escaped, and as words in a comment.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

_WORDS = re.compile(r"[A-Za-z0-9]+")
_MOST_CHARACTERS = 60
_MOST_COMMENT_CHARACTERS = 500
_COMMENT_WIDTH = 100
_HARMLESS_SIGNS = str.maketrans({"\\": "/", '"': "'", "`": "'", "*": "·"})
_LIKE_DIRECTIVE = re.compile(r"[^\w('<]|\S+:|[0-9]+[.)]|(?:eslint|jshint|ktlint|nolint|noqa|prettier|pylint|tslint)\b")
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}

# Names of types that generated source uses in any language, so that records have the same names in all of them.
TYPE_NAMES_IN_USE = frozenset(
    """
    Any Array BaseModel BigDecimal Boolean Class ConfigDict Double Enum False Field Integer Iterable JsonElement
    JsonIgnoreProperties JsonInclude JsonProperty Int List Literal Long Map Model None Nothing Number Object
    OffsetDateTime Override Record SerialName Serializable String Struct System True TypeAlias Unit UNSET UnsetType
    """.split()  # noqa: SIM905  # a table reads better than thirty words in quotes
)


def words(text: str) -> list[str]:
    """Split a name at everything that cannot be in an identifier."""
    return _WORDS.findall(text[: _MOST_CHARACTERS * 2])


def pascal_case(text: str) -> str:
    return "".join(each[0].upper() + each[1:] for each in words(text))[:_MOST_CHARACTERS]


def camel_case(text: str) -> str:
    found = words(text)
    if not found:
        return ""
    first = found[0].lower() if found[0].isupper() else found[0][0].lower() + found[0][1:]
    return (first + pascal_case(" ".join(found[1:])))[:_MOST_CHARACTERS]


def snake_case(text: str) -> str:
    """Keep a valid identifier, unless it begins with an underscore, and otherwise join the words."""
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", text) and len(text) <= _MOST_CHARACTERS:
        return text
    return "_".join(words(text)).lower()[:_MOST_CHARACTERS]


def upper_case(text: str) -> str:
    return "_".join(words(text)).upper()[:_MOST_CHARACTERS]


def singular(name: str) -> str:
    """The singular of a noun, if it is regular in English."""
    for ending, replacement in (("ies", "y"), ("sses", "ss"), ("ches", "ch"), ("shes", "sh"), ("xes", "x")):
        if name.endswith(ending):
            return name.removesuffix(ending) + replacement
    return name[:-1] if name.endswith("s") and not name.endswith(("ss", "us", "is")) else name


class Identifiers:
    """The identifiers of one scope. None is reserved, and none occurs twice, not even in another letter case if
    `ignores_case` is set."""

    def __init__(self, reserved: Iterable[str] = (), *, substitute: str = "member", ignores_case: bool = False) -> None:
        self._fold = str.lower if ignores_case else str
        self._taken = {self._fold(each) for each in reserved}
        self._substitute = substitute
        self._numbers: dict[str, int] = {}

    def claim(self, wanted: str) -> str:
        """Return an identifier as near to the wanted one as possible."""
        base = wanted if wanted[:1].isalpha() else f"{self._substitute}{wanted}"
        name, number = base, self._numbers.get(base, 1)
        if self._fold(name) in self._taken and number == 1:
            name = f"{base}_"
        while self._fold(name) in self._taken:
            number += 1
            name = f"{base}{number}"
        self._numbers[base] = number
        self._taken.add(self._fold(name))
        return name


def quoted(text: str, *, wide: bool = False, also: str = "") -> str:
    """Write a literal in double quotes. A character beyond ASCII is a UTF-16 escape, or `\\U0001f600` if `wide`.

    `also` names more characters to escape by a backslash.
    """
    return f'"{"".join(_escape_character(each, wide=wide, also=also) for each in text)}"'


def _escape_character(character: str, *, wide: bool, also: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character in also:
        return f"\\{character}"
    if " " <= character <= "~":
        return character
    if wide and ord(character) > 0xFFFF:
        return f"\\U{ord(character):08x}"
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{int.from_bytes(units[at : at + 2]):04x}" for at in range(0, len(units), 2))


def comment_lines(text: str) -> list[str]:
    """Break a text into lines that are harmless in a comment of any language, and in a docstring.

    No line ends the comment or the docstring, or is an escape: Java reads `\\u002a` as `*`, in comments too. No line
    gives a tool an instruction, as `type: ignore` and `+build` do. Characters that are not printable, line breaks and
    changes of direction among them, become spaces.
    """
    printable = "".join(each if each.isprintable() else " " for each in text[:_MOST_COMMENT_CHARACTERS])
    plain = printable.translate(_HARMLESS_SIGNS)
    # gofmt would replace two quotes by one character.
    plain = re.sub(r"'+", "'", " ".join(plain.split()))
    lines = textwrap.wrap(plain, _COMMENT_WIDTH, break_on_hyphens=False)
    return [f"· {each}" if _LIKE_DIRECTIVE.match(each) else each for each in lines]


def block_comment(text: str, indent: str = "") -> list[str]:
    """Write a comment as editors show it for the declaration below."""
    lines = comment_lines(text)
    if len(lines) < 2:
        return [f"{indent}/** {each} */" for each in lines]
    return [f"{indent}/**", *(f"{indent} * {each}" for each in lines), f"{indent} */"]
