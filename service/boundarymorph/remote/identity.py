"""Which model a server's description stands for."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

from boundarymorph.remote.urls import Endpoint
from boundarymorph.remote.wire import Description, Unusable

_ON_THE_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")  # OWNER/NAME, which no path of a folder should look like


def identified(description: Description, endpoint: Endpoint, address: str) -> Description:
    """The description, with a name under which results may be kept.

    A name that any server may give to any model says too little. Unless the server names a revision, or its model is
    one of the hub or of a hosted service, the operator's revision completes the name, or else a hash of `address`, the
    base URL of the first of all servers of the model.

    Raises Unusable for a server with another revision than the operator wants.
    """
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
