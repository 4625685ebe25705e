"""Settings: where they come from, what is refused, and how they are shown."""

import json
from pathlib import Path
from typing import Any

import pytest

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.settings import MASKED, Limits, Settings

NAMED = ('precision = "fp32"', 'device = "cpu"', 'instruction = "x"', "batch_tokens = 9", "trust_remote_code = true")
CHOSEN = ('query_prompt = "q: "', 'document_prompt = "d: "', "dimension = 9")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(text)
    monkeypatch.setenv("BOUNDARYMORPH_CONFIG", str(path))


def test_defaults() -> None:
    settings = Settings.load()
    assert (settings.host, settings.port, settings.budget, settings.k, settings.depth) == (
        "127.0.0.1", 8080, 50, 50, 10_000,
    )  # fmt: skip
    assert settings.limits == Limits()


def test_overrides_win_over_the_environment_and_it_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.toml", "port = 1\nbudget = 1\nk = 1\n[limits]\nbudget = 10\nk = 10", monkeypatch)
    monkeypatch.setenv("BOUNDARYMORPH_BUDGET", "2")
    monkeypatch.setenv("BOUNDARYMORPH_K", "2")
    monkeypatch.setenv("BOUNDARYMORPH_LIMITS__K", "20")
    settings = Settings.load(k=3, host=None)
    assert (settings.port, settings.budget, settings.k) == (1, 2, 3)
    assert (settings.limits.budget, settings.limits.k) == (10, 20)
    assert settings.host == "127.0.0.1"


def test_the_file_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "boundarymorph.toml").write_text("port = 7")
    assert Settings.load().port == 7
    write(tmp_path / "other.toml", "port = 8", monkeypatch)
    assert Settings.load().port == 8


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('port = "x"', "port"),
        ("prot = 1", "prot"),
        ("[limits]\npools = 5", "limits.pools"),
        ("[limits]\ndeadline_seconds = inf", "limits.deadline_seconds"),
        ("[limits]\nbudget = 20", "budget is 50, over limits.budget, which is 20"),
        ("[limits]\npool = 500", "depth is 10,000, over limits.pool, which is 500"),
        ("max_length = 513", "max_length"),
        ('[scorer]\ndevice = "cuda:x"', "scorer.device"),
        ('[scorer]\nurl = ["http://a"]\nmodel = "b"', "a url or a model"),
        ('[scorer]\nprompt = "qwen3"', "prompt: only of a model with a name"),
        ('[scorer]\nurl = "http://a"\nprecision = "fp32"', "precision: only of a model with a name"),
        *((f"[{part}]\n{option}", "only of a model with a name") for part in ("encoder", "scorer") for option in NAMED),
        *((f'[encoder]\nurl = "tei://a"\n{option}', "only of a model with a name") for option in NAMED),
        ('[encoder]\npooling = "cls"', "pooling: only of a model with a name"),
        ('[encoder]\nurl = "tei://a"\npooling = "cls"', "pooling: only of a model with a name"),
        *((f"[encoder]\n{option}", "only of a model with a name or a url") for option in CHOSEN),
        ('allowed_hosts = ["a b"]', "allowed_hosts.0: must be the name of a host"),
        ("[stores.My]", "stores.My.[key]: must have 1 to 64 of a-z"),
        ('[scorer]\ndevice = "tpu"', "scorer.device: must be auto, cpu, cuda or cuda:N"),
        ('[traces]\nurl = "collector"', "traces.url: must begin with http:// or https://"),
        ("port = ", "a.toml"),
        ("port = 1\nport = 2", "a.toml"),
    ],
)
def test_bad_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, named: str) -> None:
    write(tmp_path / "a.toml", text, monkeypatch)
    with pytest.raises(InvalidConfiguration) as raised:
        Settings.load()
    message = str(raised.value)
    assert message.startswith("bad settings: ") and "\n" not in message
    assert named in message


