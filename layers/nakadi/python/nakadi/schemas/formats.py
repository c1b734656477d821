"""The formats that are checked in events: for the name of each format, a function that returns the fault of a text, or
None.

Other names (`uuid`, `date`, `time`, …) are documentation. Every check takes at most time in proportion to the text.

Moments follow the rules of a strict parser of ISO 8601 in Java. `2026-11-21T12:00:00.123Z` and
`2026-11-21t13:00:00+01:00` are moments. Seconds and offset are required, the day must exist, and there is no second 60
and no hour 24. Some oddities pass because producers rely on them: a decimal point without digits, years beyond 9999
after a plus sign, and years before the first after a minus sign.
"""

from __future__ import annotations

import calendar
import ipaddress
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

import re2

from nakadi.schemas.document import EID_PATTERN
from nakadi.schemas.values import STEPS_PER_SECOND, RemainingSteps, StepsExhausted, spend_steps

_USUAL_TIMESTAMP_REGEX = (
    r"\d{4}-"
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
    r"[Tt](?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{0,9})?"
    r"(?:[Zz]|[+-](?:(?:0\d|1[0-7]):[0-5]\d|18:00))"
)
is_usual_timestamp = re.compile(_USUAL_TIMESTAMP_REGEX, re.ASCII).fullmatch

_TIMESTAMP_PART_PATTERNS = tuple(
    (name, re.compile(pattern, re.ASCII))
    for name, pattern in (
        ("year", r"\+\d{5,9}|-(?!0+-)\d{4,9}|\d{4}(?!\d)"),
        ("", "-"),
        ("month", r"\d\d"),
        ("", "-"),
        ("day", r"\d\d"),
        ("", "[Tt]"),
        ("hour", r"\d\d"),
        ("", ":"),
        ("minute", r"\d\d"),
        # These parts are optional in ISO 8601, so a missing one is reported only if everything else is correct.
        ("second", r"(?::\d\d(?:\.\d{0,9})?)?"),
        ("offset", r"[Zz]|[+-]\d\d(?::[0-5]\d(?::[0-5]\d)?)?"),
    )
)
_matches_utc_offset = re.compile(r"[Zz]|[+-]\d\d:\d\d", re.ASCII).fullmatch

_TIMESTAMP_RANGES = (
    ("month", "MonthOfYear", range(1, 13), "1 - 12"),
    ("day", "DayOfMonth", range(1, 32), "1 - 28/31"),
    ("hour", "HourOfDay", range(24), "0 - 23"),
    ("minute", "MinuteOfHour", range(60), "0 - 59"),
    ("second", "SecondOfMinute", range(60), "0 - 59"),
)

_MONTH_NAMES = tuple(name.upper() for name in calendar.month_name)
_MAX_QUOTED_TEXT_CHARACTERS = 64


def timestamp_problem(text: str) -> str | None:
    """Why this is not a moment, in the words that clients know; None if it is one."""
    if is_usual_timestamp(text) is not None:
        return None
    found: dict[str, str] = {}
    reason = _timestamp_form_problem(text, found) or _timestamp_range_problem(found)
    if reason is not None:
        return f"must be a valid date-time Text '{_shorten_for_message(text)}' could not be parsed{reason}"
    return None if found["second"] and _matches_utc_offset(found["offset"]) else "must be a valid date-time"


def _shorten_for_message(text: str) -> str:
    return text if len(text) <= _MAX_QUOTED_TEXT_CHARACTERS else f"{text[:_MAX_QUOTED_TEXT_CHARACTERS]}..."


def _timestamp_form_problem(text: str, parts: dict[str, str]) -> str | None:
    """The end of a message, which says where a text departs from the form of a moment; None if it has that form. The
    parts that were read are put into `parts`.
    """
    at = 0
    for name, pattern in _TIMESTAMP_PART_PATTERNS:
        part = pattern.match(text, at)
        if part is None:
            return f" at index {at}"
        parts[name] = part.group()
        at = part.end()
    return f", unparsed text found at index {at}" if at < len(text) else None


