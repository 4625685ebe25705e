"""`boundarymorph ray`: prints the settings as a configuration of Ray Serve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from pydantic import SecretStr

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.settings import Settings
from boundarymorph.settings.settings import SESSIONS

CODE = "boundarymorph.server.ray_serve"
OF_A_PROCESS = {"host", "port", "workers", "drain_seconds"}
OF_CALLS = {"timeout_seconds", "attempt_seconds", "connections"}  # settings for calls to servers, not for their models
DOCUMENTS = "documents"  # the resource of the node that has the indexes on its disk
ONGOING = 64  # concurrent calls of a retriever or a scorer
QUEUED = 512  # calls that may wait for a scorer in each proxy
RETRY_AFTER = 1  # seconds
MASKED = str(SecretStr("any"))  # as pydantic dumps each secret


def ray(
    port: Annotated[int, typer.Option(help="Port of the proxies, one on each node.")] = 8000,
    max_replicas: Annotated[int, typer.Option(min=1, help="The most gateways, and the most scorers.")] = 8,
    cpus: Annotated[float, typer.Option(min=0, help="CPUs of a replica.")] = 1,
    gpus: Annotated[float, typer.Option(min=0, help="GPUs of a scorer.")] = 0,
) -> None:
    """Print the settings in force as a configuration for `serve deploy`: gateway, retriever and scorer on Ray Serve."""
    import yaml

    printed = configuration(Settings.load(), port, max_replicas, cpus, gpus)
    typer.echo(yaml.safe_dump(printed, sort_keys=False), nl=False)


def configuration(settings: Settings, port: int, max_replicas: int, cpus: float, gpus: float) -> dict[str, Any]:
    """Return the configuration for Ray Serve. It contains no secrets: each node has them in its environment.

    Raises InvalidConfiguration for a service without keys, as others could use it.
    """
    if not settings.keys and not settings.without_keys:
        raise InvalidConfiguration("every node of Ray answers: give keys, or set without_keys")
    arguments = _arguments(settings, port)
    deployments = _deployments(settings, max_replicas, cpus, gpus)
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": "0.0.0.0", "port": port},  # noqa: S104
        "applications": [
            {
                "name": name,
                "route_prefix": _prefix(name),
                "import_path": f"{CODE}:{name}",
                "args": arguments[name],
                "deployments": [{"name": name, **_common(settings), **options}],
            }
            for name, options in deployments.items()
            if name == "gateway" or not getattr(settings, name).url
        ],
    }


def _arguments(settings: Settings, port: int) -> dict[str, dict[str, Any]]:
    """Return the settings of each role that differ from the defaults. The gateway's URLs are those of its node's
    proxy."""
    given = _given(settings)
    gateway = _without(given, "milvus", "stores")
    for role in ("retriever", "scorer"):
        section = given.get(role, {})
        if "url" not in section:
            calls = {name: value for name, value in section.items() if name in OF_CALLS}
            gateway[role] = {**calls, "url": [f"http://127.0.0.1:{port}{_prefix(role)}"]}
    return {
        "gateway": gateway,
        "retriever": _without(given, "scorer", "retriever"),
        "scorer": _without(given, "retriever", "milvus", "stores"),
    }


def _deployments(settings: Settings, most: int, cpus: float, gpus: float) -> dict[str, dict[str, Any]]:
    """Return the options that are each role's own. most: replicas of a role."""
    retriever = _scaled(most, ONGOING, cpus)
    if settings.milvus.url is None:  # it is one, on the node that has the documents
        place = {"num_cpus": cpus, "resources": {DOCUMENTS: 1}}
        retriever = {"num_replicas": 1, "max_ongoing_requests": ONGOING, "ray_actor_options": place}
    scorer = {**_scaled(most, ONGOING, cpus), "ray_actor_options": {"num_cpus": cpus, "num_gpus": gpus}}
    # A gateway ends after the calls that it has made, which wait in a proxy while their own replica is replaced.
    patience = settings.grace_seconds + settings.retriever.timeout_seconds
    sessions = settings.limits.sessions or SESSIONS  # as its scorer is elsewhere
    gateway = {**_scaled(most, sessions, cpus), "graceful_shutdown_timeout_s": patience}
    return {
        "scorer": {**scorer, "max_queued_requests": QUEUED},
        "retriever": {**retriever, "max_queued_requests": settings.work.search_waiting},
        "gateway": {**gateway, "max_queued_requests": settings.limits.waiting},
    }


def _common(settings: Settings) -> dict[str, Any]:
    """Return the options of all deployments."""
    return {
        "backpressure_config": {"status_code": 429, "retry_after_s": RETRY_AFTER},
        "graceful_shutdown_timeout_s": settings.grace_seconds,
        "health_check_period_s": settings.ready_interval_seconds,
        "health_check_timeout_s": settings.ready_timeout_seconds,
    }


def _prefix(role: str) -> str:
    return "/" if role == "gateway" else f"/{role}"


def _scaled(most: int, ongoing: int, cpus: float) -> dict[str, Any]:
    """Return an autoscaling configuration that keeps each replica at half of its concurrent requests."""
    scaling = {"min_replicas": 1, "max_replicas": most, "target_ongoing_requests": max(1, ongoing // 2)}
    place = {"num_cpus": cpus}
    return {"max_ongoing_requests": ongoing, "autoscaling_config": scaling, "ray_actor_options": place}


def _given(settings: Settings) -> dict[str, Any]:
    """Return the settings that differ from the defaults, as plain data without secrets."""
    return _without_secrets(settings.model_dump(mode="json", exclude_unset=True, exclude=OF_A_PROCESS))


def _without_secrets(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_secrets(value) if isinstance(value, dict) else value
        for name, value in values.items()
        if value != MASKED
    }


def _without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}
