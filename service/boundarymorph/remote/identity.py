"""The name under which a server's results are cached."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

from boundarymorph.remote.urls import Endpoint
from boundarymorph.remote.wire import Description, Unusable

_ON_THE_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")  # OWNER/NAME, which paths of folders rarely look like


def identified(description: Description, endpoint: Endpoint, address: str) -> Description:
    """Return the description with a name that identifies the model, so that results can be cached under it.

    A name that any server may give to any model does not identify it. Unless the server names a revision, or its model
    belongs to the hub or to a hosted service, the operator's revision is appended or, without one, a hash of `address`,
    the base URL of the first server of the model. How the operator has logits read is part of the name.

    Raises Unusable if the server has another revision than the operator's.
    """
    if endpoint.activation == "sigmoid":
        description = replace(description, name=f"{description.name}/sigmoid")
    named, wanted = description.revision, endpoint.revision
    if named is not None:
        if wanted is not None and not (named.startswith(wanted) or wanted.startswith(named)):
            raise Unusable(f"it serves revision {named}, not {wanted}: give the commit, or leave the revision out")
        return description
    if wanted is None:
        hosted = endpoint.base == endpoint.dialect.home
        if hosted or (description.weights is not None and _ON_THE_HUB.fullmatch(description.weights)):
            return description
        wanted = hashlib.sha256(address.encode()).hexdigest()[:8]
    return replace(description, name=f"{description.name}@{wanted}")
