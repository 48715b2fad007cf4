"""The control channel: who finds the head, who is believed, which port it takes."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm.agent.address import HeadPlaces, best_address, own_addresses
from slurm.agent.head import ControlPortError, Head
from slurm.agent.loop import Loop
from slurm.agent.member import HeadLostError, Member, find_head
from slurm.agent.ports import control_ports, is_free
from slurm.agent.wire import Link, is_proof, proof
from tests.slurm.trial_folder import wait_for

OTHER_TOKEN = "deadbeef" * 4


@pytest.fixture
def token() -> str:
    """A token whose first two candidate ports are free."""
    while True:
        token = secrets.token_hex(16)
        if all(is_free("127.0.0.1", port) for port in control_ports(token)[:2]):
            return token


def _places(folder: Path, token: str, ports: list[int] | None = None, **environ: str) -> HeadPlaces:
    return HeadPlaces(folder / "job.json", token, ports or control_ports(token), environ)


def _never() -> bool:
    return False


@pytest.fixture
def serve(token: str) -> Iterator[Callable[[], Head]]:
    """Runs the head of a trial of two nodes in a thread."""
    loops: list[tuple[Loop, Head, threading.Event, threading.Thread]] = []

    def starter() -> Head:
        loop = Loop()
        head = Head(loop, token, 2)
        done = threading.Event()

        def turn() -> None:
            while not done.is_set():
                loop.serve(0.02)
                head.tick(0.02)

        thread = threading.Thread(target=turn)
        thread.start()
        loops.append((loop, head, done, thread))
        return head

    yield starter
    for loop, head, done, thread in loops:
        done.set()
        thread.join()
        head.close()
        loop.close()


def test_the_head_is_found_and_obeyed(tmp_path: Path, token: str, serve: Callable[[], Head]) -> None:
    """With the right token a node joins; orders and reports of megabytes arrive whole in both directions."""
    head = serve()
    sock = find_head(_places(tmp_path, token), token, 1, 5.0, _never)
    loop = Loop()
    member = Member(loop, sock, lambda: {"events": 1})
    member.send("report", ranks=["x" * (5 << 20)])

    def reported() -> bool:
        loop.serve(0.02)
        member.tick(0.02)
        return head.nodes[1].report is not None

    wait_for(reported, "the report arrived")
    report = head.nodes[1].report
    assert report is not None
    assert len(report["ranks"][0]) == 5 << 20
    head.tell("start", port=5)

    def ordered() -> object:
        loop.serve(0.02)
        return member.next_order()

    assert wait_for(ordered, "the order arrived") == {"k": "start", "port": 5}
    assert head.nodes[1].reached == "127.0.0.1"
    member.close()
    loop.close()


@pytest.mark.parametrize(("known", "node"), [(OTHER_TOKEN, 1), (None, 2), (None, 0)])
def test_who_has_no_place_is_refused(
    tmp_path: Path, token: str, serve: Callable[[], Head], known: str | None, node: int
) -> None:
    """Another token, or a node that the trial has not, does not get in."""
    head = serve()
    places = _places(tmp_path, token, [head.port])
    with pytest.raises(HeadLostError, match="did not answer"):
        find_head(places, known or token, node, 0.5, _never)
    assert head.nodes[1].link is None


def test_a_second_agent_of_a_node_is_refused(tmp_path: Path, token: str, serve: Callable[[], Head]) -> None:
    """A node's place is given once."""
    serve()
    with find_head(_places(tmp_path, token), token, 1, 5.0, _never), pytest.raises(HeadLostError):
        find_head(_places(tmp_path, token), token, 1, 0.5, _never)


def test_a_node_may_try_again_until_it_has_joined(
    tmp_path: Path, token: str, serve: Callable[[], Head]
) -> None:
    """A connection that broke before the node told its facts is an attempt; afterwards it is a lost node."""
    head = serve()
    find_head(_places(tmp_path, token), token, 1, 5.0, _never).close()
    wait_for(lambda: head.nodes[1].link is None, "the head forgot it")
    assert head.nodes[1].lost is None
    with find_head(_places(tmp_path, token), token, 1, 5.0, _never) as sock:
        sock.sendall(b'{"k": "ready", "name": "n2", "errors": []}\n')
        wait_for(head.ready, "the node is ready")
    wait_for(head.lost, "the node is lost")
    assert "closed the connection" in str(head.nodes[1].lost)


