"""The Dockerfile, its requirements and the compose files name what the code has."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path
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
OLDEST = ("3.11.0", "3.12.0", "3.13.0")  # of each that pyproject.toml names
NOT_LOCKED = {"torch", "setuptools"}
PIP = """#!/bin/sh
case "$*" in *require-hashes*) exit 0 ;; esac
asked="https://default.invalid $PIP_EXTRA_INDEX_URL"
while [ $# -gt 0 ]; do case "$1" in
--index-url) asked="$2 $PIP_EXTRA_INDEX_URL" ;; --extra-index-url) asked="$asked $2" ;;
esac; shift; done
case "$asked" in *REACHED*) exit 0 ;; esac; exit 1
"""
FILES = ("compose.yaml", "compose.gpu.yaml")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
STORES = tomllib.loads((ROOT / "service" / "boundarymorph_stores" / "pyproject.toml").read_text())["project"]


def names(lines: list[str]) -> set[str]:
    """Of packages, as pip compares them."""
    plain = (re.split(r"[<>=\[ #]", line)[0] for line in lines if not line.startswith(("#", "-")))
    return {re.sub(r"[-_.]+", "-", name).lower() for name in plain if name}


def listed(file: str) -> set[str]:
    return names((REQUIREMENTS / file).read_text().splitlines())


def extra(name: str) -> set[str]:
    return names(PROJECT["optional-dependencies"][name]) - {"boundarymorph"}


def compose(file: str) -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load((DOCKERFILE.parent / file).read_text())
    return parsed


def stores() -> set[str]:
    """Clients of stores that are small enough for the images."""
    return set.union(*(names(STORES["optional-dependencies"][name]) for name in ("milvus", "pgvector", "qdrant")))


class TestRequirements:
    def test_all_of_the_service_is_installed_somewhere(self) -> None:
        core = listed("common.txt") - extra("otel") - extra("mcp")
        embedded = listed("embedded.txt")
        assert core | embedded | (listed("retriever-cpu.txt") - stores()) == names(PROJECT["dependencies"]) | extra(
            "service"
        )
        assert not core & embedded

    def test_each_extra_is_where_it_is_used(self) -> None:
        assert extra("otel") | extra("mcp") <= listed("common.txt")
        splitter = {"semantic-text-splitter"}
        assert listed("retriever-cpu.txt") == stores() | splitter | {"faiss-cpu"}
        assert listed("retriever-gpu.txt") == stores() | splitter | extra("gpu") | extra("torch")
        assert listed("scorer.txt") == extra("torch")

    def test_versions_are_those_that_are_tested(self) -> None:
        constrained = names((ROOT / "constraints.txt").read_text().splitlines())
        wanted = set.union(*(listed(path.name) for path in REQUIREMENTS.iterdir()))
        assert wanted - constrained == extra("gpu")

    @pytest.mark.slow
    def test_the_gateway_has_no_models(self) -> None:
        """Nor does it import what loads them: bytecode that is in its image is of what `gateway_imports.py` imports."""
        program = DOCKERFILE.parent / "gateway_imports.py"
        command = [sys.executable, "-c", f"import runpy, sys; runpy.run_path({str(program)!r}); print(*sys.modules)"]
        imported = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        assert "boundarymorph.server.app" in imported
        assert not {"tokenizers", "onnxruntime", "faiss", "pymilvus", "torch"}.intersection(imported)
        assert [path.name for path in requirements("gateway")] == ["common.txt"]


class TestHashes:
    def test_they_are_of_the_versions_that_are_tested(self) -> None:
        for name in locked.AFTER:
            entries = locked.locked((locked.LOCKED / f"{name}.txt").read_text())
            assert set(map(locked.plain, entries)) <= locked.constrained()
            assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries.values())

    def test_every_listed_package_has_hashes(self) -> None:
        there: set[str] = set()
        for name in locked.AFTER:  # in the order in which they are installed
            there |= names(list(locked.locked((locked.LOCKED / f"{name}.txt").read_text())))
            assert listed(f"{name}.txt") - there == ({"torch"} if name == "scorer" else set())

    @pytest.mark.strangers
    @pytest.mark.parametrize("version", OLDEST)
    def test_what_the_oldest_interpreters_need_is_locked(self, version: str) -> None:
        """Whatever the packages ask for on them, which differs from release to release of an interpreter."""
        minor = version.rpartition(".")[0]
        environment = {"python_full_version": version, "python_version": minor, "implementation_version": version}
        installed = {canonicalize_name(each.name): each for each in distributions()}
        for name in locked.AFTER:
            there: set[str] = set()
            for each in (*locked.AFTER[name], name):
                there |= names(list(locked.locked((locked.LOCKED / f"{each}.txt").read_text())))
            for package in installed.keys() & there:
                for needed in map(Requirement, installed[package].requires or []):
                    if needed.marker is None or needed.marker.evaluate({**environment, "extra": ""}):
                        assert canonicalize_name(needed.name) in there | NOT_LOCKED, (package, str(needed))

    def test_nothing_else_is_installed_without_them(self) -> None:
        """But our own, torch, and what comes with CUDA."""
        installs = re.findall(r"pip install ([^&\n]*)", DOCKERFILE.read_text().replace("\\\n", ""))
        without = [each.split()[-1] for each in installs if "--require-hashes" not in each]
        assert without == ["./service/boundarymorph_stores", "dist/*.whl", "retriever-gpu.txt", "torch", "scorer.txt"]


class TestTorchWithoutCuda:
    """The command that installs it in the scorer's image for CPUs, with programs in place of pip and PyTorch."""

    @pytest.fixture
    def install(self, tmp_path: Path) -> Callable[[str, str], subprocess.CompletedProcess[str]]:
        text = DOCKERFILE.read_text().replace("\\\n", " ")
        stage = text.partition(" AS scorer-cpu-packages\n")[2].partition("\nFROM ")[0]
        [command] = re.findall(r"^RUN (?:--mount=\S+ )*(.*)", stage, re.MULTILINE)
        command = command.replace("/opt/boundarymorph/bin/python", sys.executable)
        index = re.findall(r"^ARG TORCH_INDEX=(\S+)", stage, re.MULTILINE)[0]
        (tmp_path / "torch").mkdir()

        def run(cuda: str, reached: str) -> subprocess.CompletedProcess[str]:
            """cuda: of the PyTorch that is installed; reached: a part of the address of the only index that answers."""
            (tmp_path / "torch/__init__.py").write_text(f"class version: cuda = {cuda}")
            (tmp_path / "pip").write_text(PIP.replace("REACHED", reached))
            (tmp_path / "pip").chmod(0o755)
            env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": str(tmp_path), "TORCH_INDEX": index}
            env["PIP_EXTRA_INDEX_URL"] = "https://default.invalid"
            return subprocess.run(["sh", "-c", command], env=env, capture_output=True, text=True)

        return run

    def test_it_is_installed_from_an_index_of_its_own(self, install: Any) -> None:
        told = install("None", "download.pytorch.org")
        assert told.returncode == 0, told.stderr

    @pytest.mark.strangers
    def test_the_build_fails_where_only_other_indexes_answer(self, install: Any) -> None:
        assert install("None", "default.invalid").returncode != 0

    @pytest.mark.strangers
    def test_the_build_fails_with_cuda(self, install: Any) -> None:
        told = install("'12.8'", "download.pytorch.org")
        assert told.returncode != 0 and "PyTorch with CUDA 12.8" in told.stderr


