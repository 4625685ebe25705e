"""Test remote encoders over real sockets: contract, failures, limits, URLs, bad answers."""

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from boundarymorph.errors import EncoderFailed, EncoderUnavailable, InvalidConfiguration
from boundarymorph.remote.urls import Endpoint
from boundarymorph.retrieval.encoders.remote import DOCUMENTS, RemoteEncoder, parse
from tests.contract.encoder import TEXTS, EncoderContract
from tests.fakes.upstream import Reply, answer, reset
from tests.fakes.wires import MODEL, Server, Wire, running
from tests.retrieval.fakes import vector_of


class Tei(Wire):
    scheme, score_path, description_path = "tei", "/embed", "/info"

    def __init__(self, model: str = MODEL, most: int = 32, dimension: int = 32) -> None:
        self.most, self.dimension = most, dimension
        self.description = {
            "model_id": model,
            "model_sha": "0123456789abcdef0123456789abcdef01234567",
            "model_dtype": "float16",
            "model_type": {"embedding": {"pooling": "cls"}},
            "max_concurrent_requests": 512,
            "max_input_length": 512,
            "max_client_batch_size": most,
        }

    def texts(self, body: dict[str, Any]) -> list[str]:
        return list(body["inputs"])

    def reply(self, body: dict[str, Any]) -> Reply:
        assert body.keys() == {"inputs", "truncate", "normalize"}
        assert body["truncate"] is True and body["normalize"] is True
        texts = self.texts(body)
        if len(texts) > self.most:
            message = f"batch size {len(texts)} > maximum allowed batch size {self.most}"
            return Reply({"error": message, "error_type": "Validation"}, 422)
        return Reply([vector_of(text, self.dimension).tolist() for text in texts])


class OpenAI(Wire):
    """A server of OpenAI's embeddings API.

    Some servers send numbers for any requested encoding; `floats` makes it one of them.
    """

    scheme, score_path, most = "openai+http", "/v1/embeddings", 2048

    def __init__(self, *, floats: bool = False) -> None:
        self.floats = floats

    def texts(self, body: dict[str, Any]) -> list[str]:
        return list(body["input"])

    def encoded(self, vector: NDArray[np.float32]) -> object:
        return vector.tolist() if self.floats else base64.b64encode(vector.astype("<f4").tobytes()).decode()

    def reply(self, body: dict[str, Any]) -> Reply:
        assert body.keys() == {"model", "input", "encoding_format"}
        return self.embedded(body)

    def embedded(self, body: dict[str, Any]) -> Reply:
        assert body["encoding_format"] == "base64"
        if body["model"] != MODEL:
            return Reply({"error": {"message": f"The model {body['model']} does not exist."}}, 404)
        data = [
            {"object": "embedding", "index": index, "embedding": self.encoded(vector_of(text))}
            for index, text in enumerate(self.texts(body))
        ]
        return Reply({"object": "list", "model": MODEL, "data": data[::-1], "usage": {"total_tokens": 1}})


class Vllm(OpenAI):
    scheme, description_path = "vllm", "/v1/models"

    def __init__(self, *models: str) -> None:
        super().__init__()
        cards = [{"id": name, "object": "model", "max_model_len": 512, "parent": None} for name in models or (MODEL,)]
        self.description = {"object": "list", "data": cards}

    def reply(self, body: dict[str, Any]) -> Reply:
        assert body["truncate_prompt_tokens"] == -1
        return self.embedded(body)


def endpoint(server: Server, suffix: str = "") -> Endpoint:
    query = f"?model={MODEL}" if server.wire.description_path is None else ""
    return parse(f"{server.wire.scheme}://127.0.0.1:{server.port}{suffix}{query}")


@asynccontextmanager
async def encoding(*servers: Server, **options: Any) -> AsyncIterator[RemoteEncoder]:
    encoder = RemoteEncoder([endpoint(server) for server in servers], **options)
    try:
        yield encoder
    finally:
        await encoder.close()


