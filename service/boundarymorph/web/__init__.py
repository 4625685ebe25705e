"""Serve the playground and the API description, which load nothing from other servers."""
