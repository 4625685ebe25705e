from tests.api.conftest import client, settings

__all__ = ["client", "settings"]
