"""How long tests wait for what should take a moment."""

PATIENCE = 300.0  # seconds, for a machine that is busy with other work
