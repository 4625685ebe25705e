"""The pages of the service, the playground and the API description, which load nothing from other servers."""
