"""Offer four tools for language models by MCP, over the REST API."""