def _timestamp_range_problem(parts: dict[str, str]) -> str | None:
    for name, field, values, valid_range in _TIMESTAMP_RANGES:
        # The part for the second includes its colon and its fraction.
        value = int(parts[name].removeprefix(":").partition(".")[0] or 0)
        if value not in values:
            return f": Invalid value for {field} (valid values {valid_range}): {value}"
    return _day_problem(int(parts["year"]), int(parts["month"]), int(parts["day"])) or _offset_problem(parts["offset"])


def _day_problem(year: int, month: int, day: int) -> str | None:
    if month == 2 and day == 29:
        return None if calendar.isleap(year) else f": Invalid date 'February 29' as '{year}' is not a leap year"
    # The year may be any that is not a leap year, because the 29th of February was handled above.
    return None if day <= calendar.monthrange(2001, month)[1] else f": Invalid date '{_MONTH_NAMES[month]} {day}'"


def _offset_problem(offset: str) -> str | None:
    if offset in "Zz" or offset[1:] <= "18:00":
        return None
    return ": Zone offset not in valid range: -18:00 to +18:00"


# Letters of all scripts, between dots that may belong to other scripts. The last label is not a number.
_HOSTNAME_DOT_PATTERN = r"[.\u3002\uff0e\uff61]"
_HOSTNAME_ALNUM_PATTERN = r"(?:[A-Za-z0-9]|[^\x00-\x7f\u3002\uff0e\uff61])"
_HOSTNAME_LABEL_PATTERN = (
    rf"{_HOSTNAME_ALNUM_PATTERN}(?:(?:{_HOSTNAME_ALNUM_PATTERN}|-){{0,61}}{_HOSTNAME_ALNUM_PATTERN})?"
)
_matches_hostname = re.compile(
    rf"(?:{_HOSTNAME_LABEL_PATTERN}{_HOSTNAME_DOT_PATTERN})*(?![0-9]){_HOSTNAME_LABEL_PATTERN}{_HOSTNAME_DOT_PATTERN}?"
).fullmatch
_MAX_HOSTNAME_LENGTH = 253

# The part of a mail address before `@`: words of ordinary characters between single dots, or any text in quotes.
_MAIL_WORD_PATTERN = r"[^\s\x00-\x1f\x7f()<>@,;:\\\".\[\]]+"
_matches_mail_local_part = re.compile(
    rf"{_MAIL_WORD_PATTERN}(?:\.{_MAIL_WORD_PATTERN})*|\"(?:[^\"\\\x00-\x1f\x7f]|\\[^\x00-\x1f\x7f])*\""
).fullmatch
_MAIL_LABEL_PATTERN = r"[^\W_](?:[\w-]{0,61}[^\W_])?"
_matches_mail_domain = re.compile(
    rf"{_MAIL_LABEL_PATTERN}(?:\.{_MAIL_LABEL_PATTERN})*\.(?:[^\W\d_]{{2,63}}|xn--[A-Za-z0-9-]{{1,59}})"
).fullmatch
_MAX_MAIL_LOCAL_PART_LENGTH = 64
_MAX_MAIL_ADDRESS_LENGTH = 320

# RFC 3986, with letters of all scripts, and with references relative to an unknown base.
_URI_ESCAPE_PATTERN = "%[0-9A-Fa-f]{2}"
_NON_ASCII_PATTERN = r"[^\x00-\x7f\x80-\x9f\s]"
_URI_PATH_CHARACTER_PATTERN = rf"(?:[A-Za-z0-9_.!~*'();:@&=+$,/-]|{_URI_ESCAPE_PATTERN}|{_NON_ASCII_PATTERN})"
_URI_QUERY_CHARACTER_PATTERN = rf"(?:[A-Za-z0-9_.!~*'();:@&=+$,/?\[\]-]|{_URI_ESCAPE_PATTERN}|{_NON_ASCII_PATTERN})"
_URI_AUTHORITY_PATTERN = (
    rf"(?:(?:[A-Za-z0-9_.!~*'();:@&=+$,-]|{_URI_ESCAPE_PATTERN}|{_NON_ASCII_PATTERN})*"
    r"(?:\[[0-9A-Fa-f:.]+\](?::[0-9]*)?)?)"
)
_matches_uri = re.compile(
    rf"(?:[A-Za-z][A-Za-z0-9+.-]*:(?=[^#])|(?![^/?#]*:))"
    rf"(?://(?=[^?#]){_URI_AUTHORITY_PATTERN}(?=[/?#]|\Z)|(?!//)){_URI_PATH_CHARACTER_PATTERN}*"
    rf"(?:\?{_URI_QUERY_CHARACTER_PATTERN}*)?(?:#{_URI_QUERY_CHARACTER_PATTERN}*)?"
).fullmatch

