"""Test the spelling of a scorer's URL."""

import pytest

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.scoring.remote import parse


@pytest.mark.parametrize(
    ("url", "wire_format", "base", "model"),
    [
        ("http://scorer:8081", "boundarymorph", "http://scorer:8081", None),
        ("http://scorer/team/a/?model=m", "boundarymorph", "http://scorer/team/a", "m"),
        ("tei+https://scorer", "tei", "https://scorer", None),
        ("TEI://Scorer:8080", "tei", "http://scorer:8080", None),
        ("tei://scorer/v1", "tei", "http://scorer/v1", None),
        ("vllm+https://[::1]:8000/gateway", "vllm", "https://[::1]:8000/gateway", None),
        ("cohere://?model=rerank-v3.5", "cohere", "https://api.cohere.com", "rerank-v3.5"),
        ("cohere://proxy/x?model=rerank-v3.5", "cohere", "https://proxy/x", "rerank-v3.5"),
        ("cohere+http://localhost:4000?model=a%2Fb", "cohere", "http://localhost:4000", "a/b"),
        ("jina://?model=jina-reranker-v2", "jina", "https://api.jina.ai", "jina-reranker-v2"),
        ("voyage://?model=rerank-2.5", "voyage", "https://api.voyageai.com", "rerank-2.5"),
        ("systemone://?model=jev-latest", "systemone", "https://api.typesafe.ai", "jev-latest"),
        ("systemone+http://ollama:11434?model=clef", "systemone", "http://ollama:11434", "clef"),
        ("decisions://?model=pplx-decider", "decisions", "https://api.perplexity.ai", "pplx-decider"),
        ("openai://?model=m", "openai", "https://api.openai.com/v1", "m"),
        ("openai+http://host:1/v1beta/openai/?model=m", "openai", "http://host:1/v1beta/openai", "m"),
    ],
)
def test_parse_reads_every_spelling_of_a_scorer_url(url: str, wire_format: str, base: str, model: str | None) -> None:
    endpoint = parse(url)
    assert (endpoint.format.name, endpoint.base, endpoint.model) == (wire_format, base, model)


@pytest.mark.parametrize(
    ("url", "mistake"),
    [
        ("", "'' is not a kind of scorer"),
        ("ftp://scorer", "'ftp' is not a kind of scorer"),
        ("http+https://scorer", "is not a kind of scorer"),
        ("http://", "needs a host"),
        ("tei:///rerank", "needs a host"),
        ("cohere://:443?model=m", "needs a host"),
        ("http://scorer:port", "malformed host or port"),
        ("http://sco rer", "white space"),
        ("http://user:hunter2@scorer", "credentials"),
        ("http://scorer#part", "fragment"),
        ("http://scorer?key=hunter2", r"takes \?model=NAME and \?activation=, not 'key'"),
        ("tei://scorer?activation=softmax", "'softmax', not one of sigmoid, cosine, none"),
        ("tei://scorer?activation=", "must name its activation once"),
        ("http://scorer?activation=sigmoid", "gives relevance"),
        ("systemone://?model=m&activation=cosine", "gives relevance"),
        ("tei://scorer?model=", "must name its model once"),
        ("tei://scorer?model=a&model=b", "must name its model once"),
        ("cohere://", "cohere needs the name of a model"),
        ("vllm://scorer/v1", "leave /v1 off"),
        ("cohere+http://scorer/v2/?model=m", "leave /v2 off"),
        ("http://scorer/score", "leave /score off"),
        ("openai://host/v1/chat/completions?model=m", "leave"),
        ("http://-ä-", "is not a valid address"),
    ],
)
def test_parse_refuses_a_malformed_scorer_url(url: str, mistake: str) -> None:
    with pytest.raises(InvalidConfiguration, match=mistake) as caught:
        parse(url)
    assert "hunter2" not in str(caught.value)
