"""The collection of package descriptions."""

from load_tests.debian_packages import QUESTIONS, documents

FOUND = [
    {"Package": "tune", "Section": "sound", "Description-en": "edits sound\nIn many\nformats."},
    {"Package": "tune-data", "Section": "sound", "Description-en": "edits sound (data)\nIn many\nformats."},
    {"Package": "other", "Section": "contrib/net", "Description-en": "talks: a lot\nTo all."},
    {"Package": "libtune", "Section": "contrib/libs", "Description-en": "a library\nOf sound."},
    {"Package": "mute", "Section": "sound", "Description": "has none in English"},
]


def test_one_text_of_those_that_share_a_description_without_libraries() -> None:
    assert documents(FOUND) == {"tune": "tune: edits sound. In many formats.", "other": "other: talks: a lot. To all."}


def test_questions_differ() -> None:
    assert len(set(QUESTIONS)) == len(QUESTIONS) == 60
