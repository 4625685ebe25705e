"""Test settings: their sources, their checks, and how they are shown."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.settings import MASKED, Settings
from boundarymorph.settings.template import template

NAMED = ('precision = "fp32"', 'device = "cpu"', 'instruction = "x"', "batch_tokens = 9", "trust_remote_code = true")
CHOSEN = ('query_prompt = "q: "', 'document_prompt = "d: "', "dimension = 9")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(text)
    monkeypatch.setenv("BOUNDARYMORPH_CONFIG", str(path))


def test_settings_prefer_options_to_environment_to_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.toml", "port = 1\nbudget = 1\nk = 1\n[limits]\nbudget = 10\nk = 10", monkeypatch)
    monkeypatch.setenv("BOUNDARYMORPH_BUDGET", "2")
    monkeypatch.setenv("BOUNDARYMORPH_K", "2")
    monkeypatch.setenv("BOUNDARYMORPH_LIMITS__K", "20")
    settings = Settings.load(k=3, host=None)
    assert (settings.port, settings.budget, settings.k) == (1, 2, 3)
    assert (settings.limits.budget, settings.limits.k) == (10, 20)
    assert settings.host == "127.0.0.1"


def test_settings_file_in_the_working_directory_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "boundarymorph.toml").write_text("port = 7")
    assert Settings.load().port == 7
    write(tmp_path / "other.toml", "port = 8", monkeypatch)
    assert Settings.load().port == 8


REFUSED: list[tuple[str, str]] = [  # files, and names in the refusal
    ('port = "x"', "port"),
    ("prot = 1", "prot"),
    ("port = ", "a.toml"),
    ("port = 1\nport = 2", "a.toml"),
    ("port = -1\nk = 0\n[limits]\nk = 0", "k: Input should be greater than or equal to 1; limits.k: "),
    ("[limits]\npools = 5", "limits.pools"),
    ("[limits]\ndeadline_seconds = inf", "limits.deadline_seconds"),
    ("[limits]\nbudget = 20", "budget is 50, over limits.budget, which is 20"),
    ("[limits]\npool = 500", "depth is 10,000, over limits.pool, which is 500"),
    ("max_length = 513", "max_length"),
    ('allowed_hosts = ["a b"]', "allowed_hosts.0: must be the name of a host"),
    ("[stores.My]", "stores.My.[key]: must have 1 to 64 of a-z"),
    ('[traces]\nurl = "collector"', "traces.url: must begin with http:// or https://"),
    *(
        (f'[scorer]\ndevice = "{device}"', "scorer.device: must be 'auto', 'cpu', 'cuda', or 'cuda:N'")
        for device in ("cuda:x", "tpu")
    ),
    ('[scorer]\nurl = ["http://a"]\nmodel = "b"', "a URL or a model"),
    ('[scorer]\nprompt = "qwen3"', "prompt: only of a model with a name"),
    *((f"[{part}]\n{option}", "only of a model with a name") for part in ("encoder", "scorer") for option in NAMED),
    *(
        (f'[encoder]\nurl = "tei://a"\n{option}', "only of a model with a name")
        for option in (*NAMED, 'pooling = "cls"')
    ),
    *((f"[encoder]\n{option}", "only of a model with a name or a URL") for option in CHOSEN),
]


@pytest.mark.parametrize(("text", "named"), REFUSED)
def test_settings_file_with_a_mistake_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, named: str
) -> None:
    write(tmp_path / "a.toml", text, monkeypatch)
    with pytest.raises(InvalidConfiguration) as raised:
        Settings.load()
    message = str(raised.value)
    assert message.startswith("bad settings: ") and "\n" not in message
    assert named in message


@pytest.mark.strangers
def test_settings_file_in_another_encoding_is_read_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    ("name", "value"),
    [
        ("PORT", "x"), ("LIMITS", "{"), ("LIMITS__NONE", "1"), ("SCORER__URL", "["), ("CONFIG", "missing.toml"),
        ("CONFIG", "/proc/self/mem"), ("KEYS", "["), ("KEYS", "[1]"),
    ],
)  # fmt: skip
def test_invalid_settings_variable_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"BOUNDARYMORPH_{name}", value)
    with pytest.raises(InvalidConfiguration):
        Settings.load()


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
    ],
)
def test_unknown_variable_is_refused_without_its_value(
    monkeypatch: pytest.MonkeyPatch, variable: str, near: str
) -> None:
    monkeypatch.setenv(variable, "secret")
    with pytest.raises(InvalidConfiguration, match=f"there is no setting {variable}; .*{near}") as raised:
        Settings.load()
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("RATE_LIMITS__KEYS__RAG", "1/second"),
        ("RATE_LIMITS__KEYS", '{"rag": "1/second"}'),
        ("STORES__MILVUS__INDEXES__PAPERS__COLLECTION", "Papers"),
        ("SCORER_SERVICE_HOST", "10.0.0.1"),  # Kubernetes sets such variables
        ("SCORER_SERVICE_PORT_HTTP", "80"),
        ("SCORER_PORT", "tcp://10.0.0.1:80"),
        ("SCORER_PORT_80_TCP_ADDR", "10.0.0.1"),
    ],
)
def test_variables_of_maps_and_kubernetes_are_accepted(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(f"BOUNDARYMORPH_{variable}", value)
    Settings.load()


ONE, TWO = f"rag:select,write:{'0f' * 32}", f"ops:admin:{'a' * 64}:photos,team-*"


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        *((f"{first}{between}{second}\n", (first, second))
          for between in (" ", "\n", ", ") for first, second in ((ONE, TWO), (TWO, ONE))),
        ("", ()), (ONE, (ONE,)), (f'["{ONE}", "{TWO}"]', (ONE, TWO)), ("[]", ()), ("nonsense", ("nonsense",)),
    ],
)  # fmt: skip
def test_keys_setting_accepts_a_plain_list_or_json(
    monkeypatch: pytest.MonkeyPatch, text: str, keys: tuple[str, ...]
) -> None:
    monkeypatch.setenv("BOUNDARYMORPH_KEYS", text)
    assert Settings.load().keys == keys


def shown(settings: Settings) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(settings.shown())
    return values


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
def test_url_setting_is_shown_unless_it_holds_a_secret(url: str, open: bool) -> None:
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
def test_sessions_default_depends_on_where_the_scorer_runs(given: dict[str, Any], sessions: int) -> None:
    assert Settings.load(**given).sessions == sessions


def test_shown_settings_mask_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes a secret in place of its hash, and the extra body for a language model."""
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