class TestDockerfile:
    @pytest.mark.parametrize("target", TARGETS)
    def test_target(self, target: str) -> None:
        stage, role = stages()[target], role_of(target)
        assert orjson.loads(stage.command) == [COMMANDS[role]]
        check_command(orjson.loads(stage.command))
        settings = settings_from(stage.env)
        assert stage.ports == [settings.port] == [PORTS[role]]
        assert settings.host == "0.0.0.0"

    def test_each_image_is_a_target_and_has_the_application(self) -> None:
        run = {name for name, stage in stages().items() if stage.command and stage.copies_from[-1:] == ["application"]}
        assert run == set(TARGETS)

    def test_what_is_copied_is_there(self) -> None:
        text = DOCKERFILE.read_text().replace("${WEIGHTS}", re.findall(r"ARG WEIGHTS=(\S+)", DOCKERFILE.read_text())[0])
        ignored = (ROOT / ".dockerignore").read_text().splitlines()
        sources = [source for line in re.findall(r"^COPY (?!--from)(.*)", text, re.M) for source in line.split()[:-1]]
        assert len(sources) > 5
        for source in sources:
            assert (ROOT / source).exists(), source
            assert f"!{Path(source).parts[0]}" in ignored

    def test_health_check_asks_what_is_there(self) -> None:
        asked = re.findall(r"\}(/\w+)\"", (DOCKERFILE.parent / "healthcheck.py").read_text())
        for role in COMMANDS:
            assert set(asked) < paths(role)