@pytest.mark.strangers
def test_a_file_of_other_editors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.toml"
    write(path, "", monkeypatch)
    path.write_bytes(b"\xef\xbb\xbfk = 7\r\n[cache]\r\nenabled = false\r\n")
    assert Settings.load().k == 7
    for encoding, said in (("utf-16", "UTF-16"), ("latin-1", "not in UTF-8")):
        path.write_text('data_directory = "Größe"', encoding=encoding)
        with pytest.raises(InvalidConfiguration, match=f"a.toml: .*{said}"):
            Settings.load()
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidConfiguration, match=r"a\.toml"):
        Settings.load()
    path.write_text('[scorer]\nulr = "tei://b"')
    with pytest.raises(InvalidConfiguration, match=r"scorer\.ulr: unknown field 'ulr'; did you mean 'url'\?"):
        Settings.load()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("BOUNDARYMORPH_PORT", "x"),
        ("BOUNDARYMORPH_LIMITS", "{"),
        ("BOUNDARYMORPH_LIMITS__NONE", "1"),
        ("BOUNDARYMORPH_SCORER__URL", "["),
        ("BOUNDARYMORPH_CONFIG", "missing.toml"),
        ("BOUNDARYMORPH_CONFIG", "/proc/self/mem"),  # a file that cannot be read
    ],
)
def test_bad_environment(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidConfiguration):
        Settings.load()


