"""Connections and sockets of the agent's machine, which is this one."""

import asyncio
import contextlib
import errno
import os
import pathlib
import socket
import stat
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator

import pytest
from conftest import LIMIT_SECONDS, Daemon, until
from test_process import ended, program

import telexec
import telexec.aio


def echo(connection: socket.socket) -> None:
    """Answers once it has all, so only if a half-close is carried."""
    data = b"".join(iter(lambda: connection.recv(65536), b""))
    connection.sendall(data[::-1])


@contextlib.contextmanager
def server(serve: Callable[[socket.socket], None], path: pathlib.Path | None = None) -> Iterator[str]:
    """A server on this machine, for any number of connections."""
    listener = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
    listener.bind(str(path) if path else ("127.0.0.1", 0))
    listener.listen()

    def one(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            serve(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    yield f"unix://{path}" if path else "{}:{}".format(*listener.getsockname())
    listener.shutdown(socket.SHUT_RDWR)
    accepting.join(LIMIT_SECONDS)
    listener.close()


def closed_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return "{}:{}".format(*free.getsockname())


def connect(forward: telexec.Forward | telexec.aio.Forward) -> socket.socket:
    address = forward.address
    connection = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
    connection.settimeout(LIMIT_SECONDS)
    connection.connect(address)
    return connection


def refuses(forward: telexec.Forward | telexec.aio.Forward) -> bool:
    """An agent hears a moment later that it is to listen no more; what connects in that moment may be reset."""
    try:
        connect(forward).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        pass
    return False


def asked(forward: telexec.Forward | telexec.aio.Forward, data: bytes) -> bytes:
    with connect(forward) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_connection_carries_both_directions(agent: telexec.Agent, tmp_path: pathlib.Path, kind: str) -> None:
    data = os.urandom(300_000)
    with server(echo, tmp_path / "s" if kind == "unix" else None) as address, agent.dial(address) as connection:
        connection.write(data)
        connection.close_write()
        first = connection.read(10)
        assert 0 < len(first) <= 10
        assert connection.read(0) == b""
        assert first + connection.read() == data[::-1]
        assert connection.read(1) == connection.read() == b""
        with pytest.raises(BrokenPipeError):
            connection.write(b"more")
    with pytest.raises(telexec.Error, match="closed"):
        connection.read()
    connection.close()


def test_what_was_written_before_the_end_arrives(agent: telexec.Agent) -> None:
    arrived = threading.Event()
    found: list[bytes] = []

    def gather(connection: socket.socket) -> None:
        found.append(b"".join(iter(lambda: connection.recv(65536), b"")))
        arrived.set()

    with server(gather) as address:
        with agent.dial(address) as connection:
            connection.write("last words")
        assert arrived.wait(LIMIT_SECONDS)
    assert found == [b"last words"]


def test_a_reset_is_told(agent: telexec.Agent) -> None:
    def reset(connection: socket.socket) -> None:
        connection.recv(1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    with server(reset) as address, agent.dial(address) as connection:
        connection.write(b"x")
        with pytest.raises(ConnectionResetError):
            connection.read()


def test_closing_ends_a_read_in_another_thread(agent: telexec.Agent) -> None:
    with server(lambda connection: drop(connection.recv(1))) as address:
        connection = agent.dial(address)
        connection.write(b"")
        closing = threading.Timer(0.1, connection.close)
        closing.start()
        with pytest.raises(telexec.Error, match="closed"):
            connection.read()


def drop(_: object) -> None: ...


def test_errors_are_those_of_the_system(agent: telexec.Agent, tmp_path: pathlib.Path) -> None:
    address = closed_port()
    with pytest.raises(ConnectionRefusedError, match="cannot connect to 127") as refused:
        agent.dial(address)
    assert isinstance(refused.value, telexec.ForwardError) and isinstance(refused.value, telexec.Error)
    assert (refused.value.errno, refused.value.address) == (errno.ECONNREFUSED, address)
    with pytest.raises(FileNotFoundError):
        agent.dial(f"unix://{tmp_path}/none")
    with pytest.raises(socket.gaierror):
        agent.dial("none.invalid:1")
    with server(echo) as taken:
        for listen in (agent.forward, agent.reverse):
            with pytest.raises(telexec.ForwardError, match="cannot listen on 127") as in_use:
                listen(address, listen=taken)
            assert in_use.value.errno == errno.EADDRINUSE


WRONG = ["", "web1", "80", ":80", "h:", "h:x", "h:+1", "h:65536", "a:b:1", "[::1]", "unix://a", "h:0"]


@pytest.mark.parametrize("address", WRONG)
def test_wrong_addresses_are_invalid(agent: telexec.Agent, address: str) -> None:
    for ask in (agent.dial, agent.forward, agent.reverse):
        with pytest.raises(telexec.Invalid, match=r"^(to|address): "):
            ask(address)
    if address != "h:0":
        with pytest.raises(telexec.Invalid, match="^listen: "):
            agent.forward("h:1", listen=address)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_connections_are_forwarded(agent: telexec.Agent, direction: str) -> None:
    with server(echo) as to, getattr(agent, direction)(to) as forward:
        host, port = forward.address
        assert host == "127.0.0.1" and port > 0
        data = os.urandom(300_000)
        for _ in range(3):
            assert asked(forward, data) == data[::-1]
    until(lambda: refuses(forward), "nothing listens")
    forward.close()
    forward.wait()


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_unix_sockets_are_forwarded(agent: telexec.Agent, tmp_path: pathlib.Path, direction: str) -> None:
    path = tmp_path / "listens"
    with server(echo, tmp_path / "s") as to, getattr(agent, direction)(to, listen=f"unix://{path}") as forward:
        assert forward.address == str(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert asked(forward, b"abc") == b"cba"
        if direction == "forward":
            with pytest.raises(telexec.ForwardError):
                agent.forward(to, listen=str(path))
    until(lambda: not path.exists(), "it is removed")


@pytest.mark.skipif(os.getuid() != 0, reason="only an agent of root can change users")
def test_unix_sockets_are_reached_as_a_user(daemon: Daemon, agent: telexec.Agent) -> None:
    def tell(connection: socket.socket) -> None:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        connection.sendall(str(struct.unpack("3i", credentials)[1]).encode())
        connection.recv(1)

    async def main(to: str) -> tuple[bytes, bytes]:
        agent = await telexec.aio.connect(daemon.uri)
        async with agent.dial(to, user="nobody") as connection:
            dialled = await connection.read(5)
        async with agent.forward(to, user="nobody") as forward:
            return dialled, asked(forward, b"")

    # where other users come in, unlike pytest's own
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "s"
        with server(tell, path) as to:
            for open_to_all in (path.parent, path):
                open_to_all.chmod(0o777)
            for user, uid in [(None, b"0"), ("nobody", b"65534"), ("65534", b"65534")]:
                with agent.dial(to, user=user) as connection:
                    assert connection.read(5) == uid
                with agent.forward(to, user=user) as forward:
                    assert asked(forward, b"") == uid
            assert asyncio.run(main(to)) == (b"65534", b"65534")
            path.chmod(0o600)
            with pytest.raises(PermissionError):
                agent.dial(to, user="nobody")
            with pytest.raises(telexec.Invalid, match="^user: "):
                agent.dial(to, user="nobody-of-that-name")
    for ask in (agent.dial, agent.forward):
        with pytest.raises(telexec.Invalid, match="^user: .*Unix sockets"):
            ask("127.0.0.1:1", user="nobody")


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_the_end_of_the_block_resets_connections(agent: telexec.Agent, direction: str) -> None:
    def greet(connection: socket.socket) -> None:
        connection.sendall(b"hello")
        connection.recv(1)

    with server(greet) as to:
        with getattr(agent, direction)(to) as forward:
            connection = connect(forward)
            assert connection.recv(5) == b"hello"
        with connection, pytest.raises(ConnectionResetError):
            connection.recv(1)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_one_that_cannot_be_connected_is_reset(agent: telexec.Agent, direction: str) -> None:
    with getattr(agent, direction)(closed_port()) as forward:
        for _ in range(2):
            with pytest.raises(ConnectionResetError):
                asked(forward, b"")


def test_asyncio(daemon: Daemon) -> None:
    async def main(to: str) -> None:
        agent = await telexec.aio.connect(daemon.uri)
        async with agent.dial(to) as connection:
            reading = asyncio.create_task(connection.read(1))
            await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait([reading])
            await connection.write(b"abc")
            await connection.close_write()
            assert await connection.read() == b"cba"
        for start in (agent.forward, agent.reverse):
            async with start(to) as forward:
                assert await asyncio.to_thread(asked, forward, b"abc") == b"cba"
            await forward.wait()
        with pytest.raises(ConnectionRefusedError):
            await agent.dial(closed_port())

    with server(echo) as to:
        asyncio.run(main(to))


def test_a_program_that_ends_leaves_nothing(daemon: Daemon, mark: str) -> None:
    with server(echo) as to:
        text = f"""
            import threading
            held = [agent.dial({to!r}), agent.forward({to!r}), agent.reverse({to!r})]
            threading.Thread(target=held[0].read, daemon=True).start()
            print(*held[2].address)
        """
        code, said, stderr = ended(program(daemon, mark, text))
        assert code == 0 and "panicked" not in stderr, stderr
        host, port = said.split()

        def is_free() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex((host, int(port))) == errno.ECONNREFUSED

        until(is_free, "the agent listens no more")


def test_a_fork_has_nothing_of_it(daemon: Daemon, mark: str) -> None:
    with server(echo) as to:
        text = f"""
            import os, telexec
            connection, forward = agent.dial({to!r}), agent.forward({to!r})
            pid = os.fork()
            if not pid:
                for call in (connection.read, connection.close, forward.close, forward.wait):
                    try:
                        call()
                    except telexec.Error as error:
                        print("fork" in str(error))
                print(end="", flush=True)
                os._exit(0)
            os.waitpid(pid, 0)
            connection.write("ab")
            connection.close_write()
            print(connection.read())
        """
        assert ended(program(daemon, mark, text)) == (0, "True\n" * 4 + "b'ba'\n", "")


def test_reads_that_are_cancelled_lose_nothing(daemon: Daemon) -> None:
    data = os.urandom(200_000)

    async def main(to: str) -> bytes:
        received = b""
        agent = await telexec.aio.connect(daemon.uri)
        async with await agent.dial(to) as connection:
            # each is cancelled a few steps of the event loop later, whether it has a result by then or not
            while len(received) < len(data):
                reading = asyncio.create_task(connection.read(1009))
                for _ in range(len(received) % 40):
                    await asyncio.sleep(0)
                reading.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    received += await reading
                if not reading.cancelled():
                    continue
                received += await connection.read(1)
        return received

    with server(lambda connection: connection.sendall(data)) as to:
        assert asyncio.run(main(to)) == data