# ISO 4217: current and former codes, because an event about the past keeps its currency.
CURRENCIES = frozenset(
    """
    AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BHD BIF BMD BND BOB BOV BRL BSD BTN BWP BYN BZD CAD CDF CHE
    CHF CHW CLF CLP CNY COP COU CRC CUC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF GTQ
    GYD HKD HNL HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT LAK LBP LKR LRD LSL LYD
    MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN NAD NGN NIO NOK NPR NZD OMR PAB PEN PGK PHP PKR PLN PYG
    QAR RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TND TOP TRY TTD TWD TZS
    UAH UGX USD USN UYI UYU UYW UZS VED VES VND VUV WST XAF XAG XAU XBA XBB XBC XBD XCD XCG XDR XOF XPD XPF XPT XSU XTS
    XUA XXX YER ZAR ZMW ZWG
    ADP AFA ALK AOK AON AOR ARA ARP ARY ATS AYM AZM BAD BEC BEF BEL BGJ BGK BGL BOP BRB BRC BRE BRN BRR BUK BYB BYR CHC
    CSD CSJ CSK CYP DDM DEM ECS ECV EEK ESA ESB ESP FIM FRF GEK GHC GHP GNE GNS GQE GRD GWE GWP HRD HRK IEP ILP ILR ISJ
    ITL LAJ LSM LTL LTT LUC LUF LUL LVL LVR MAF MGF MLF MRO MTL MTP MVQ MXP MZE MZM NIC NLG PEH PEI PES PLZ PTE RHD ROK
    ROL RUR SDD SDP SIT SKK SLL SRG STD SUR TJR TMM TPE TRL UAK UGS UGW USS UYN UYP VEB VEF VNC XEU XFO XFU XRE YDD YUD
    YUM YUN ZAL ZMK ZRN ZRZ ZWC ZWD ZWL ZWN ZWR
    """.split()  # noqa: SIM905  # a table reads better than three hundred words in quotes
)


def _uri_problem(text: str) -> str | None:
    return None if _matches_uri(text) else f"[{text}] is not a valid URI"


def _email_problem(text: str) -> str | None:
    return None if _is_mail_address(text) else f"[{text}] is not a valid email address"


def _is_mail_address(text: str) -> bool:
    if len(text) > _MAX_MAIL_ADDRESS_LENGTH:
        return False
    local, at, domain = text.rpartition("@")
    if not at or len(local) > _MAX_MAIL_LOCAL_PART_LENGTH or not _matches_mail_local_part(local):
        return False
    if domain.startswith("[") and domain.endswith("]"):
        return _is_ip_address(domain[1:-1].removeprefix("IPv6:"))
    return _matches_mail_domain(domain) is not None


def _ipv4_problem(text: str) -> str | None:
    return None if _is_ip_address(text, version=4) else f"[{text}] is not a valid ipv4 address"


def _ipv6_problem(text: str) -> str | None:
    return None if _is_ip_address(text, version=6) else f"[{text}] is not a valid ipv6 address"


def _is_ip_address(text: str, version: int | None = None) -> bool:
    """Whether a text is an IP address. IPv6 addresses may have a zone with any name; IPv4-mapped addresses count as
    IPv4.
    """
    plain, percent, _ = text.partition("%")
    if len(plain) > len("ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255"):
        return False
    try:
        address = ipaddress.ip_address(plain)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return not percent and version in (None, 4)
    return version in (None, 6 if address.ipv4_mapped is None else 4)


def _hostname_problem(text: str) -> str | None:
    fits = len(text) <= _MAX_HOSTNAME_LENGTH and _matches_hostname(text)
    return None if fits else f"[{text}] is not a valid hostname"