class TestVariablesThatAreNoSettings:
    @pytest.mark.parametrize(
        ("variable", "near"),
        [
            ("BOUNDARYMORPH_KEY", "BOUNDARYMORPH_KEYS"),
            ("boundarymorph_key", "BOUNDARYMORPH_KEYS"),
            ("BOUNDARYMORPH_LIMITS__BUDGTE", "BOUNDARYMORPH_LIMITS__BUDGET"),
            ("BOUNDARYMORPH_LIMITS_BUDGET", "BOUNDARYMORPH_LIMITS__BUDGET"),
            ("BOUNDARYMORPH_SCORER__APIKEY", "BOUNDARYMORPH_SCORER__API_KEY"),
            ("BOUNDARYMORPH_CONFG", "`boundarymorph config`"),
            ("BOUNDARYMORPH_PORT__X", "BOUNDARYMORPH_PORT"),
            ("BOUNDARYMORPH_", "`boundarymorph config`"),
        ],
    )
    def test_are_refused(self, monkeypatch: pytest.MonkeyPatch, variable: str, near: str) -> None:
        monkeypatch.setenv(variable, "1")
        with pytest.raises(InvalidConfiguration, match=f"there is no setting {variable}; .*{near}"):
            Settings.load()

    @pytest.mark.parametrize(
        ("variable", "value"),
        [
            ("BOUNDARYMORPH_RATE_LIMITS__KEYS__RAG", "1/second"),
            ("BOUNDARYMORPH_RATE_LIMITS__KEYS", '{"rag": "1/second"}'),
            ("BOUNDARYMORPH_STORES__MILVUS__INDEXES__PAPERS__COLLECTION", "Papers"),
            ("BOUNDARYMORPH_SCORER_SERVICE_HOST", "10.0.0.1"),  # these are of Kubernetes
            ("BOUNDARYMORPH_SCORER_SERVICE_PORT_HTTP", "80"),
            ("BOUNDARYMORPH_SCORER_PORT", "tcp://10.0.0.1:80"),
            ("BOUNDARYMORPH_SCORER_PORT_80_TCP_ADDR", "10.0.0.1"),
        ],
    )
    def test_others_are_not(self, monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
        monkeypatch.setenv(variable, value)
        Settings.load()


class TestKeys:
    ONE, TWO = f"rag:select,write:{'0f' * 32}", f"ops:admin:{'a' * 64}:photos,team-*"

    @pytest.mark.parametrize("between", [" ", "\n", ", "])
    def test_as_a_plain_list(self, monkeypatch: pytest.MonkeyPatch, between: str) -> None:
        for first, second in ((self.ONE, self.TWO), (self.TWO, self.ONE)):
            monkeypatch.setenv("BOUNDARYMORPH_KEYS", f"{first}{between}{second}\n")
            assert Settings.load().keys == (first, second)

    @pytest.mark.parametrize(
        ("text", "keys"),
        [("", ()), (ONE, (ONE,)), (f'["{ONE}", "{TWO}"]', (ONE, TWO)), ("[]", ()), ("nonsense", ("nonsense",))],
    )
    def test_alone_or_as_json(self, monkeypatch: pytest.MonkeyPatch, text: str, keys: tuple[str, ...]) -> None:
        monkeypatch.setenv("BOUNDARYMORPH_KEYS", text)
        assert Settings.load().keys == keys

    @pytest.mark.parametrize("text", ["[", "[1]"])
    def test_what_is_no_list(self, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        monkeypatch.setenv("BOUNDARYMORPH_KEYS", text)
        with pytest.raises(InvalidConfiguration, match="keys"):
            Settings.load()


def shown(settings: Settings) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(settings.shown())
    return values


def test_all_settings_are_shown() -> None:
    given = Settings.load(
        data_directory=Path("data ü"), threads=2, limits={"pool": 30_000}, scorer={"url": "tei://b:2"}
    )
    values = shown(given)
    assert values.keys() == Settings.model_fields.keys()
    assert (values["data_directory"], values["limits"]["pool"], values["scorer"]["url"]) == (
        "data ü",
        30_000,
        ["tei://b:2"],
    )
    assert values["cache"]["url"] is None


@pytest.mark.parametrize(
    ("url", "open"),
    [
        ("http://a:1", True),
        ("tei://b:2?model=c", True),
        ("tei://user:hunter2@b", False),
        ("tei://:hun/ter2@b", False),
        ("http:/hunter2@b", False),
        ("http://b?model=c&api_key=hunter2", False),
    ],
)
def test_a_url_is_a_secret_if_it_holds_one(url: str, open: bool) -> None:
    assert shown(Settings.load(scorer={"url": url}))["scorer"]["url"] == [url if open else MASKED]


@pytest.mark.parametrize(
    ("given", "sessions"),
    [
        ({"threads": 2}, 8),
        ({"threads": 2, "scorer": {"url": ["http://127.0.0.1:8081"]}}, 64),
        ({"threads": 2, "scorer": {"model": "BAAI/bge-reranker-v2-m3"}}, 64),
        ({"threads": 2, "limits": {"sessions": 3}}, 3),
    ],
)
def test_sessions_at_a_time_go_by_where_the_cross_encoder_is(given: dict[str, Any], sessions: int) -> None:
    assert Settings.load(**given).sessions == sessions


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor a secret in place of its hash, nor what a language model's server is sent besides."""
    key = f"rag:select:{'0f' * 32}"
    for name, value in {
        "SCORER__API_KEY": "hunter2",
        "CACHE__URL": "redis://:hunter2@redis",
        "KEYS": f"{key} bm_hunter2",
        "SCORER__JUDGE__BODY": '{"user": "hunter2", "extra": {"key": ["hunter2"]}}',
    }.items():
        monkeypatch.setenv(f"BOUNDARYMORPH_{name}", value)
    settings = Settings.load()
    assert settings.scorer.api_key is not None and settings.scorer.api_key.get_secret_value() == "hunter2"
    assert "hunter2" not in f"{settings.scorer.api_key!r}{settings.shown()}"
    assert shown(settings)["keys"] == [key, MASKED]


def test_urls_are_one_or_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOUNDARYMORPH_RETRIEVER__URL", "http://a:1")
    assert Settings.load().retriever.url == ("http://a:1",)
    monkeypatch.setenv("BOUNDARYMORPH_RETRIEVER__URL", '["http://a:1", "http://b:2"]')
    assert Settings.load().retriever.url == ("http://a:1", "http://b:2")
    assert Settings.load(retriever={"url": ("http://c:3",)}).retriever.url == ("http://c:3",)
    monkeypatch.delenv("BOUNDARYMORPH_RETRIEVER__URL")
    for text in ('url = "tei://a:1"', 'url = ["tei://a:1"]'):
        write(tmp_path / "a.toml", f"[scorer]\n{text}\n", monkeypatch)
        assert Settings.load().scorer.url == ("tei://a:1",)
