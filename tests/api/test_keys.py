"""API keys: made, configured, presented, refused."""

import pytest

from boundarymorph.api import keys
from boundarymorph.api.keys import ANONYMOUS, Forbidden, KeyRing, Scope, Unauthenticated
from boundarymorph.errors import InvalidConfiguration


def test_a_new_key_opens_what_it_is_for() -> None:
    secret, key = keys.make("rag", [Scope.SELECT, Scope.WRITE])
    ring = KeyRing([str(key)])
    assert ring.caller(f"Bearer {secret}", Scope.SELECT) == "rag"
    assert ring.caller(f"bearer  {secret}", Scope.WRITE) == "rag"
    with pytest.raises(Forbidden, match="rag is not for 'admin'"):
        ring.caller(f"Bearer {secret}", Scope.ADMIN)
    assert secret not in str(key) and secret not in repr(ring.__dict__)


def test_keys_are_long_and_never_the_same() -> None:
    made = {keys.make("rag", [Scope.SELECT])[0] for _ in range(100)}
    assert len(made) == 100
    assert min(map(len, made)) > 40


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic abc", "abc"])
def test_without_a_key(header: str | None) -> None:
    ring = KeyRing([str(keys.make("rag", [Scope.SELECT])[1])])
    with pytest.raises(Unauthenticated, match="Authorization: Bearer"):
        ring.caller(header, Scope.SELECT)


@pytest.mark.parametrize("secret", ["bm_wrong", "ß", "\udcff".encode("utf-8", "replace").decode()])
def test_with_a_wrong_one(secret: str) -> None:
    ring = KeyRing([str(keys.make("rag", [Scope.SELECT])[1])])
    with pytest.raises(Unauthenticated, match="not known") as error:
        ring.caller(f"Bearer {secret}", Scope.SELECT)
    assert secret not in str(error.value)


def test_one_key_follows_another() -> None:
    (old, old_key), (new, new_key) = keys.make("rag", [Scope.SELECT]), keys.make("rag", [Scope.SELECT])
    both = KeyRing([str(old_key), str(new_key)])
    assert both.caller(f"Bearer {old}", Scope.SELECT) == both.caller(f"Bearer {new}", Scope.SELECT) == "rag"
    with pytest.raises(Unauthenticated):
        KeyRing([str(new_key)]).caller(f"Bearer {old}", Scope.SELECT)


def test_without_keys_everybody_is_the_same() -> None:
    assert not KeyRing([])
    assert KeyRing([]).caller(None, Scope.ADMIN) == KeyRing([]).caller("Bearer x", Scope.SELECT) == ANONYMOUS


@pytest.mark.parametrize(
    "text",
    ["", "rag", "rag:select", "rag:select:short", f"rag:root:{'0' * 64}", f"rag::{'0' * 64}", f"a b:select:{'0' * 64}"],
)
def test_what_is_no_key(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match="boundarymorph key"):
        KeyRing([text])


def test_a_configured_key_reads_as_it_is_written() -> None:
    text = f"rag:admin,select:{'0f' * 32}"
    assert str(keys.parse(text)) == text
