"""Four tools for language models over the REST API, served by MCP."""
