"""The checks of a machine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from slurm.doctor.check import Check, check_of
from slurm.doctor.machine import internet_check, landlock_abi, landlock_check, machine_checks


class _Refusing(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def server() -> Iterator[str]:
    """A web server on this machine that knows no page."""
    with HTTPServer(("127.0.0.1", 0), _Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_any_answer_is_internet(server: str) -> None:
    """A server that refuses is reachable all the same."""
    assert internet_check(server).status == "ok"


def test_no_answer_is_a_drawback_only() -> None:
    """Without internet everything but one advisor works."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        check = internet_check(f"http://127.0.0.1:{port}", 2.0)
    assert check.status == "warn"


def test_internet_is_not_tried_unasked() -> None:
    """The check is skipped unless it is asked for."""
    checks = {check.name: check for check in machine_checks(on_cluster=False, internet=False)}
    assert checks["internet"].status == "skipped"
    assert checks["git"].status == "ok"
    assert len(checks) == 9


def test_landlock_is_asked_of_the_kernel() -> None:
    """Either a version of at least 1, or none; none is a drawback."""
    abi = landlock_abi()
    assert abi is None or abi >= 1
    assert landlock_check(None).status == "warn"
    assert landlock_check(3).status == "ok"


def test_checks_travel_as_json() -> None:
    """A check made on a node arrives as it was."""
    check = Check("git", "machine", "ok", "git 2.39", "meaning", "hint")
    assert check_of(check.value()) == check
    assert check.on("n1").name == "node/git"