def _currency_problem(text: str) -> str | None:
    return None if text in CURRENCIES else f"[{text}] is not a valid alphabetic ISO 4217 currency code"


FORMAT_CHECKS: Mapping[str, Callable[[str], str | None]] = {
    "date-time": timestamp_problem,
    "uri": _uri_problem,
    "email": _email_problem,
    "ipv4": _ipv4_problem,
    "ipv6": _ipv6_problem,
    "hostname": _hostname_problem,
    "iso-4217": _currency_problem,
    "ISO-4217": _currency_problem,
}

_MAIL_WORDS_REGEX = r"[A-Za-z0-9_+-]{1,31}(?:\.[A-Za-z0-9_+-]{1,31})?"
_DOMAIN_REGEX = r"(?:[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?\.){1,4}[a-z]{2,30}"
_BYTE_REGEX = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"

USUAL_FORMS: Mapping[str, str] = {
    "date-time": _USUAL_TIMESTAMP_REGEX,
    "uri": rf"https?://{_DOMAIN_REGEX}(?::[0-9]{{1,5}})?(?:/[A-Za-z0-9_.~-]+)*/?(?:\?[A-Za-z0-9_.~&=+-]*)?",
    "email": f"{_MAIL_WORDS_REGEX}@{_DOMAIN_REGEX}",
    "ipv4": rf"{_BYTE_REGEX}(?:\.{_BYTE_REGEX}){{3}}",
    "hostname": _DOMAIN_REGEX,
}
"""Regular expressions of texts that have these formats for certain, and hold no line break."""

# The other checks need no steps, because they look at a few hundred characters at most.
FORMATS_THAT_SPEND_STEPS = frozenset({"uri"})


# The bytes that RE2 may use for one pattern, for its instructions and for its caches while it searches.
_RE2_MEMORY_BYTES = 256 * 1024

# A repeated class of whole alphabets, as in `[\p{L} ]{1,100}`, needs more. A pattern may use this many bytes if the
# schema has few other patterns.
_LARGE_RE2_MEMORY_BYTES = 4 * 1024 * 1024
_REPETITION_OPERATOR_PATTERN = re.compile(r"[{?*+|]")
_MAX_OPERATORS_OF_LARGE_PATTERN = 6
_PATTERN_TOO_LARGE_MESSAGE = "pattern too large"

# The limit for all patterns of one schema.
MAX_PATTERN_INSTRUCTIONS = 100_000
MAX_LARGE_PATTERNS = 4

_INSTRUCTION_VISITS_PER_STEP = 8
_STEPS_PER_PATTERN_SEARCH = 30
_MAX_UNMEASURED_SEARCH_STEPS = 10_000

# RE2's messages in its C++ form, and the Java form of each, which clients of the API know.
_JAVA_REASON_BY_RE2_REASON = {
    "bad repetition operator": "invalid nested repetition operator",
    "invalid named capture group": "invalid named capture",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid repetition size": "invalid repeat count",
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "no argument for repetition operator": "missing argument to repetition operator",
    "trailing \\": "trailing backslash at end of expression",
}
_RE2_TRAILING_BACKSLASH_REASON = "trailing \\"


class BadPattern(ValueError):
    """Raised for a pattern that RE2 does not accept; the message is the reason and, in quotes, the part at fault."""