async def check(encoder: RemoteEncoder, texts: list[str] = TEXTS) -> None:
    vectors = (await encoder.encode_documents(texts)).vectors
    np.testing.assert_allclose(vectors, [vector_of(text) for text in texts], rtol=0, atol=1e-7)


@pytest.mark.parametrize("wire", [Tei, OpenAI, Vllm, lambda: OpenAI(floats=True)])
class TestContract(EncoderContract):
    @pytest.fixture
    async def encoder(self, wire: Callable[[], Wire]) -> AsyncIterator[RemoteEncoder]:
        async with running(wire()) as [server], encoding(server) as encoder:
            await encoder.connect()
            yield encoder

    async def test_remote_encoder_returns_the_vectors_of_the_server(self, encoder: RemoteEncoder) -> None:
        await check(encoder)
        np.testing.assert_allclose(await encoder.encode_query("trams"), vector_of("trams"), rtol=0, atol=1e-7)

    async def test_closed_remote_encoder_refuses_calls(self, encoder: RemoteEncoder) -> None:
        await encoder.close()
        with pytest.raises(RuntimeError, match="encoder is closed"):
            await encoder.encode_query("late")
        with pytest.raises(RuntimeError, match="encoder is closed"):
            await encoder.encode_documents([])


async def test_remote_encoder_name_and_dimension_are_known_once_connected() -> None:
    async with running(Tei()) as [server], encoding(server) as encoder:
        for name in ("dimension", "name"):
            with pytest.raises(EncoderUnavailable, match="reached yet"):
                getattr(encoder, name)
        assert (await encoder.encode_documents([])).vectors.shape == (0, 32)
        assert encoder.dimension == 32
        assert encoder.name.startswith(f"{MODEL}@0123456789ab/float16/512/")
        server.wire = Tei(dimension=16)
        with pytest.raises(EncoderFailed, match="16 dimensions now, but gave 32"):
            await encoder.encode_query("x")
    async with running(Tei()) as [server], encoding(server) as encoder:
        server.wire.description |= {"model_type": {"reranker": {}}}
        with pytest.raises(EncoderFailed, match="not a dual encoder"):
            await encoder.connect()


async def test_remote_encoder_keeps_the_configured_leading_components() -> None:
    async with running(Tei()) as [server], encoding(server, dimension=8) as encoder:
        vectors = (await encoder.encode_documents(TEXTS)).vectors
        expected = np.array([vector_of(text)[:8] for text in TEXTS])
        np.testing.assert_allclose(vectors, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-6)
        assert encoder.dimension == 8
    async with running(Tei()) as [server], encoding(server, dimension=33) as encoder:
        with pytest.raises(EncoderFailed, match="fewer than the 33"):
            await encoder.connect()


@pytest.mark.parametrize(
    ("model", "options", "query", "document"),
    [
        ("plain", {"query_prompt": "Q: ", "document_prompt": "D: "}, "Q: ", "D: "),
        ("intfloat/multilingual-e5-large", {}, "query: ", "passage: "),
        ("e5-tiny", {"query_prompt": ""}, "", "passage: "),
    ],
)
async def test_remote_encoder_uses_configured_or_family_prompts(
    model: str, options: dict[str, Any], query: str, document: str
) -> None:
    async with running(Tei(model)) as [server], encoding(server, **options) as encoder:
        np.testing.assert_allclose(await encoder.encode_query("x"), vector_of(f"{query}x"), atol=1e-7)
        (vector,) = (await encoder.encode_documents(["x"])).vectors
        np.testing.assert_allclose(vector, vector_of(f"{document}x"), atol=1e-7)
        async with encoding(server, query_prompt="another") as other:
            await other.connect()
            assert encoder.name != other.name


