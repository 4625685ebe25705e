"""Four tools for language models over the REST API, served by MCP and as functions for chat APIs."""
