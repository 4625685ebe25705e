"""Test the systemd unit and the nginx configuration for a machine without containers."""

import re
from pathlib import Path

from boundarymorph.server.process import LAST_SECONDS
from boundarymorph.settings import Settings

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = (DEPLOY / "systemd" / "boundarymorph@.service").read_text()
PROXY = (DEPLOY / "nginx" / "boundarymorph.conf").read_text()


def test_systemd_stop_timeout_exceeds_drain_and_grace() -> None:
    settings = Settings()
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)
    assert int(seconds) > settings.drain_seconds + settings.grace_seconds + LAST_SECONDS


def test_deployment_page_starts_the_ports_that_nginx_uses() -> None:
    page = (DEPLOY.parent / "docs" / "deployment.md").read_text()
    (started,) = re.findall(r"^systemctl enable --now (.*)$", page, re.MULTILINE)
    asked = re.findall(r"^ +server 127\.0\.0\.1:(\d+) ", PROXY, re.MULTILINE)
    assert started.split() == [f"boundarymorph@{port}" for port in asked]
