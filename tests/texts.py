"""Texts of any length that are hard to process."""

from collections.abc import Callable, Mapping

PROSE = "The timetable of the tram: one leaves each quarter of an hour, from five in the morning until midnight. "


def repeated(unit: str) -> Callable[[int], str]:
    """Return a function that repeats a unit up to n characters."""
    return lambda count: (unit * (count // len(unit) + 1))[:count]


def headings(count: int) -> str:
    """Return a Markdown heading with many blanks before its last word."""
    return ("# a" + " " * count)[: count - 1] + "b"


def brackets(count: int) -> str:
    return "[" * (count // 2) + "]" * (count - count // 2)


KINDS: Mapping[str, Callable[[int], str]] = {
    "plain prose": repeated(PROSE),
    "combining marks": lambda count: ("sea a" + "\u0300\u0316" * (count // 2))[:count],
    "combining marks of one class": lambda count: ("a" + "\u0301" * count)[:count],
    "thirty marks to a letter": repeated("a" + "\u0316\u0300" * 15),
    "marks of another plane": lambda count: ("a" + "\U0001d165\U0001d16d\U0001e8d0\u0300" * (count // 4 + 1))[:count],
    "marks that are two": lambda count: ("\u0f40" + "\u0f73\u0344" * (count // 2 + 1))[:count],
    "one long word": repeated("a"),
    "words with hyphens": repeated("a-"),
    "hexadecimal digits": repeated("0123456789abcdef"),
    "base64 in one line": repeated("QUJDRA+/"),
    "punctuation": repeated("!"),
    "quotation marks": repeated("\"'"),
    "emoji with joiners": repeated("\U0001f468\u200d"),
    "no-break spaces": repeated("a\u00a0"),
    "Thai": repeated("\u0e01\u0e33"),
    "Chinese": repeated("海水"),
    "Korean letters": repeated("\u1112\u1161\u11ab"),
    "Hebrew from right to left": repeated("\u202e\u05d0\u05b0"),
    "a ligature of eighteen letters": repeated("\ufdfa"),
    "soft hyphens": repeated("a\u00ad"),
    "tabs": repeated("a\t"),
    "blanks": repeated(" "),
    "line feeds": repeated("\n"),
    "carriage returns and line feeds": repeated("\r\n"),
    "backslashes": repeated("\\n"),
    "escapes of half surrogates": repeated("\\ud83d"),
    "brackets": brackets,
    "number signs": repeated("#"),
    "a heading with blanks": headings,
    "headings": repeated("# a\n"),
    "front matter": repeated("---\n---\n"),
    "a title with blanks": lambda count: ("---\ntitle: a" + " " * count)[: count - 6] + "b\n---\n",
    "fences": repeated("```\n"),
    "links": repeated("[a]("),
    "asterisks": repeated("*a "),
    "table rules": repeated("|---"),
    "HTML": repeated("<b><!--"),
    "sigmas": repeated("Σ."),
    "NUL": repeated("\0"),
}
