"""What every test has."""

from __future__ import annotations

from tests.stateful import profile as profile  # its profile is known before the command line is read
