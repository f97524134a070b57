"""Damaged files for the tests of all parsers: some fixed, some drawn from a seed."""

import pathlib
import random
import signal
import warnings

from transformer_jax.base.errors import UserError
from transformer_jax.data.reading.records import ParsedFile, Reading

DAMAGE = {
    "empty": b"",
    "cut": b'{"scores": {"te',
    "a list": b"[1, 2]",
    "a number": b"3",
    "null": b"null",
    "latin-1": '{"scores": "Löwe"}'.encode("latin-1"),
    "utf-16": '{"a": 1}'.encode("utf-16"),
    "deep": b"[" * 100_000,
    "zeros": b"\0" * 100,
    "other kinds": b'{"step": "9", "scores": [], "train": 3, "earlier": 1,'
    b' "earlier_model": {"num_heads": 2}, "seconds": NaN}',
}
DAMAGE["a key twice"] = b'{"step": 9, "step": 8}'
QUICK, SLOW = 60, 7_200  # damaged files of each parser
NASTY = [
    b"\0", b"\xff", b"\xed\xa0\x80", b"\n", b"\r\n", b"\t", b" ", b"(" * 3000,
    b"[" * 3000, b'{"a":' * 3000, b"-1", b"9" * 400, b"1e999", b"nan", b"null", b"{}",
    b'"\\ud800"', b"\xe2\x96\x81", b"\xff\xff\xff\xff", b"\x1f\x8b", b"[]", b'"',
    b"\xef\xbb\xbf", "\u2028".encode(), b"true", b"1" + b"0" * 30, b"\x00\x00\x00\x00",
]  # fmt: skip


def change(content: bytes, draw: random.Random) -> bytes:
    """Damage bytes in one to four places."""
    for _ in range(draw.randint(1, 4)):
        at, end = sorted(draw.randint(0, len(content)) for _ in range(2))
        end = min(end, at + 40)
        kind = draw.randrange(6)
        if kind == 0 and content:
            at = draw.randrange(len(content))
            flipped = content[at] ^ (1 << draw.randrange(8))
            content = content[:at] + bytes([flipped]) + content[at + 1 :]
        elif kind == 1:
            content = content[:at]
        elif kind == 2:
            content = content[:at] + content[end:]
        elif kind == 3:
            content = content[:end] + content[at:]
        elif kind == 4:
            content = content[:at] + draw.choice(NASTY) + content[at:]
        else:
            content = content[:at] + draw.choice(NASTY) + content[end:]
    return content


def parsed(read, blocks=True):
    def parse(path):
        return list(ParsedFile(str(path), "form", Reading(read, blocks=blocks)))

    return parse


def stop(*_):
    raise AssertionError("a parser hangs")


def attack(parse, path: pathlib.Path, whole: list[bytes], times: int, seed: int):
    """Give a parser so many damaged files; return how many it read and refused."""
    read = refused = 0
    before = signal.signal(signal.SIGALRM, stop)
    for number in range(times):
        draw = random.Random(f"{path.name}/{seed}/{number}")
        content = change(draw.choice(whole), draw)
        path.write_bytes(content)
        signal.alarm(60)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                parse(path)
            read += 1
        except UserError as error:
            refused += 1
            assert all("\n" not in problem for problem in error.problems), content
        except BaseException as error:
            error.add_note(f"number {number} of {path.name}: {content[:300]!r}")
            raise
        finally:
            signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    return read, refused