class Pattern:
    """A compiled pattern. It may match anywhere in a text, as `pattern` in a schema does."""

    __slots__ = ("_search", "instruction_count", "text")

    def __init__(self, text: str, regexp: re2._Regexp) -> None:
        self.text = text
        self.instruction_count: int = regexp.programsize
        # The wrapper creates an object for each match. The pattern inside it only finds the place, in less than half
        # the time.
        self._search = regexp._regexp.Match  # noqa: SLF001

    def is_found_in(self, text: str, steps: RemainingSteps) -> bool:
        """Whether the pattern occurs in a text. A search that could take long begins only if the steps are enough for
        the worst case.
        """
        subject = text.encode("utf-8", "surrogatepass")
        return self._search_within(steps, subject, self._worst_steps(subject))

    def _worst_steps(self, subject: bytes) -> int:
        return _STEPS_PER_PATTERN_SEARCH + len(subject) * self.instruction_count // _INSTRUCTION_VISITS_PER_STEP

    def _search_within(self, steps: RemainingSteps, subject: bytes, worst: int) -> bool:
        steps[0] -= worst
        if steps[0] < 0:
            raise StepsExhausted
        # The worst case is rare. If it takes far more steps than ordinary searches, the search is timed, and the time
        # it took is counted.
        begun = None if worst <= _MAX_UNMEASURED_SEARCH_STEPS else time.thread_time()
        # Spans of groups with names follow the span of the whole, although nothing is captured.
        (start, _), *_ = self._search(re2._Anchor.UNANCHORED, subject, 0, len(subject))  # noqa: SLF001
        if begun is not None:
            taken = int((time.thread_time() - begun) * STEPS_PER_SECOND)
            steps[0] += worst - _STEPS_PER_PATTERN_SEARCH - taken
            if steps[0] < 0:
                raise StepsExhausted
        return bool(start >= 0)


class Lines(Protocol):
    """Many texts to check at once, one per line, which takes a tenth of the time of checking them one by one."""

    def accepts(self, texts: Sequence[Any], steps: RemainingSteps) -> bool:
        """Whether all of these are null, or texts that certainly match."""


