"""What `boundarymorph ray` prints is a configuration of Ray Serve, and names what the code has."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve import Application
from ray.serve.schema import ServeDeploySchema
from typer.testing import CliRunner

from boundarymorph.access import keys
from boundarymorph.cli.main import app
from boundarymorph.cli.ray import configuration
from boundarymorph.errors import InvalidConfiguration
from boundarymorph.settings import MilvusSettings, Settings

SECRET, KEY = keys.make("tests", list(keys.Scope))
SERVICE = Path(__file__).parents[2] / "deploy/ray/rayservice.yaml"


def printed(**values: Any) -> dict[str, dict[str, Any]]:
    """The applications by name, as they are read again from the file."""
    text = yaml.safe_dump(configuration(Settings(**values), port=8000, max_replicas=8, cpus=1, gpus=1))
    parsed = yaml.safe_load(text)
    ServeDeploySchema.model_validate(parsed)
    return {application["name"]: application for application in parsed["applications"]}


def test_settings_come_back_in_the_role_that_they_are_for() -> None:
    scorer = {"model": "BAAI/bge-reranker-v2-m3", "batch_tokens": 9000}
    applications = printed(keys=(str(KEY),), k=7, scorer=scorer, port=9999)
    for application in applications.values():
        module, name = application["import_path"].split(":")
        built = getattr(import_module(module), name)(application["args"])
        assert isinstance(built, Application)
        settings = Settings(**application["args"])
        assert (settings.k, settings.keys, settings.port) == (7, (str(KEY),), Settings().port)
    assert Settings(**applications["scorer"]["args"]).scorer.model == "BAAI/bge-reranker-v2-m3"
    gateway = Settings(**applications["gateway"]["args"])
    assert gateway.scorer.url == ("http://127.0.0.1:8000/scorer",)
    assert gateway.retriever.url == ("http://127.0.0.1:8000/retriever",)
    (deployment,) = applications["gateway"]["deployments"]
    assert deployment["max_ongoing_requests"] == gateway.sessions
    waits = gateway.retriever.timeout_seconds  # for a retriever that is replaced at the same time
    assert deployment["graceful_shutdown_timeout_s"] == gateway.grace_seconds + waits


def test_what_is_elsewhere_is_not_deployed() -> None:
    applications = printed(without_keys=True, scorer={"url": ("tei://gpu-1:8080",)})
    assert set(applications) == {"gateway", "retriever"}
    assert Settings(**applications["gateway"]["args"]).scorer.url == ("tei://gpu-1:8080",)


def test_an_index_on_a_disk_stays_on_its_node() -> None:
    (alone,) = printed(without_keys=True)["retriever"]["deployments"]
    assert (alone["num_replicas"], alone["ray_actor_options"]["resources"]) == (1, {"documents": 1})
    (several,) = printed(without_keys=True, milvus={"url": "http://milvus:19530"})["retriever"]["deployments"]
    assert several["autoscaling_config"]["max_replicas"] == 8
    assert "resources" not in several["ray_actor_options"]


def test_secrets_are_not_printed() -> None:
    cache, store = {"url": "redis://:hunter2@redis:6379"}, {"url": "pgvector://:hunter2@db", "connections": 3}
    keys = {"scorer": {"api_key": SECRET}, "retriever": {"api_key": SECRET}}
    applications = printed(without_keys=True, cache=cache, stores={"pg": store}, **keys)
    assert not any(hidden in str(applications) for hidden in (SECRET, "hunter2", "***"))
    assert applications["retriever"]["args"]["stores"] == {"pg": {"connections": 3}}, "nodes have its URL"


def test_without_keys_it_has_to_be_said() -> None:
    with pytest.raises(InvalidConfiguration, match="without_keys"):
        printed()


def test_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOUNDARYMORPH_WITHOUT_KEYS", "true")
    result = CliRunner().invoke(app, ["ray", "--port", "9000", "--gpus", "0.5"])
    assert result.exit_code == 0
    settings = Settings(without_keys=True)
    assert yaml.safe_load(result.stdout) == configuration(settings, port=9000, max_replicas=8, cpus=1, gpus=0.5)
    monkeypatch.setenv("BOUNDARYMORPH_MILVUS__URL", "http://milvus:19530")
    result = CliRunner().invoke(app, ["ray"])
    applications = {each["name"]: each["args"] for each in yaml.safe_load(result.stdout)["applications"]}
    assert applications["retriever"]["milvus"] == {"url": "http://milvus:19530"}
    assert "milvus" not in applications["gateway"]


def test_the_manifest_has_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOUNDARYMORPH_METRICS_SECONDS")  # of all tests
    spec = yaml.safe_load(SERVICE.read_text())["spec"]
    config = yaml.safe_load(spec["serveConfigV2"])
    ServeDeploySchema.model_validate(config)
    settings = Settings(without_keys=True, milvus=MilvusSettings(url="http://boundarymorph-milvus.milvus:19530"))
    expected = configuration(settings, port=8000, max_replicas=8, cpus=1, gpus=1)
    assert config == expected