class TestCompose:
    @pytest.mark.parametrize("file", FILES)
    def test_images_and_mounted_files_are_there(self, file: str) -> None:
        parsed = compose(file)
        for name, service in parsed["services"].items():
            if "build" in service:
                target = service["build"]["target"]
                assert target in TARGETS and role_of(target) == name
                assert service["image"] == f"boundarymorph-{target}"
            for volume in service.get("volumes", []):
                source = volume.split(":")[0]
                there = (DOCKERFILE.parent / source).exists() if source.startswith(".") else source in parsed["volumes"]
                assert there, source

    def test_settings(self) -> None:
        """Of a process with the variables of its image and of both files; URLs lead to the ports of their roles."""
        services = compose(FILES[0])["services"]
        for name in COMMANDS:
            more = compose(FILES[1])["services"].get(name, {}).get("environment", {})
            given = {**stages()[services[name]["build"]["target"]].env, **services[name]["environment"], **more}
            settings = settings_from({key: re.sub(r"\$\{\w+:-(.*)\}", r"\1", value) for key, value in given.items()})
            assert settings.without_keys == (name != "gateway")
            for role in ("scorer", "retriever"):
                assert set(getattr(settings, role).url) <= {f"http://{role}:{PORTS[role]}"}
        first = PORTS["gateway"]
        assert services["gateway"]["ports"] == [f"127.0.0.1:{first}-{first + 3}:{first}"]  # for --scale gateway=4

    def test_all_are_confined(self) -> None:
        """Our images as `make images` ran them. The others write to their volumes alone, and can be replaced."""
        parsed, settings = compose(FILES[0]), settings_from({})
        assert parsed["networks"]["behind"] == {"internal": True}
        assert settings.limits.bytes_in_flight < 2 * 2**30  # strict uploads are kept in /tmp
        for name, service in parsed["services"].items():
            assert service["read_only"] is True
            assert service["cap_drop"] == ["ALL"]
            assert service["security_opt"] == ["no-new-privileges:true"]
            assert service["tmpfs"] == ["/tmp:size=2g"]
            if name in ("retriever", "scorer", "redis"):
                assert service["networks"] == ["behind"] and "ports" not in service
            if name in COMMANDS:
                longest = settings.grace_seconds + LAST_SECONDS
                assert int(service["stop_grace_period"].removesuffix("s")) >= longest + 5
            else:
                assert int(service["user"].partition(":")[0]) > 0
                assert re.fullmatch(rf"\$\{{{name.upper()}_IMAGE:-[\w./-]+:[\w.-]+\}}", service["image"])

    def test_prometheus_scrapes_every_role(self) -> None:
        config = yaml.safe_load((DOCKERFILE.parent / "prometheus/prometheus.yaml").read_text())
        (job,) = config["scrape_configs"]
        assert {each["names"][0]: each["port"] for each in job["dns_sd_configs"]} == PORTS
        mounted = compose(FILES[0])["services"]["prometheus"]["volumes"]
        assert any(
            volume.startswith("../deploy/prometheus/alerts.yaml:" + config["rule_files"][0]) for volume in mounted
        )
