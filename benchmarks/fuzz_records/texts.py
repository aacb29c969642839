"""Random texts in several scripts, and bytes with which lines are damaged."""

from __future__ import annotations

import random

_WORDS = (
    "stocks", "fell", "on", "Monday", "as", "oil", "rose", "the", "team", "won", "its", "third", "match", "in",
    "a", "row", "new", "phone", "has", "better", "camera", "and", "war", "ends", "über", "café", "naïve", "Ærø",
    "Straße", "Ελλάδα", "Россия", "новости", "東京", "大阪", "株価", "서울", "नमस्ते", "مرحبا", "שלום", "😀", "🇩🇪", "𝄞",
    "€", "£", "“quoted”", "it's", "1,000", "50%", "a/b", "C:\\dir", "<b>bold</b>", "e=mc²", "x\u200by",
    "line\u2028sep", "nbsp\u00a0here", "ideo\u3000graphic", "\0", "\x7f", "tab\there",
)  # fmt: skip

INVALID_UTF8 = (
    b"\xff", b"\xfe", b"\x80", b"\xbf", b"\xc0\xaf", b"\xc1\xbf", b"\xc3", b"\xe2\x82", b"\xe0\x80\xaf",
    b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf0\x80\x80\xaf", b"\xf0\x9d\x84", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80",
    b"\xc3\x28", b"\xed\x9f\xbf\x80", b"\xf8\x88\x80\x80\x80", b"\xe2\x28\xa1", b"\xf0\x9d",
)  # fmt: skip

CHANGED = b"\"'\\{}[]:,;|\t \r\x00\x01\x0b\x1f\x7f\x80\xbf\xc3\xe2\xed\xa0\xf0\xff0-.eEun/+1"
"""Bytes that replace others. None of them ends a line."""


def drawn_text(chance: random.Random, words: int) -> str:
    """Draw a text of 0 to `words` words."""
    return " ".join(chance.choices(_WORDS, k=chance.randrange(words + 1))) if words else ""


def with_bytes_changed(chance: random.Random, line: bytes) -> bytes:
    """Replace, remove or insert one to three bytes."""
    for _ in range(chance.randrange(1, 4)):
        at, other = chance.randrange(len(line) + 1), bytes([chance.choice(CHANGED)])
        line = (
            line[:at] + chance.choice([other, b""]) + line[at + 1 :]
            if chance.random() < 0.7
            else line[:at] + other + line[at:]
        )
    return line
