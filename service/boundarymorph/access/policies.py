"""Policies: defaults of requests, chosen where a client cannot send them itself."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import AliasChoices, BaseModel

from boundarymorph.errors import InvalidConfiguration, InvalidInput, UnknownPolicy
from boundarymorph.settings import Settings

DEFAULT = "default"
_MODEL = re.compile(r"(.*)@(?:(\d{1,9})|(\d{1,3}(?:\.\d{1,3})?)%)")


@dataclass(frozen=True, slots=True)
class Policy:
    """Fields of a request that names none of its own. share: of the documents in a request, in place of a budget."""

    name: str = DEFAULT
    fields: Mapping[str, Any] = field(default_factory=dict)
    share: float | None = None

    def applied(self, data: object, request: type[BaseModel], documents: object) -> object:
        """Return the body of a request with the fields that it leaves to the policy. documents: that are in it, a list
        if it is well formed."""
        if not isinstance(data, dict):
            return data
        defaults = dict(self.fields)
        if self.share is not None and isinstance(documents, list):
            defaults["budget"] = math.ceil(self.share * len(documents))
        for name, info in request.model_fields.items():
            alias = info.validation_alias
            spellings = alias.choices if isinstance(alias, AliasChoices) else [name]
            if any(data.get(str(spelling)) is not None for spelling in spellings):
                defaults.pop(name, None)
        known = {name: value for name, value in defaults.items() if name in request.model_fields}
        return {**data, **known}


class Policies:
    """The policies of a service: by name, and by key."""

    def __init__(self, settings: Settings, callers: Collection[str]) -> None:
        """callers: the names of all keys. Raises InvalidConfiguration for a policy of an unknown key."""
        self._named = {DEFAULT: Policy()}
        self._of_key: dict[str, Policy] = {}
        for name, given in settings.policies.items():
            fields = given.model_dump(exclude={"for_keys", "share"}, exclude_none=True)
            self._named[name] = Policy(name, fields, given.share)
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

        model: as it was sent; `NAME@20%` and `NAME@50` have a budget instead of the policy's, the latter only with the
        name of a policy. Raises UnknownPolicy for that of a path, InvalidInput for a share over 100 %.
        """
        text = model if isinstance(model, str) else ""
        found = _MODEL.fullmatch(text)
        name, calls, percent = found.groups() if found else (text, None, None)
        policy = self._named.get(name)
        if calls is not None and policy is None:
            calls = None  # the version of a model, rather than a budget
        if path is not None:
            policy = self._named.get(path)
            if policy is None:
                raise UnknownPolicy(f"there is no policy {path!r}; there is {', '.join(self.names)}")
        policy = policy or self._of_key.get(caller) or self._named[DEFAULT]
        if percent is not None and not 0 < float(percent) <= 100:
            raise InvalidInput(f"model: the share in {text[:100]!r} is not above 0 and at most 100 %")
        if percent is not None:
            return replace(policy, share=float(percent) / 100)
        if calls is not None:
            return replace(policy, share=None, fields={**policy.fields, "budget": int(calls)})
        return policy
