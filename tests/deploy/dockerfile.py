"""Read docker/Dockerfile stage by stage."""

import re
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

DOCKERFILE = Path(__file__).parents[2] / "docker/Dockerfile"
REQUIREMENTS = DOCKERFILE.parent / "requirements"
TARGETS = ("gateway", "retriever-cpu", "retriever-gpu", "scorer-cpu", "scorer-gpu")


@dataclass
class Stage:
    """The contents of a stage, including those of its parents.

    `requirements` are the files that pip installs.
    """

    requirements: list[Path] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    copies_from: list[str] = field(default_factory=list)
    command: str = ""
    ports: list[int] = field(default_factory=list)


def stages() -> dict[str, Stage]:
    """Return all stages by name."""
    found: dict[str, Stage] = {}
    stage = Stage()
    for line in DOCKERFILE.read_text().replace("\\\n", " ").splitlines():
        instruction, _, rest = line.partition(" ")
        match instruction:
            case "FROM":
                parent, name = rest.split(" AS ")
                stage = found[name] = deepcopy(found.get(parent, Stage()))
            case "RUN":
                stage.requirements += [REQUIREMENTS / f"{name}.txt" for name in re.findall(r"-r (\S+)\.txt", rest)]
            case "ENV":
                stage.env |= dict(variable.split("=", 1) for variable in rest.split())
            case "COPY":
                stage.copies_from += re.findall(r"--from=(\S+)", rest)
            case "CMD":
                stage.command = rest
            case "EXPOSE":
                stage.ports.append(int(rest))
    return found


def requirements(target: str) -> list[Path]:
    """Return the requirement files that are installed in a target."""
    there = stages()
    return [path for stage in there[target].copies_from for path in there[stage].requirements]
