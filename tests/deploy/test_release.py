"""Test the checks before a release."""

from pathlib import Path

import pytest
import yaml

from deploy import release

ROOT = Path(__file__).parents[2]
CHANGELOG = "# Changelog\n\n## Unreleased\n\n- new\n\n## 1.0.0 - 2026-11-25\n\n### Added\n- old\n\n## 0.9.0\n\n"


def test_release_notes_are_the_changelog_section_of_the_version() -> None:
    assert release.notes(CHANGELOG, "1.0.0", tagged=False) == "- new\n"
    assert release.notes(CHANGELOG, "1.0.0", tagged=True) == "### Added\n- old\n"
    assert release.notes(CHANGELOG.replace("Unreleased", "1.1.0"), "1.1.0", tagged=False) == "- new\n"


@pytest.mark.parametrize("version", ["1.0", "1.1.0", "0.9.0"])
def test_release_refuses_a_tag_without_a_changelog_section(version: str) -> None:
    with pytest.raises(release.NotReady, match=f"no section '## {version}'"):
        release.notes(CHANGELOG, version, tagged=True)


def test_release_packages_are_exactly_the_expected_ones(tmp_path: Path) -> None:
    with pytest.raises(release.NotReady) as error:
        release.packages(tmp_path, "1.0.0")
    names = str(error.value).partition(" and has ")[0].split("'")[1::2]
    assert len(names) == 6
    for name in names:
        (tmp_path / name).touch()
    assert [path.name for path in release.packages(tmp_path, "1.0.0")] == names
    (tmp_path / "boundarymorph-0.9.0-py3-none-any.whl").touch()
    with pytest.raises(release.NotReady, match=r"has \['boundarymorph-0\.9\.0-py3-none-any\.whl'\] in excess"):
        release.packages(tmp_path, "1.0.0")


def test_release_workflow_publishes_without_secrets() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    jobs = yaml.safe_load(text)["jobs"]
    commands = [step.get("run", "") for step in jobs["build"]["steps"]]
    assert any(command.startswith("make release TAG=") for command in commands)
    for job in ("pypi", "npm"):
        assert jobs[job]["needs"] == "build"
        assert jobs[job]["permissions"] == {"id-token": "write"}
    assert "secrets." not in text


def test_release_packages_share_one_version() -> None:
    assert release.version()
