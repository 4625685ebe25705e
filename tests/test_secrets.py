"""Test that keys and passwords are stripped, and absent from messages and tracebacks."""

import traceback
from collections.abc import Callable
from typing import Any

import pytest

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.remote.peer import Peer
from boundarymorph.settings import Settings, secret
from tests.cli.conftest import run as run

pytestmark = pytest.mark.strangers

KEY = "hunter2"
KEYS: dict[str, Callable[[str], dict[str, Any]]] = {
    "scorer": lambda key: {"scorer": {"url": "http://a:1", "api_key": key}},
    "encoder": lambda key: {"encoder": {"url": "tei://a:1", "api_key": key}},
    "retriever": lambda key: {"retriever": {"url": "http://a:1", "api_key": key}},
    "store": lambda key: {"stores": {"s": {"url": "qdrant://a:1", "api_key": key}}},
}
URLS: dict[str, Callable[[str], dict[str, Any]]] = {
    "cache": lambda url: {"cache": {"url": f"redis://{url}"}},
    "rate limits": lambda url: {"rate_limits": {"url": f"rediss://{url}"}},
    "pgvector": lambda url: {"stores": {"s": {"url": f"pgvector://{url}"}}},
    "elasticsearch": lambda url: {"stores": {"s": {"url": f"elasticsearch://{url}"}}},
}


def key_of(settings: Settings, name: str) -> str | None:
    section: Any = settings.stores["s"] if name == "store" else getattr(settings, name)
    return secret(section.api_key)


def message_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("given", [f"{KEY}\n", f"{KEY}\r\n", f"  {KEY}\t", f"\u00a0{KEY}"], ids=repr)
@pytest.mark.parametrize("name", KEYS)
def test_settings_strip_white_space_around_a_key(name: str, given: str) -> None:
    assert key_of(Settings.load(**KEYS[name](given)), name) == KEY


@pytest.mark.parametrize(
    "given", [f"“{KEY}”", f"{KEY}\nX: 1", f"{KEY} {KEY}", f"{KEY}é", f"{KEY}\0", f"Bearer {KEY}"], ids=repr
)
@pytest.mark.parametrize("name", KEYS)
def test_key_that_no_header_can_carry_is_refused_without_echo(name: str, given: str) -> None:
    with pytest.raises(InvalidConfiguration, match="the key has characters that a header cannot carry") as raised:
        Settings.load(**KEYS[name](given))
    assert KEY not in message_of(raised.value)
    with pytest.raises(InvalidConfiguration, match="the key has characters") as raised:
        Peer("http://a:1", "scorer", api_key=given)
    assert KEY not in message_of(raised.value)


@pytest.mark.parametrize("name", URLS)
def test_settings_strip_white_space_around_a_url(name: str) -> None:
    settings = Settings.load(**URLS[name](f"user:{KEY}@host:1/x\n"))
    section: Any = settings.stores.get("s") or (settings.cache if name == "cache" else settings.rate_limits)
    assert section.url.get_secret_value().endswith(f"://user:{KEY}@host:1/x")


@pytest.mark.parametrize("given", [f"user:{KEY}@x@host:1", f"user:{KEY}#x@host:1", f"u:{KEY}\n@host:1"], ids=repr)
@pytest.mark.parametrize("name", URLS)
def test_url_with_an_unescaped_password_is_refused_without_echo(name: str, given: str) -> None:
    with pytest.raises(InvalidConfiguration, match=r"unescaped special character|control characters") as raised:
        Settings.load(**URLS[name](given))
    assert KEY not in message_of(raised.value)
