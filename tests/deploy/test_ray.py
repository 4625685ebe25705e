"""deploy/ray holds a configuration of Ray Serve, and names what the code has."""

from importlib import import_module
from pathlib import Path

import yaml
from ray.serve import Application
from ray.serve.schema import ServeDeploySchema

from boundarymorph.settings import Settings
from boundarymorph.settings.settings import SESSIONS

SERVICE = Path(__file__).parents[2] / "deploy/ray/rayservice.yaml"


def test_the_manifest_agrees_with_the_code_and_its_settings() -> None:
    config = yaml.safe_load(yaml.safe_load(SERVICE.read_text())["spec"]["serveConfigV2"])
    ServeDeploySchema.model_validate(config)
    applications = {each["name"]: each for each in config["applications"]}
    assert {name: each["route_prefix"] for name, each in applications.items()} == {
        "scorer": "/scorer", "retriever": "/retriever", "gateway": "/"
    }  # fmt: skip
    for name, each in applications.items():
        module, function = each["import_path"].split(":")
        assert isinstance(getattr(import_module(module), function)(each["args"]), Application)
        settings = Settings(**each["args"])
        (deployment,) = each["deployments"]
        assert (deployment["name"], deployment["backpressure_config"]["status_code"]) == (name, 429)
        assert deployment["health_check_period_s"] == settings.ready_interval_seconds
        assert deployment["health_check_timeout_s"] == settings.ready_timeout_seconds
        # A gateway ends after its calls, which wait in a proxy while a retriever is replaced.
        waits = settings.retriever.timeout_seconds if name == "gateway" else 0
        assert deployment["graceful_shutdown_timeout_s"] == settings.grace_seconds + waits
    gateway = Settings(**applications["gateway"]["args"])
    port = config["http_options"]["port"]
    assert gateway.scorer.url == (f"http://127.0.0.1:{port}/scorer",)
    assert gateway.retriever.url == (f"http://127.0.0.1:{port}/retriever",)
    (deployment,) = applications["gateway"]["deployments"]
    assert deployment["max_ongoing_requests"] == gateway.sessions == SESSIONS
    assert deployment["max_queued_requests"] == gateway.limits.waiting