class EidLines:
    """Checks texts against the pattern of `eid`, which every event has: it replaces all hexadecimal digits with 0, and
    then compares the shape of the texts.
    """

    def accepts(self, texts: Sequence[Any], steps: RemainingSteps) -> bool:
        if None in texts:
            texts = [each for each in texts if each is not None]
        try:
            subject = ("\n".join(texts) + "\n").encode()
        except TypeError:
            return False
        spend_steps(steps, len(subject) // _EID_BYTES_PER_STEP)
        # A text with a line break would make the result longer than that of the texts.
        return subject.translate(_HEX_TO_ZERO) == _EID_SHAPE * len(texts)


_EID_SHAPE = b"00000000-0000-0000-0000-000000000000\n"
_HEX_TO_ZERO = bytes.maketrans(b"123456789abcdefABCDEF", b"0" * 21)
_EID_BYTES_PER_STEP = 32


class LinesPattern(Pattern):
    """Checks many texts for a pattern at once, one per line."""

    def accepts(self, texts: Sequence[Any], steps: RemainingSteps) -> bool:
        for first in range(0, len(texts), _TEXTS_AT_ONCE):
            some = texts[first : first + _TEXTS_AT_ONCE]
            if None in some:
                some = [each for each in some if each is not None]
            try:
                subject = ("\n".join(some) + "\n").encode()
            except TypeError:
                return False
            worst = self._worst_steps(subject)
            if subject.count(b"\n") != len(some) or worst > steps[0]:
                return False
            if not self._search_within(steps, subject, worst):
                return False
        return True


_TEXTS_AT_ONCE = 100
_PLAIN_PATTERN_CHARACTERS = r"A-Za-z0-9 _:/@#,;=~%&!<>'\-"
_PATTERN_ESCAPES = r"\\[dw.+*?/()\[\]{}|^$\\-]"
# Patterns that match no line break, and have anchors only at their ends.
_matches_pattern_within_line = re.compile(
    rf"(\^?)((?:[{_PLAIN_PATTERN_CHARACTERS}.*+?|)]|\((?:\?:|(?!\?))|\{{[0-9]+(?:,[0-9]*)?\}}|{_PATTERN_ESCAPES}"
    rf"|\[(?:[{_PLAIN_PATTERN_CHARACTERS}.*+?|(){{}}$]|{_PATTERN_ESCAPES})+\])*)(\$?)"
).fullmatch
_PATTERN_CLASS_OR_ESCAPE = re.compile(r"\\.|\[(?:[^\]\\]|\\.)*\]")
_PATTERN_GROUP = re.compile(r"\([^()]*\)")


def make_lines(*, pattern: str | None = None, form: str | None = None) -> Lines | None:
    """An object that checks many texts at once for a pattern or a format, if there is one for it."""
    if pattern == EID_PATTERN and form is None:
        return EidLines()
    regex = USUAL_FORMS.get(form) if form is not None else None
    if pattern is not None:
        regex = _regex_of_line(pattern) if form is None else None
    if regex is None:
        return None
    text = rf"\A(?:(?:{regex})\n)*\z"
    try:
        return LinesPattern(text, re2.compile(text, _re2_options(_RE2_MEMORY_BYTES)))
    except re2.error:
        return None
    finally:
        re2.purge()


def _regex_of_line(pattern: str) -> str | None:
    """A regular expression for whole lines in which a pattern occurs; None if it might reach beyond a line."""
    found = _matches_pattern_within_line(pattern)
    if found is None:
        return None
    beginning, body, end = found.groups()
    outside = _PATTERN_CLASS_OR_ESCAPE.sub("", body)
    while outside != (outside := _PATTERN_GROUP.sub("", outside)):
        pass
    if "|" in outside and (beginning or end):  # an anchor would apply to only one of the alternatives
        return None
    return f"{'' if beginning else '.*'}(?:{body}){'' if end else '.*'}"


class SchemaPatterns:
    """The patterns of one schema, each compiled once."""

    def __init__(self) -> None:
        self._compiled: dict[str, Pattern] = {}

    def compile_once(self, text: str) -> Pattern:
        """Compile a pattern. Raises `BadPattern` if the text is not a pattern, or the schema has too many."""
        if text not in self._compiled:
            self._compiled[text] = compile_pattern(text)
            self._check_total_size()
        return self._compiled[text]

    def _check_total_size(self) -> None:
        large = [
            each for each in self._compiled.values() if each.instruction_count > _MAX_INSTRUCTIONS_OF_USUAL_PATTERN
        ]
        usual = sum(each.instruction_count for each in self._compiled.values()) - sum(
            each.instruction_count for each in large
        )
        if usual > MAX_PATTERN_INSTRUCTIONS or len(large) > MAX_LARGE_PATTERNS:
            raise BadPattern("patterns too large together")


# Two thirds of the memory may hold instructions of 16 bytes.
_MAX_INSTRUCTIONS_OF_USUAL_PATTERN = _RE2_MEMORY_BYTES * 2 // 3 // 16


def compile_pattern(text: str) -> Pattern:
    try:
        return Pattern(text, _compile_re2(text))
    except UnicodeEncodeError as error:
        raise BadPattern(f'invalid UTF-8 "{text[error.start]!a}"') from error
    except re2.error as error:
        raise BadPattern(_java_pattern_error_reason(error)) from error
    finally:
        # Otherwise RE2's module would keep the patterns that were used last, each of which may take megabytes.
        re2.purge()


def _compile_re2(text: str) -> re2._Regexp:
    try:
        return re2.compile(text, _re2_options(_RE2_MEMORY_BYTES))
    except re2.error as error:
        if (
            not _re2_message(error).startswith(_PATTERN_TOO_LARGE_MESSAGE)
            or len(_REPETITION_OPERATOR_PATTERN.findall(text)) > _MAX_OPERATORS_OF_LARGE_PATTERN
        ):
            raise
        return re2.compile(text, _re2_options(_LARGE_RE2_MEMORY_BYTES))


@cache
def _re2_options(max_memory_bytes: int) -> re2.Options:
    options = re2.Options()
    options.max_mem = max_memory_bytes
    options.never_capture = True
    options.log_errors = False
    return options


def _java_pattern_error_reason(error: re2.error) -> str:
    reason, colon, fragment = _re2_message(error).partition(": ")
    if reason == _RE2_TRAILING_BACKSLASH_REASON:
        colon = ":"
    reason = _JAVA_REASON_BY_RE2_REASON.get(reason, reason)
    # A lookbehind begins like a named group, and the Java form of RE2 reports only that beginning.
    fragment = "(?<" if fragment.startswith(("(?<=", "(?<!")) else fragment
    return f'{reason} "{fragment}"' if colon else reason


def _re2_message(error: re2.error) -> str:
    return str(error.args[0].decode("utf-8", "replace"))
