"""Test API keys: how they are made, configured, presented, and refused."""

import pytest

from boundarymorph.access import callers
from boundarymorph.access.callers import ANONYMOUS, Forbidden, KeyRing, Scope, Unauthenticated
from boundarymorph.errors import InvalidConfiguration


def test_new_key_has_the_scopes_it_was_made_with() -> None:
    secret, key = callers.make_key("rag", [Scope.SELECT, Scope.WRITE])
    ring = KeyRing([str(key)])
    assert ring.caller(f"Bearer {secret}").restrict(Scope.SELECT).name == "rag"
    assert ring.caller(f"bearer  {secret}").restrict(Scope.WRITE).name == "rag"
    with pytest.raises(Forbidden, match="rag does not have the scope 'admin'"):
        ring.caller(f"Bearer {secret}").restrict(Scope.ADMIN)
    assert secret not in str(key) and secret not in repr(ring.__dict__)


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic abc", "abc"])
def test_request_without_a_key_is_unauthenticated(header: str | None) -> None:
    ring = KeyRing([str(callers.make_key("rag", [Scope.SELECT])[1])])
    with pytest.raises(Unauthenticated, match="Authorization: Bearer"):
        ring.caller(header)


@pytest.mark.parametrize("secret", ["bm_wrong", "ß"])
def test_unknown_key_is_refused_without_being_repeated(secret: str) -> None:
    ring = KeyRing([str(callers.make_key("rag", [Scope.SELECT])[1])])
    with pytest.raises(Unauthenticated, match="not known") as error:
        ring.caller(f"Bearer {secret}")
    assert secret not in str(error.value)


def test_old_and_new_key_of_one_name_work_side_by_side() -> None:
    (old, old_key), (new, new_key) = callers.make_key("rag", [Scope.SELECT]), callers.make_key("rag", [Scope.SELECT])
    both = KeyRing([str(old_key), str(new_key)])
    assert both.caller(f"Bearer {old}").name == both.caller(f"Bearer {new}").name == "rag"
    with pytest.raises(Unauthenticated):
        KeyRing([str(new_key)]).caller(f"Bearer {old}")


def test_service_without_keys_treats_every_caller_as_anonymous() -> None:
    assert not KeyRing([])
    for header in (None, "Bearer x"):
        caller = KeyRing([]).caller(header).restrict(Scope.ADMIN)
        assert caller.name == ANONYMOUS
        assert caller.sees_all and caller.sees("anything")


@pytest.mark.parametrize(
    "text",
    ["", "rag", "rag:select", "rag:select:short", f"rag:root:{'0' * 64}", f"rag::{'0' * 64}", f"a b:select:{'0' * 64}"],
)
def test_malformed_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match="boundarymorph key"):
        KeyRing([text])


def test_secret_configured_as_a_key_is_not_repeated_in_the_error() -> None:
    secret, key = callers.make_key("rag", [Scope.SELECT])
    for text in (secret, f"rag:{secret}", f"rag:select:{secret}", f"{secret[:9]} {secret[9:]}:select"):
        with pytest.raises(InvalidConfiguration) as raised:
            KeyRing([str(key), text])
        assert secret[3:9] not in str(raised.value)


@pytest.mark.parametrize("indexes", ["", ":photos", ":photos,team-*", ":*", "::acme", ":photos,team-*:acme"])
def test_parsed_key_is_written_back_unchanged(indexes: str) -> None:
    text = f"rag:admin,select:{'0f' * 32}{indexes}"
    assert str(callers.parse_key(text)) == text


class TestTenants:
    @pytest.mark.parametrize("tenant", ["", "a b", "a:b", "_x", "x" * 65])
    def test_malformed_tenant_is_refused(self, tenant: str) -> None:
        with pytest.raises(InvalidConfiguration, match="'rag' has a tenant"):
            callers.parse_key(f"rag:select:{'0f' * 32}::{tenant}")

    def test_caller_has_the_tenant_of_its_key(self) -> None:
        (mine, one), (theirs, other) = (
            callers.make_key("a", [Scope.SELECT], tenant="acme"),
            callers.make_key("b", [Scope.SELECT]),
        )
        ring = KeyRing([str(one), str(other)])
        assert ring.caller(f"Bearer {mine}").restrict(Scope.SELECT).tenant == "acme"
        assert ring.caller(f"Bearer {theirs}").tenant == KeyRing([]).caller(None).tenant == ""
        assert ring.caller(f"Bearer {mine}").sees_all

    def test_caller_or_secret_with_several_tenants_is_refused(self) -> None:
        zeros, ones = "0" * 64, "1" * 64
        KeyRing([f"a:select:{zeros}::acme", f"a:write:{ones}:photos:acme", f"b:select:{'2' * 64}"])
        for texts in (
            (f"a:select:{zeros}::acme", f"a:select:{ones}"),
            (f"a:select:{zeros}::acme", f"b:select:{zeros}::other"),
        ):
            with pytest.raises(InvalidConfiguration, match="several tenants"):
                KeyRing(texts)


class TestIndexes:
    @pytest.mark.parametrize("indexes", ["", ",", "photos,", "Photos", "a b", "a*b", "**", "_x"])
    def test_key_with_a_malformed_index_name_is_refused(self, indexes: str) -> None:
        with pytest.raises(InvalidConfiguration, match="'rag' is for indexes"):
            callers.parse_key(f"rag:select:{'0f' * 32}:{indexes}")

    @pytest.mark.parametrize(
        ("indexes", "seen", "unseen"),
        [
            (["photos"], ["photos"], ["photo", "photos2", "xphotos", ""]),
            (["photos", "team-*"], ["photos", "team-", "team-a"], ["team", "photos-"]),
            ([], ["anything"], []),
        ],
    )
    def test_key_sees_only_indexes_that_match_its_patterns(
        self, indexes: list[str], seen: list[str], unseen: list[str]
    ) -> None:
        secret, key = callers.make_key("rag", [Scope.SELECT], indexes)
        caller = KeyRing([str(key)]).caller(f"Bearer {secret}").restrict(Scope.SELECT)
        assert all(map(caller.sees, seen))
        assert not any(map(caller.sees, unseen))
        assert caller.sees_all == (not indexes)

    def test_indexes_of_a_secret_with_two_keys_depend_on_the_scope(self) -> None:
        """The secret has one key that reads all indexes, and one that writes a single index."""
        secret, reading = callers.make_key("rag", [Scope.SELECT])
        writing = f"rag:write:{reading.sha256}:own"
        caller = KeyRing([str(reading), writing]).caller(f"Bearer {secret}")
        assert caller.restrict(Scope.SELECT).sees("other")
        assert caller.restrict(Scope.WRITE).sees("own")
        assert not caller.restrict(Scope.WRITE).sees("other")