async def test_remote_encoder_fails_the_call_that_sees_a_model_change() -> None:
    async with running(Tei("intfloat/multilingual-e5-large", most=512)) as [server], encoding(server) as encoder:
        await encoder.encode_query("x")
        server.wire = Tei("plain", most=512, dimension=16)
        server.drop_idle()
        with pytest.raises(EncoderUnavailable, match="has changed since this request began"):
            await encoder.encode_query("x")
        assert encoder.identity is None and encoder.dimension == 32, "no vector of the new one is known yet"
        np.testing.assert_allclose(await encoder.encode_query("x"), vector_of("x", 16), atol=1e-7)
        assert encoder.identity == encoder.name and encoder.name.startswith("plain@") and encoder.dimension == 16

        async def change(reply: Reply) -> Reply:
            server.wire = Tei("b", most=512)
            return reply

        server.script = [change, reset]
        with pytest.raises(EncoderUnavailable, match="has changed since this request began"):
            await encoder.encode_documents([f"text {n}" for n in range(DOCUMENTS + 1)])
        await check(encoder)
        assert encoder.name.startswith("b@")


async def test_remote_encoder_splits_bodies_to_the_size_the_server_takes() -> None:
    async with running(OpenAI()) as [server], encoding(server) as encoder:
        await check(encoder, [f"{n} " + "x" * 300_000 for n in range(8)])
        assert server.batches[1:] == [2, 2, 2, 2]


def embedded(*embeddings: Any, index: int = 0) -> dict[str, Any]:
    return {"data": [{"index": n, "embedding": each} for n, each in enumerate(embeddings, start=index)]}


ROW = [1.0] * 32


@pytest.mark.parametrize(
    ("wire", "body", "message"),
    [
        (Tei, [ROW], "1 vectors for 2 texts"),
        (Tei, {"vectors": [ROW, ROW]}, "not an array"),
        (Tei, [ROW, ROW[1:]], "31 and 32 dimensions"),
        (Tei, [[], []], "of 0 dimensions"),
        (Tei, [ROW, [*ROW[1:], None]], "not finite numbers|neither numbers"),
        (Tei, [ROW, [*ROW[1:], 1e60]], "not finite numbers"),
        (Tei, [ROW, [*ROW[1:], "1"]], "text 1 is .* neither numbers nor base64"),
        (Tei, [ROW, 3], "text 1 is 3"),
        (Tei, [ROW, [ROW]], "text 1 is"),
        (Tei, [ROW, [0.0] * 32], "without a direction"),
        (OpenAI, [], "where an object should be"),
        (OpenAI, embedded(ROW), "text 1 is missing"),
        (OpenAI, {"data": embedded(ROW)["data"] * 2}, "two vectors for text 0"),
        (OpenAI, embedded(ROW, ROW, index=1), "there is a vector for text 2"),
        (OpenAI, embedded(ROW, "?"), "nor base64"),
        (OpenAI, embedded(ROW, "AAAA"), "nor base64"),
    ],
)
async def test_remote_encoder_refuses_unusable_answers(wire: Callable[[], Wire], body: Any, message: str) -> None:
    async with running(wire()) as [server], encoding(server) as encoder:
        await encoder.connect()
        server.script = [answer(body)]
        with pytest.raises(EncoderFailed, match=message):
            await encoder.encode_documents(["a", "b"])
        await check(encoder)


@pytest.mark.parametrize(
    ("url", "kind", "base", "model"),
    [
        ("tei://host:8080", "tei", "http://host:8080", None),
        ("tei+https://host/embeddings-1/?model=a/b", "tei", "https://host/embeddings-1", "a/b"),
        ("openai://?model=text-embedding-3-small", "openai", "https://api.openai.com", "text-embedding-3-small"),
        ("openai+http://host:1/api/v1/?model=m", "openai", "http://host:1/api", "m"),
        ("openai://host?model=m", "openai", "https://host", "m"),
        ("vllm://[::1]:8000/v1", "vllm", "http://[::1]:8000", None),
    ],
)
def test_parse_reads_encoder_addresses(url: str, kind: str, base: str, model: str | None) -> None:
    found = parse(url)
    assert (found.format.name, found.base, found.model) == (kind, base, model)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://host", "not a kind of encoder; there are tei://, openai://, vllm://"),
        ("openai://host", "needs the name of a model"),
        ("tei://host/embed", "leave /embed off the URL of an encoder"),
        ("openai://host/v1/embeddings?model=m", "leave /embeddings off"),
    ],
)
def test_parse_refuses_a_malformed_address(url: str, message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        parse(url)
