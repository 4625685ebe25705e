"""Test the names by which cached results of different models are told apart."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest

from boundarymorph.remote.urls import Endpoint, identify
from boundarymorph.remote.wire import MalformedAnswer
from boundarymorph.retrieval.encoders.remote import parse as parse_encoder
from boundarymorph.scoring.remote import RemoteScorer
from boundarymorph.scoring.remote import parse as parse_scorer

HUB = "maker/reranker"
SHA = "0123456789abcdef0123456789abcdef01234567"


def name(endpoint: Endpoint, answer: Any = None, address: str | None = None) -> str:
    """Return the name under which results of a server with this description are cached."""
    description = endpoint.format.describe(orjson.dumps(answer), endpoint.model)
    return identify(description, endpoint, address or endpoint.base).name


def tei(**told: Any) -> dict[str, Any]:
    return {"model_id": HUB, "model_sha": SHA, "model_dtype": "float16", "max_input_length": 512} | told


def card(model: str = HUB, **told: Any) -> dict[str, Any]:
    return {"data": [{"id": model, **told}]}


SAME: Sequence[tuple[str, Any, Any]] = [
    ("http", {"model": f"{HUB}@0123/fp32/512"}, {"model": f"{HUB}@0123/fp32/512"}),
    ("tei", tei(), tei()),
    ("tei", tei(model_sha=None), tei(model_sha=None)),
    ("vllm", card(max_model_len=8192), card(max_model_len=8192)),
    ("vllm", card("alias", root=HUB), card("alias", root=HUB)),
    ("infinity", card(), card()),
]
DIFFERENT: Sequence[tuple[str, Any, Any]] = [
    ("http", {"model": f"{HUB}@0123/fp32/512"}, {"model": f"{HUB}@4567/fp32/512"}),
    ("http", {"model": f"{HUB}@0123/fp32/512"}, {"model": f"{HUB}@0123/bf16/512"}),
    ("http", {"model": f"{HUB}@0123/fp32/512"}, {"model": f"{HUB}@0123/fp32/512/abcd"}),
    ("tei", tei(), tei(model_sha=SHA[::-1])),
    ("tei", tei(), tei(model_dtype="float32")),
    ("tei", tei(), tei(max_input_length=256)),
    ("tei", tei(model_id="/data", model_sha=None), tei(model_id="/data", model_sha=None)),
    ("vllm", card("alias", root=HUB), card("alias", root="maker/other")),
    ("vllm", card("alias", root="/models/one"), card("alias", root="/models/one")),
    ("vllm", card("alias"), card("alias")),
    ("vllm", card(max_model_len=8192), card(max_model_len=512)),
    ("infinity", card(revision="a"), card(revision="b")),
    ("infinity", card("alias"), card("alias")),
]


@pytest.mark.parametrize(("scheme", "one", "two"), SAME)
def test_identity_of_a_well_described_model_ignores_its_address(scheme: str, one: Any, two: Any) -> None:
    assert name(parse_scorer(f"{scheme}://a:80"), one) == name(parse_scorer(f"{scheme}://b:80"), two)


@pytest.mark.parametrize(("scheme", "one", "two"), DIFFERENT)
def test_identity_differs_for_vague_or_different_descriptions(scheme: str, one: Any, two: Any) -> None:
    assert name(parse_scorer(f"{scheme}://a:80"), one) != name(parse_scorer(f"{scheme}://b:80"), two)


@pytest.mark.parametrize(("scheme", "one", "two"), DIFFERENT)
def test_identity_of_servers_of_one_scorer_uses_the_first_address(scheme: str, one: Any, two: Any) -> None:
    first, second = (parse_scorer(f"{scheme}://{host}:80") for host in "ab")
    assert (name(first, one, first.base) == name(second, two, first.base)) == (one == two)


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        ("cohere://?model=m", "cohere://?model=m", True),
        ("cohere://?model=m", "cohere://?model=n", False),
        ("cohere://?model=m", "cohere+http://a?model=m", False),
        ("cohere+http://a?model=m", "cohere+http://b?model=m", False),
        ("cohere+http://a?model=m", "cohere+http://a/proxy?model=m", False),
        ("cohere+http://a?model=maker/m", "cohere+http://b?model=maker/m", False),
        ("cohere+http://a?model=m", "jina+http://a?model=m", False),
        ("jina+http://a?model=m", "jina+http://b?model=m", False),
    ],
)
def test_identity_of_hosted_services_depends_on_model_and_address(one: str, two: str, same: bool) -> None:
    names = [RemoteScorer([parse_scorer(url)]).identity for url in (one, two)]
    assert None not in names
    assert (names[0] == names[1]) == same


def test_identity_uses_the_configured_revision_instead_of_the_address() -> None:
    def of(url: str, revision: str | None) -> str:
        return RemoteScorer([replace(parse_scorer(url), revision=revision)]).name

    assert of("cohere+http://a?model=m", "v2") == of("cohere+http://b?model=m", "v2") == "cohere:m@v2"
    assert of("cohere+http://a?model=m", "v2") != of("cohere+http://a?model=m", "v3")
    assert of("cohere://?model=m", "v2") != of("cohere://?model=m", None) == "cohere:m"


@pytest.mark.parametrize(("wanted", "fits"), [(SHA, True), (SHA[:12], True), (SHA[::-1], False), ("main", False)])
def test_identity_refuses_a_revision_other_than_the_wanted_one(wanted: str, fits: bool) -> None:
    endpoint = replace(parse_scorer("tei://a:80"), revision=wanted)
    if fits:
        assert name(endpoint, tei()) == f"{HUB}@{SHA[:12]}/float16/512"
    else:
        with pytest.raises(MalformedAnswer, match=f"it serves revision {SHA}, not {wanted}"):
            name(endpoint, tei())


@pytest.mark.parametrize(
    "other", [tei(model_sha=SHA[::-1]), tei(model_type={"embedding": {"pooling": "mean"}}), tei(model_dtype="float32")]
)
def test_identity_of_encoders_depends_on_revision_pooling_and_dtype(other: Any) -> None:
    endpoint = parse_encoder("tei://a:80")
    assert name(endpoint, tei(model_type={"embedding": {"pooling": "cls"}})) != name(endpoint, other)