def test_url_settings_accept_one_url_or_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOUNDARYMORPH_RETRIEVER__URL", "http://a:1")
    assert Settings.load().retriever.url == ("http://a:1",)
    monkeypatch.setenv("BOUNDARYMORPH_RETRIEVER__URL", '["http://a:1", "http://b:2"]')
    assert Settings.load().retriever.url == ("http://a:1", "http://b:2")
    assert Settings.load(retriever={"url": ("http://c:3",)}).retriever.url == ("http://c:3",)
    monkeypatch.delenv("BOUNDARYMORPH_RETRIEVER__URL")
    for text in ('url = "tei://a:1"', 'url = ["tei://a:1"]'):
        write(tmp_path / "a.toml", f"[scorer]\n{text}\n", monkeypatch)
        assert Settings.load().scorer.url == ("tei://a:1",)


def test_template_describes_every_setting() -> None:
    lines = template().splitlines()
    described = {name: text for text, name in pairwise(lines) if re.match(r"#?\[|#\w+ =", name)}
    assert len(described) > 100
    assert [text for text in described.values() if not re.fullmatch(r"# [A-Z].*\.", text)] == []
    assert {"[scorer.judge]", "#[stores.NAME.indexes.NAME]", "#port = 8080", "#threads ="} <= described.keys()


def test_description_names_every_word_that_a_setting_accepts() -> None:
    schema = Settings.model_json_schema()
    unnamed, checked = [], 0
    for model in (schema, *schema["$defs"].values()):
        for name, field in model.get("properties", {}).items():
            accepted = [word for kind in (field, *field.get("anyOf", [])) for word in kind.get("enum", [])]
            words = [word for word in accepted if isinstance(word, str)]
            checked += len(words)
            unnamed += [(name, word) for word in words if f'"{word}"' not in field["description"]]
    assert checked > 20
    assert unnamed == []


def test_template_without_comment_signs_has_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    sections = [each for each in template().split("\n\n") if ".NAME" not in each]
    assert len(sections) > 10
    write(Path("all.toml"), re.sub(r"(?m)^#(?=\w+ = )", "", "\n\n".join(sections)), monkeypatch)
    assert Settings.load() == Settings()
