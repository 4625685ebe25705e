"""What a browser is given: the playground and the description of the API, without anything from another server."""
