"""Policies: defaults of requests, chosen where a client cannot send them itself."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import AliasChoices, BaseModel, TypeAdapter, ValidationError

from boundarymorph.errors import InvalidConfiguration, InvalidInput, UnknownPolicy
from boundarymorph.settings import Settings
from boundarymorph.settings.sections import Calls

DEFAULT = "default"
SHOWN = 100  # characters of a name, in messages
SUFFIX: TypeAdapter[Calls] = TypeAdapter(Calls)


def share_of(share: float, count: int) -> int:
    """Return the calls that are a share of so many documents, rounded up, and one at least."""
    return math.ceil(round(share * count, 6))


@dataclass(frozen=True, slots=True)
class Policy:
    """Fields of a request that names none of its own. A budget below 1 is a share of the documents in the request."""

    name: str = DEFAULT
    fields: Mapping[str, Any] = field(default_factory=dict)

    def applied(self, data: object, request: type[BaseModel], documents: object) -> object:
        """Return the body of a request with the fields that it leaves to the policy. documents: that are in it, a list
        if it is well formed."""
        if not isinstance(data, dict):
            return data
        defaults = dict(self.fields)
        if isinstance(share := defaults.get("budget"), float):
            defaults["budget"] = share_of(share, len(documents)) if isinstance(documents, list) else None
        if data.get("index") is not None:
            defaults.pop("memory", None)  # it has its own
        for name, info in request.model_fields.items():
            alias = info.validation_alias
            spellings = alias.choices if isinstance(alias, AliasChoices) else [name]
            if any(data.get(str(spelling)) is not None for spelling in spellings):
                defaults.pop(name, None)
        known = {name: defaults[name] for name in request.model_fields if defaults.get(name) is not None}
        return {**data, **known}


class Policies:
    """The policies of a service: by name, and by key."""

    def __init__(self, settings: Settings, callers: Collection[str]) -> None:
        """callers: the names of all keys. Raises InvalidConfiguration for a policy of an unknown key."""
        self._named = {DEFAULT: Policy()}
        self._of_key: dict[str, Policy] = {}
        for name, given in settings.policies.items():
            self._named[name] = Policy(name, given.model_dump(exclude={"for_keys"}, exclude_none=True))
            for key in given.for_keys:
                if key not in callers:
                    raise InvalidConfiguration(f"policies.{name}.for_keys: there is no key named {key!r}")
                self._of_key[key] = self._named[name]

    @property
    def names(self) -> list[str]:
        """Of all policies."""
        return sorted(self._named)

    def of(self, caller: str, path: str | None = None, model: object = None) -> Policy:
        """Return the policy that the path names, else the one that `model` names, else that of the caller's key.

        path, model: as they were sent; `NAME@50`, `NAME@0.2` and `NAME@auto` have a budget in place of the policy's.
        Raises UnknownPolicy for that of a path, and InvalidInput for what is no budget.
        """
        if path is not None:
            if found := self._chosen(path):
                return found
            raise UnknownPolicy(f"there is no policy {path[:SHOWN]!r}; there is {', '.join(self.names)}")
        found = self._chosen(model) if isinstance(model, str) else None
        return found or self._of_key.get(caller) or self._named[DEFAULT]

    def _chosen(self, text: str) -> Policy | None:
        name, at, budget = text.partition("@")
        policy = self._named.get(name)
        if policy is None or not at:
            return policy
        try:
            return replace(policy, fields={**policy.fields, "budget": SUFFIX.validate_python(budget)})
        except ValidationError:
            raise InvalidInput(
                f"{text[:SHOWN]!r}: after the name of a policy and @ comes a number of calls (@50), a share of the "
                "documents (@0.2) or @auto"
            ) from None
