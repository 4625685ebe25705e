"""Test that the Dockerfile, its requirements and the compose files match the code."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from typing import Any

import orjson
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from boundarymorph.server.process import LAST_SECONDS
from tests.deploy import locked
from tests.deploy.dockerfile import DOCKERFILE, REQUIREMENTS, TARGETS, requirements, stages
from tests.deploy.named import COMMANDS, PORTS, check_command, paths, role_of, settings_from

ROOT = DOCKERFILE.parents[1]
NOT_LOCKED = {"torch", "setuptools"}
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
STORES = tomllib.loads((ROOT / "service" / "boundarymorph_stores" / "pyproject.toml").read_text())["project"]


def names(lines: list[str]) -> set[str]:
    """Return package names, normalised as pip does."""
    plain = (re.split(r"[<>=\[ #]", line)[0] for line in lines if not line.startswith(("#", "-")))
    return {str(canonicalize_name(name)) for name in plain if name}


def listed(file: str) -> set[str]:
    return names((REQUIREMENTS / file).read_text().splitlines())


def extra(name: str) -> set[str]:
    return names(PROJECT["optional-dependencies"][name]) - {"boundarymorph"}


def compose(file: str) -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load((DOCKERFILE.parent / file).read_text())
    return parsed


def test_image_requirements_match_the_project() -> None:
    stores = set.union(*(names(STORES["optional-dependencies"][name]) for name in ("milvus", "pgvector", "qdrant")))
    common, embedded, retriever = listed("common.txt"), listed("embedded.txt"), listed("retriever-cpu.txt")
    optional = extra("otel") | extra("mcp")
    assert optional <= common and not common & embedded
    assert (common - optional) | embedded | (retriever - stores) == names(PROJECT["dependencies"]) | extra("service")
    splitter = {"semantic-text-splitter"}
    assert retriever == stores | splitter | {"faiss-cpu"}
    assert listed("retriever-gpu.txt") == stores | splitter | extra("gpu") | extra("torch")
    assert listed("scorer.txt") == extra("torch")
    constrained = names((ROOT / "constraints.txt").read_text().splitlines())
    assert set.union(*(listed(path.name) for path in REQUIREMENTS.iterdir())) - constrained == extra("gpu")


@pytest.mark.slow
def test_gateway_imports_no_model_libraries() -> None:
    """The image compiles the modules that `gateway_imports.py` imports."""
    program = DOCKERFILE.parent / "gateway_imports.py"
    command = [sys.executable, "-c", f"import runpy, sys; runpy.run_path({str(program)!r}); print(*sys.modules)"]
    imported = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert "boundarymorph.server.app" in imported
    assert not {"tokenizers", "onnxruntime", "faiss", "pymilvus", "torch"}.intersection(imported)
    assert [path.name for path in requirements("gateway")] == ["common.txt"]


def test_locked_packages_have_hashes_and_tested_versions() -> None:
    there: set[str] = set()
    for name in locked.AFTER:  # in the order in which they are installed
        entries = locked.locked((locked.LOCKED / f"{name}.txt").read_text())
        assert set(map(locked.plain, entries)) <= locked.constrained()
        assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries.values())
        there |= names(list(entries))
        assert listed(f"{name}.txt") - there == ({"torch"} if name == "scorer" else set())
    installs = re.findall(r"pip install ([^&\n]*)", DOCKERFILE.read_text().replace("\\\n", ""))
    without = [each.split()[-1] for each in installs if "--require-hashes" not in each]
    assert without == ["./service/boundarymorph_stores", "dist/*.whl", "retriever-gpu.txt", "torch", "scorer.txt"]


@pytest.mark.strangers
def test_locked_packages_cover_the_oldest_interpreter() -> None:
    """Dependencies of packages vary with the release of the interpreter."""
    environment = {"python_full_version": "3.11.0", "python_version": "3.11", "implementation_version": "3.11.0"}
    installed = {canonicalize_name(each.name): each for each in distributions()}
    for name, before in locked.AFTER.items():
        texts = [(locked.LOCKED / f"{each}.txt").read_text() for each in (*before, name)]
        there = set.union(*(names(list(locked.locked(text))) for text in texts))
        for package in installed.keys() & there:
            for needed in map(Requirement, installed[package].requires or []):
                if needed.marker is None or needed.marker.evaluate({**environment, "extra": ""}):
                    assert canonicalize_name(needed.name) in there | NOT_LOCKED, (package, str(needed))


@pytest.mark.parametrize("target", TARGETS)
def test_image_runs_the_command_of_its_role(target: str) -> None:
    stage, role = stages()[target], role_of(target)
    assert stage.copies_from[-1] == "application"
    assert orjson.loads(stage.command) == [COMMANDS[role]]
    check_command(orjson.loads(stage.command))
    settings = settings_from(stage.env)
    assert stage.ports == [settings.port] == [PORTS[role]]
    assert settings.host == "0.0.0.0"
    asked = re.findall(r"\}(/\w+)\"", (DOCKERFILE.parent / "healthcheck.py").read_text())
    assert set(asked) < paths(role)


def test_compose_settings_are_valid() -> None:
    """Variables come from the image and both files; URLs lead to the ports of their roles."""
    services, others = (compose(file)["services"] for file in ("compose.yaml", "compose.gpu.yaml"))
    for name in COMMANDS:
        more = others.get(name, {}).get("environment", {})
        given = {**stages()[services[name]["build"]["target"]].env, **services[name]["environment"], **more}
        settings = settings_from({key: re.sub(r"\$\{\w+:-(.*)\}", r"\1", value) for key, value in given.items()})
        assert settings.without_keys == (name != "gateway")
        for role in ("scorer", "retriever"):
            assert set(getattr(settings, role).url) <= {f"http://{role}:{PORTS[role]}"}
    first = PORTS["gateway"]
    assert services["gateway"]["ports"] == [f"127.0.0.1:{first}-{first + 3}:{first}"]  # for --scale gateway=4
    (job,) = compose("prometheus/prometheus.yaml")["scrape_configs"]
    assert {each["names"][0]: each["port"] for each in job["dns_sd_configs"]} == PORTS


def test_compose_services_are_confined() -> None:
    """Our services are confined as `make images` does it; others write only to their volumes."""
    parsed, settings = compose("compose.yaml"), settings_from({})
    assert parsed["networks"]["behind"] == {"internal": True}
    assert settings.limits.bytes_in_flight < 2 * 2**30  # strict uploads are kept in /tmp
    confined = {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"]}
    for name, service in parsed["services"].items():
        assert service.items() >= {**confined, "tmpfs": ["/tmp:size=2g"]}.items()
        if name in ("retriever", "scorer", "redis"):
            assert service["networks"] == ["behind"] and "ports" not in service
        if name in COMMANDS:
            longest = settings.grace_seconds + LAST_SECONDS
            assert int(service["stop_grace_period"].removesuffix("s")) >= longest + 5
        else:
            assert int(service["user"].partition(":")[0]) > 0
