"""Compressed bodies of requests and answers."""

import gzip
import os
import zlib

import pytest
import zstandard

from nakadi.http import compression
from nakadi.http.asgi import StreamCompressor
from nakadi.http.compression import check_content_encoding, compress_body, decompress_body, wants_gzip
from nakadi.http.message import Request, Response
from nakadi.http.problem import NotAcceptable
from nakadi.model.outcomes import Malformed, TooLarge

EVENTS = b'[{"metadata":{"eid":"a"},"n":1}]'


def zstd(content):
    return zstandard.ZstdCompressor().compress(content)


def a_request(encoding, body, method="POST"):
    return Request(method=method, path="/x", headers={"content-encoding": encoding}, body=body)


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
@pytest.mark.parametrize("spelling", ["{}", "{}, identity", "x-{}"])
def test_packed_bodies_are_unpacked(pack, spelling):
    """A body whose `Content-Encoding` contains gzip or zstd is decompressed. (R33, P41)"""
    encoding = spelling.format("gzip" if pack is gzip.compress else "zstd")

    assert decompress_body(a_request(encoding, pack(EVENTS))).body == EVENTS
    assert decompress_body(a_request(encoding.upper(), pack(EVENTS))).body == EVENTS


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_bodies_in_several_members_are_unpacked_whole(pack):
    """Consecutive members are one body, as parallel compressors write it."""
    encoding = "gzip" if pack is gzip.compress else "zstd"

    assert decompress_body(a_request(encoding, pack(b"ab") + pack(b"") + pack(b"cd"))).body == b"abcd"


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
@pytest.mark.parametrize("size", [0, 1, 255, 256, 16_384, 300_000, 1_000_003])
def test_nothing_is_lost_at_the_seams(pack, size):
    """A body of any size is unchanged after compression and decompression, with slices of any size."""
    encoding = "gzip" if pack is gzip.compress else "zstd"
    content = os.urandom(size)

    assert decompress_body(a_request(encoding, pack(content))).body == content


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "HEAD"])
@pytest.mark.parametrize("encoding", ["gzip", "identity", "br", ""])
def test_only_post_may_be_packed(method, encoding):
    """With any other method than POST, a `Content-Encoding` is refused as not acceptable. (R34, P42)"""
    with pytest.raises(NotAcceptable, match=f"{method} method doesn't support gzip content encoding"):
        check_content_encoding(a_request(encoding, b"", method))


@pytest.mark.parametrize("body", [b"", b"x", EVENTS, zstd(EVENTS)], ids=["nothing", "a byte", "text", "zstd"])
def test_what_is_not_gzip_is_refused(body):
    """A body that is announced as gzip, but is not, is malformed. (R35, P43)"""
    with pytest.raises(Malformed, match=r"^Not in GZIP format$"):
        decompress_body(a_request("gzip", body))


BROKEN = {
    "half a gzip": ("gzip", gzip.compress(EVENTS)[:-9]),
    "a gzip without its sum": ("gzip", gzip.compress(EVENTS)[:-4]),
    "a gzip with a wrong sum": ("gzip", gzip.compress(EVENTS)[:-8] + bytes(8)),
    "only the head of a gzip": ("gzip", b"\x1f\x8b"),
    "rubbish behind a gzip": ("gzip", gzip.compress(EVENTS) + b"rubbish"),
    "half a zstd": ("zstd", zstd(EVENTS)[:-3]),
    "no zstd": ("zstd", EVENTS),
    "an empty zstd": ("zstd", b""),
    "rubbish behind a zstd": ("zstd", zstd(EVENTS) + b"rubbish"),
}


@pytest.mark.parametrize(("encoding", "body"), BROKEN.values(), ids=BROKEN)
def test_damaged_bodies_are_refused(encoding, body):
    """A body whose damage shows during decompression is malformed, also if its end is missing. (P44)"""
    with pytest.raises(Malformed, match="I/O error while reading input message"):
        decompress_body(a_request(encoding, body))


