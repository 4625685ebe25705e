"""Import the modules that a gateway imports.

The image keeps the bytecode of only these modules. The other bytecode would take 30 MB.
"""

# ruff: noqa: F401
import opentelemetry.exporter.otlp.proto.http.trace_exporter
import redis.asyncio
import uvicorn.lifespan.on
import uvicorn.loops.auto
import uvicorn.protocols.http.auto

import boundarymorph.agents.tools
import boundarymorph.caching.build
import boundarymorph.caching.redis
import boundarymorph.cli.main
import boundarymorph.retrieval.remote
import boundarymorph.server.app
import boundarymorph.server.process