def test_an_impostor_is_not_obeyed(tmp_path: Path, token: str) -> None:
    """A server that does not know the token is no head, and learns nothing that would make it one."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)

        def pretend() -> None:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(5)
                connection.sendall(b'{"k": "nonce", "nonce": "00"}\n')
                heard.append(connection.recv(4096))
                connection.sendall(b'{"k": "welcome", "proof": "00"}\n')

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(HeadLostError):
            find_head(_places(tmp_path, token, [server.getsockname()[1]]), token, 1, 0.5, _never)
        thread.join()
    assert token.encode() not in heard[0]
    assert json.loads(heard[0])["k"] == "join"


def test_a_proof_holds_for_one_place_and_one_moment(token: str) -> None:
    """Neither another node, role, nonce nor token gives the same proof."""
    good = proof(token, "node", 1, "a", "b")
    assert is_proof(good, proof(token, "node", 1, "a", "b"))
    others = [(token, "node", 2, "a", "b"), (token, "head", 1, "a", "b"), (token, "node", 1, "b", "a")]
    assert not any(is_proof(good, proof(*each)) for each in [*others, ("x", "node", 1, "a", "b")])
    assert not is_proof(None, good)


def test_a_stranger_with_a_long_line_is_dismissed(serve: Callable[[], Head]) -> None:
    """Before the handshake a line may be short only."""
    head = serve()
    with socket.create_connection(("127.0.0.1", head.port), timeout=5) as sock:
        sock.recv(4096)
        sock.sendall(b"x" * 10_000)
        assert sock.recv(4096) == b""


def test_the_next_candidate_is_taken(tmp_path: Path, token: str, serve: Callable[[], Head]) -> None:
    """A port of the list that somebody uses is passed over, on both sides."""
    first, second, *_ = control_ports(token)
    with socket.create_server(("", first)):
        assert serve().port == second
        find_head(_places(tmp_path, token), token, 1, 8.0, _never).close()


def test_without_a_free_port_there_is_no_channel(token: str) -> None:
    """All candidates taken is an error of its own."""
    loop = Loop()
    with contextlib.ExitStack() as stack:
        for port in control_ports(token):
            with contextlib.suppress(OSError):  # taken by somebody else is as good
                stack.enter_context(socket.create_server(("", port)))
        with pytest.raises(ControlPortError, match="none of the control ports"):
            Head(loop, token, 2)
    loop.close()


def test_addresses_come_from_everywhere(tmp_path: Path, token: str) -> None:
    """What the head wrote comes first, with its port; a job.json of another trial is not believed."""
    variables = {"SLURM_LAUNCH_NODE_IPADDR": "10.1.1.1", "SLURM_SRUN_COMM_HOST": "10.1.1.2"}
    places = _places(tmp_path, token, [1, 2], **variables)
    silent = [("10.1.1.1", [1, 2]), ("10.1.1.2", [1, 2]), ("127.0.0.1", [1, 2])]
    assert places.candidates() == silent
    job = {"token": token, "control": {"addresses": ["10.9.9.9"], "port": 7}}
    (tmp_path / "job.json").write_text(json.dumps(job))
    assert places.candidates() == [("10.9.9.9", [7]), *silent]
    (tmp_path / "job.json").write_text(json.dumps({**job, "token": "other"}))
    assert places.candidates() == silent


def test_ranks_meet_where_the_others_reached_the_head() -> None:
    """A loopback is chosen only when nobody came another way."""
    assert best_address(["127.0.0.1", "10.0.0.5", "127.0.0.1"]) == "10.0.0.5"
    assert best_address(["10.0.0.5", "10.0.0.6", "10.0.0.6"]) == "10.0.0.6"
    assert best_address(["127.0.0.1"]) == best_address([]) == "127.0.0.1"


def test_own_addresses_end_with_the_loopback() -> None:
    """Every interface is there, and what others cannot use comes last."""
    addresses = own_addresses()
    assert addresses[-1] == "127.0.0.1"
    for address in addresses:
        with socket.create_server((address, 0)):
            pass


def test_a_broken_line_ends_the_connection() -> None:
    """What is no message object breaks the link; what came before it is kept."""
    left, right = socket.socketpair()
    with left, right:
        link = Link(left)
        right.sendall(b'{"k": "beat"}\n[1]\n')
        assert link.receive() == [{"k": "beat"}]
        assert link.broken