@pytest.mark.parametrize("encoding", ["identity", "br", "deflate", ""])
def test_unknown_encodings_are_passed_over(encoding):
    """A body with an unknown encoding is passed on unchanged. (R36, P45)"""
    assert decompress_body(a_request(encoding, EVENTS)).body == EVENTS


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_a_bomb_does_not_go_off(pack, monkeypatch):
    """A body that decompresses to more than a legitimate batch is refused as too large, and is not decompressed to its
    end."""
    monkeypatch.setattr(compression, "MAX_DECOMPRESSED_BYTES", 1_000_000)
    encoding = "zstd" if pack is zstd else "gzip"

    with pytest.raises(TooLarge, match="more than 1000000 bytes"):
        decompress_body(a_request(encoding, pack(bytes(100_000_000))))


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_a_body_of_a_thousand_nothings_is_refused(pack):
    """Empty members cost time but produce no bytes, so their number is limited too."""
    encoding = "zstd" if pack is zstd else "gzip"

    with pytest.raises(Malformed, match="compressed members"):
        decompress_body(a_request(encoding, pack(b"") * (compression.MAX_COMPRESSED_MEMBERS + 1)))


@pytest.mark.parametrize(
    ("accept_encoding", "wanted"),
    [
        ("gzip", True),
        ("gzip, deflate", True),
        ("deflate, GZIP;q=0.5", True),
        ("br;q=1.0, gzip;q=0.8, *;q=0.1", True),
        ("x-gzip", True),
        ("*", True),
        ("identity;q=0.5, gzip;q=.7", True),
        ("", False),
        ("identity", False),
        ("deflate", False),
        ("gzip;q=0,deflate", False),
        ("gzip; q=0.0", False),
        ("*;q=0", False),
        ("gzip;q=0, *", False),
        ("identity, gzip;q=0.5", False),
    ],
)
def test_the_client_says_whether_it_wants_gzip(accept_encoding, wanted):
    """`Accept-Encoding` is read with its weights; a weight of zero excludes gzip. (R37)"""
    assert wants_gzip(accept_encoding) is wanted


LONG = Response(200, {"content-type": "application/json"}, b'{"items":[' + b'"a name that repeats",' * 200 + b'""]}')


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_long_answers_are_packed(method):
    """Answers to GET and POST are compressed with gzip for clients that want it. (R37, P11a)"""
    answer = compress_body(Request(method=method, path="/x", headers={"accept-encoding": "gzip"}), LONG)

    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["vary"] == "Accept-Encoding"
    assert len(answer.body) < len(LONG.body)
    assert gzip.decompress(answer.body) == LONG.body


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "HEAD"])
def test_answers_to_other_methods_are_not_packed(method):
    """Answers to other methods are never compressed. (R37)"""
    assert compress_body(Request(method=method, path="/x", headers={"accept-encoding": "gzip"}), LONG) == LONG


def test_answers_no_one_asked_to_pack_are_not():
    """Without `Accept-Encoding`, an answer is not compressed, because some clients could not read it; `Vary` tells
    caches that the answer depends on the request. (R37)
    """
    answer = compress_body(Request(method="GET", path="/x"), LONG)

    assert answer.body == LONG.body
    assert answer.headers == {"content-type": "application/json", "vary": "Accept-Encoding"}


def test_short_answers_are_not_packed():
    """An answer that fits into a packet is not worth compressing."""
    short = Response(200, {}, b"x" * 1000)

    assert compress_body(Request(method="GET", path="/x", headers={"accept-encoding": "gzip"}), short) == short


def test_a_packed_stream_can_be_read_batch_by_batch():
    """A client can decompress each batch of a compressed stream as soon as the batch arrives, and the stream ends
    properly. (L40)"""
    compressor, reader = StreamCompressor(), zlib.decompressobj(wbits=31)
    batches = [b'{"cursor":{"partition":"0"},"events":[1]}\n', b'{"cursor":{"partition":"0"}}\n']

    assert [reader.decompress(compressor.compress(each)) for each in batches] == batches
    assert reader.decompress(compressor.flush_end()) == b""
    assert reader.eof
