"""Test that deploy/ray/rayservice.yaml is valid for Ray Serve, and matches the code."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve import Application
from ray.serve.schema import ServeDeploySchema

from boundarymorph.settings import Settings

SERVICE = Path(__file__).parents[2] / "deploy/ray/rayservice.yaml"
CONFIGURATION: dict[str, Any] = yaml.safe_load(yaml.safe_load(SERVICE.read_text())["spec"]["serveConfigV2"])
APPLICATIONS: dict[str, dict[str, Any]] = {each["name"]: each for each in CONFIGURATION["applications"]}


def test_ray_configuration_defines_the_three_roles() -> None:
    ServeDeploySchema.model_validate(CONFIGURATION)
    assert set(APPLICATIONS) == {"gateway", "retriever", "scorer"}


@pytest.mark.parametrize("name", APPLICATIONS)
def test_ray_application_is_built_with_its_settings(name: str) -> None:
    application = APPLICATIONS[name]
    module, function = application["import_path"].split(":")
    assert isinstance(getattr(import_module(module), function)(application["args"]), Application)
    settings = Settings(**application["args"])
    port = CONFIGURATION["http_options"]["port"]
    if name == "gateway":
        assert settings.scorer.url == (f"http://127.0.0.1:{port}{APPLICATIONS['scorer']['route_prefix']}",)
        assert settings.retriever.url == (f"http://127.0.0.1:{port}{APPLICATIONS['retriever']['route_prefix']}",)
        (deployment,) = application["deployments"]
        assert deployment["max_ongoing_requests"] == settings.sessions
        waits = settings.retriever.timeout_seconds  # a retriever may be replaced at the same time
        assert deployment["graceful_shutdown_timeout_s"] == settings.grace_seconds + waits
