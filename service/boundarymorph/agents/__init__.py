"""What language models are given: four tools over the REST API, by MCP and as functions of their own APIs."""
