"""The SDK for Python, as it comes, call by call: sync.py BIN_DIRECTORY [PART...]"""

import base64
import gzip
import io
import os
import sys
import time
import urllib.request

import httpx

from e2b_site import IS_ROOT, KEY, Site, fails, run
import e2b
from e2b import Sandbox

# nobody else on this machine sleeps as long
NAP = os.getpid()
site = sandbox = None


def commands():
    result = sandbox.commands.run("echo out; echo err >&2; echo $0")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n/bin/bash\n", "err\n", 0), result
    error = fails(e2b.CommandExitException, lambda: sandbox.commands.run("echo no; exit 3"))
    assert (error.exit_code, error.stdout, error.error) == (3, "no\n", "exit status 3"), error

    heard = []
    sandbox.commands.run("printf ä; sleep 0.2; printf b >&2", on_stdout=heard.append, on_stderr=lambda text: heard.append(text + "!"))
    assert heard == ["ä", "b!"], heard
    big = sandbox.commands.run("head -c 3000000 /dev/zero | tr '\\0' x").stdout
    assert big == "x" * 3_000_000

    run = lambda text, **options: sandbox.commands.run(text, **options).stdout.strip()
    home = run("echo $HOME")
    assert run("pwd") == home and home.endswith(sandbox.sandbox_id), home
    assert run("echo $A $B", envs={"B": "own"}) == "given own"
    sandbox.files.make_dir("sub/dir")
    assert run("pwd", cwd="sub/dir") == f"{home}/sub/dir" and run("pwd", cwd="/") == "/"
    fails(e2b.InvalidArgumentException, lambda: run("pwd", cwd="/nowhere"), "/nowhere")
    fails(e2b.InvalidArgumentException, lambda: run("pwd", user="nobody-at-all"), "nobody-at-all")
    me = run("id -un")
    assert run("id -un; pwd", user=me, cwd="/") == f"{me}\n/"


def timeouts():
    began = time.monotonic()
    fails(e2b.TimeoutException, lambda: sandbox.commands.run(f"sleep {NAP}0 & sleep {NAP}1", timeout=1))
    assert time.monotonic() - began < 10
    site.until("the end of all processes", lambda: not sandbox.commands.list())
    site.until("the end of its child", lambda: sandbox.commands.run(f"pgrep -fc '^sleep {NAP}[01]' || true").stdout == "0\n")


def background():
    handle = sandbox.commands.run("echo begun; sleep 1; echo done; exit 4", background=True)
    (process,) = sandbox.commands.list()
    assert process.pid == handle.pid and process.cmd == "/bin/bash" and process.args[:2] == ["-l", "-c"], process
    assert process.cwd.endswith(sandbox.sandbox_id), process
    error = fails(e2b.CommandExitException, handle.wait)
    assert error.exit_code == 4 and error.stdout == "begun\ndone\n"

    # a dropped stream leaves it running, and another one follows from then on
    handle = sandbox.commands.run("for n in 1 2 3 4 5 6 7 8 9; do echo $n; sleep 0.3; done", background=True)
    handle.disconnect()
    time.sleep(0.5)
    followed = sandbox.commands.connect(handle.pid).wait()
    assert followed.exit_code == 0 and followed.stdout.endswith("8\n9\n") and not followed.stdout.startswith("1\n"), followed
    fails(e2b.NotFoundException, lambda: sandbox.commands.connect(handle.pid))

    handle = sandbox.commands.run("sleep 300", background=True)
    assert sandbox.commands.kill(handle.pid) is True
    error = fails(e2b.CommandExitException, handle.wait)
    assert error.exit_code == -1 and error.error == "signal: killed", error
    assert sandbox.commands.kill(handle.pid) is False and handle.kill() is False
    assert sandbox.commands.list() == []


def stdin():
    handle = sandbox.commands.run("cat; echo end", background=True, stdin=True)
    sandbox.commands.send_stdin(handle.pid, "one\n")
    handle.send_stdin(b"two\n")
    sandbox.commands.stream_input(handle.pid, (f"{n}\n" for n in range(3)))
    handle.close_stdin()
    assert handle.wait().stdout == "one\ntwo\n0\n1\n2\nend\n"
    fails(e2b.NotFoundException, lambda: sandbox.commands.send_stdin(handle.pid, "late"))
    assert sandbox.commands.run("cat").stdout == ""
    handle = sandbox.commands.run("sleep 30", background=True)
    fails(e2b.SandboxException, lambda: handle.send_stdin("x"), "input")
    handle.kill()


def pty():
    heard = bytearray()
    terminal = sandbox.pty.create(e2b.PtySize(rows=30, cols=90), envs={"PS1": "$ "})
    sandbox.pty.send_stdin(terminal.pid, b"stty size; tty\n")
    sandbox.pty.resize(terminal.pid, e2b.PtySize(rows=31, cols=91))
    sandbox.pty.stream_input(terminal.pid, ["stty size\n", "echo $TERM; ", "exit 5\n"])
    error = fails(e2b.CommandExitException, lambda: terminal.wait(on_pty=heard.extend))
    assert error.exit_code == 5 and b"31 91" in heard and b"/dev/pts/" in heard and b"xterm-256color" in heard, heard

    terminal = sandbox.pty.create(e2b.PtySize(rows=30, cols=90))
    terminal.disconnect()
    again, heard = sandbox.pty.connect(terminal.pid), bytearray()
    sandbox.pty.send_stdin(terminal.pid, b"echo $((20 + 1)); exit\n")
    again.wait(on_pty=heard.extend)
    assert b"21" in heard, heard
    terminal = sandbox.pty.create(e2b.PtySize(rows=30, cols=90))
    assert sandbox.pty.kill(terminal.pid) is True
    site.until("its end", lambda: not sandbox.commands.list())
    assert sandbox.pty.kill(terminal.pid) is False


def files():
    home = sandbox.commands.run("pwd").stdout.strip()
    info = sandbox.files.write("new/hello.txt", "hellö")
    assert (info.path, info.name) == (f"{home}/new/hello.txt", "hello.txt"), info
    assert sandbox.files.read("new/hello.txt") == "hellö" == sandbox.files.read(f"{home}/new/hello.txt")
    assert bytes(sandbox.files.read("~/new/hello.txt", format="bytes")) == "hellö".encode()
    blob = os.urandom(3_000_000)
    sandbox.files.write("blob", blob)
    with sandbox.files.read("blob", format="stream") as stream:
        assert b"".join(stream) == blob
    sandbox.files.write("packed", blob + bytes(2_000_000), gzip=True)
    assert bytes(sandbox.files.read("packed", format="bytes", gzip=True)) == blob + bytes(2_000_000)
    sandbox.files.write("streamed", io.BytesIO(blob))
    sandbox.files.write("iterated", iter([b"a", b"b"]), use_octet_stream=True)
    assert bytes(sandbox.files.read("streamed", format="bytes")) == blob and sandbox.files.read("iterated") == "ab"
    written = sandbox.files.write_files([{"path": f"many/{n} ü.txt", "data": str(n)} for n in range(3)])
    assert [one.name for one in written] == ["0 ü.txt", "1 ü.txt", "2 ü.txt"], written
    assert sandbox.files.read("many/2 ü.txt") == "2"
    sandbox.files.write("empty", b"")
    assert sandbox.files.read("empty") == ""

    fails(e2b.FileNotFoundException, lambda: sandbox.files.read("absent"))
    fails(e2b.InvalidArgumentException, lambda: sandbox.files.read("many"))
    fails(e2b.InvalidArgumentException, lambda: sandbox.files.write("a", "b", metadata={"k": "v"}), "metadata")


def directories():
    home = sandbox.commands.run("mkdir -p d/e/f; echo 12345 > d/file; ln -s file d/link; chmod 640 d/file; pwd").stdout.strip()
    assert sandbox.files.exists("d/file") is True and sandbox.files.exists("d/none") is False
    entry = sandbox.files.get_info("d/file")
    assert (entry.size, entry.mode, entry.permissions, entry.path) == (6, 0o640, "-rw-r-----", f"{home}/d/file"), entry
    assert abs(entry.modified_time.timestamp() - time.time()) < 60
    link = sandbox.files.get_info("d/link")
    assert link.symlink_target == "file" and link.type == e2b.FileType.SYMLINK, link
    names = lambda path, depth=1: [(one.name, one.type and one.type.value) for one in sandbox.files.list(path, depth=depth)]
    assert names("d") == [("e", "dir"), ("file", "file"), ("link", "symlink")], names("d")
    assert [name for name, _ in names("d", 3)] == ["e", "f", "file", "link"]
    fails(e2b.FileNotFoundException, lambda: sandbox.files.list("none"))
    fails(e2b.NotFoundException, lambda: sandbox.files.list("d/file"))

    assert sandbox.files.make_dir("d/new/deep") is True and sandbox.files.make_dir("d/new/deep") is False
    fails(e2b.InvalidArgumentException, lambda: sandbox.files.make_dir("d/file"))
    moved = sandbox.files.rename("d/file", "other/place/file")
    assert moved.path == f"{home}/other/place/file" and not sandbox.files.exists("d/file")
    fails(e2b.FileNotFoundException, lambda: sandbox.files.rename("d/file", "x"))
    sandbox.files.remove("d")
    assert not sandbox.files.exists("d")
    sandbox.files.remove("d")
    # what a user may do is for the kernel to say
    if IS_ROOT:
        closed = site.directory / "closed"
        closed.write_text("root's")
        closed.chmod(0o600)
        fails(e2b.SandboxException, lambda: sandbox.files.read(str(closed)), "permission")
        fails(e2b.SandboxException, lambda: sandbox.files.write(str(closed), "mine"), "permission")
        assert closed.read_text() == "root's"


def watches():
    sandbox.files.make_dir("w/sub")
    watcher = sandbox.files.watch_dir("w", recursive=True, include_entry=True)
    sandbox.files.write("w/sub/file", "text")
    sandbox.files.rename("w/sub/file", "w/renamed")
    sandbox.files.remove("w/renamed")
    events = []
    site.until("events", lambda: events.extend(watcher.get_new_events()) or any(event.type.value == "remove" for event in events))
    seen = {(event.name, event.type.value) for event in events}
    assert {("sub/file", "create"), ("sub/file", "rename"), ("renamed", "create"), ("renamed", "remove")} <= seen, seen
    watcher.stop()
    fails(e2b.SandboxException, watcher.get_new_events)
    sandbox.files.write("w/plain", "")
    fails(e2b.InvalidArgumentException, lambda: sandbox.files.watch_dir("w/plain"), "no directory")
    fails(e2b.FileNotFoundException, lambda: sandbox.files.watch_dir("nowhere"))


def urls():
    sandbox.files.write("signed file", b"0123456789")
    get = lambda url, **headers: httpx.get(url, headers=headers)
    url = sandbox.download_url("signed file")
    answer = get(url)
    assert answer.content == b"0123456789" and "signed%20file" in answer.headers["content-disposition"], answer
    assert get(sandbox.download_url("signed file", use_signature_expiration=60)).content == b"0123456789"
    for given, expected, where in [("0-3", b"0123", "0-3/10"), ("7-", b"789", "7-9/10"), ("-2", b"89", "8-9/10")]:
        part = get(url, Range=f"bytes={given}")
        assert (part.status_code, part.content, part.headers["content-range"]) == (206, expected, f"bytes {where}"), part
    beyond = get(url, Range="bytes=10-")
    assert beyond.status_code == 416 and beyond.headers["content-range"] == "bytes */10"
    for wrong in [
        url.replace("signed%20file", "other"),
        url + "x",
        sandbox.download_url("signed file", use_signature_expiration=-5),
        url.split("&signature")[0] + "&signature=v1_",
        sandbox.download_url("signed file", use_signature_expiration=-5.5),
    ]:
        assert get(wrong).status_code == 401, wrong
    # the user is the one that was signed, whatever else a request says
    owner = sandbox.upload_url("of the user")
    as_other = "Basic " + base64.b64encode(b"nobody-at-all:").decode()
    assert httpx.post(owner, files={"file": b"x"}, headers={"Authorization": as_other}).status_code == 200
    # an upload is not a download
    assert httpx.post(url, files={"file": b"x"}).status_code == 401
    upload = sandbox.upload_url("up/loaded", use_signature_expiration=60)
    answer = httpx.post(upload, files={"file": ("any name", b"by form")})
    assert answer.status_code == 200 and sandbox.files.read("up/loaded") == "by form", answer.text
    packed = {"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"}
    assert httpx.post(upload, content=gzip.compress(b"by stream"), headers=packed).status_code == 200
    assert sandbox.files.read("up/loaded") == "by stream"


def lifecycle():
    info = sandbox.get_info()
    assert info.sandbox_id == sandbox.sandbox_id and info.metadata == {"who": "a b"} and info.state.value == "running", info
    assert info.cpu_count > 0 and info.memory_mb > 0 and info.template_id == "base"
    (metric,) = sandbox.get_metrics()
    assert metric.cpu_count == info.cpu_count and 0 < metric.mem_used < metric.mem_total and metric.disk_total > 0, metric
    assert sandbox.is_running()

    sandbox.set_timeout(200)
    left = sandbox.get_info().end_at.timestamp() - time.time()
    assert 190 < left <= 200, left
    again = Sandbox.connect(sandbox.sandbox_id, timeout=400)
    assert again.commands.run("echo $A").stdout == "given\n"
    assert sandbox.get_info().end_at.timestamp() - time.time() > 390
    fails(e2b.SandboxException, lambda: sandbox.set_timeout(10**9), "timeout")

    listed = lambda **query: [one.sandbox_id for one in Sandbox.list(query=e2b.SandboxQuery(**query)).next_items()]
    assert listed() == [sandbox.sandbox_id] == listed(metadata={"who": "a b"}) == listed(template="base")
    assert listed(metadata={"who": "b"}) == [] == listed(template="other")

    running = sandbox.commands.run("while :; do date +%s%N > tick; sleep 0.05; done", background=True, timeout=0)
    assert sandbox.pause()
    assert Sandbox.list(query=e2b.SandboxQuery(state=[e2b.SandboxState.PAUSED])).next_items()[0].sandbox_id == sandbox.sandbox_id
    fails(e2b.SandboxNotRunningException, lambda: sandbox.commands.run("true"))
    assert not sandbox.is_running()
    ticks = site.home("one") / "telexec-e2b" / sandbox.sandbox_id / "tick"
    time.sleep(0.3)
    before = ticks.read_text()
    time.sleep(0.5)
    assert ticks.read_text() == before
    sandbox.connect(timeout=300)
    assert sandbox.is_running()
    site.until("it goes on", lambda: ticks.read_text() != before)
    running.kill()


def refusals():
    fails(e2b.SandboxException, lambda: Sandbox.create(allow_internet_access=False), "allow_internet_access")
    fails(e2b.ServiceBusyException, lambda: Sandbox.create(retries=0), "no target is free")
    fails(e2b.AuthenticationException, lambda: Sandbox.create(api_key=KEY[:-1] + "1"), "API key")
    fails(e2b.SandboxNotFoundException, lambda: Sandbox.connect("one-0123456789ab"))
    fails(e2b.SandboxNotFoundException, lambda: Sandbox.get_info("one-0123456789ab"))
    assert Sandbox.kill("one-0123456789ab") is False


def kills():
    """Nothing of a sandbox is left for the next one, nor can who had it get in."""
    global sandbox
    old, home = sandbox, site.home("one") / "telexec-e2b" / sandbox.sandbox_id
    handle = old.commands.run(f"setsid sleep {NAP}2 & sleep {NAP}3", background=True, timeout=0)
    assert home.exists() and old.kill() is True and old.kill() is False
    assert not home.exists()
    fails(e2b.SandboxNotRunningException, handle.wait)
    fails(e2b.SandboxNotRunningException, lambda: old.commands.run("true"))
    fails(e2b.SandboxNotRunningException, lambda: old.files.read("x"))
    assert not old.is_running()
    sandbox = Sandbox.create(timeout=300)
    assert sandbox.sandbox_id != old.sandbox_id
    assert sandbox.commands.run(f"pgrep -fc '^sleep {NAP}[23]' || true; ls -A").stdout == "0\n"
    fails(e2b.SandboxNotRunningException, lambda: old.commands.run("true"))

    # its time
    sandbox.set_timeout(1)
    handle = sandbox.commands.run(f"sleep {NAP}4", background=True)
    fails(e2b.SandboxNotRunningException, handle.wait)
    site.until("a free target", lambda: "is gone" in site.log("gateway").splitlines()[-1])
    with Sandbox.create() as sandbox:
        assert sandbox.commands.run(f"pgrep -fc '^sleep {NAP}4' || true").stdout == "0\n"
    assert Sandbox.list().next_items() == []


if __name__ == "__main__":
    with Site(sys.argv[1]) as site:
        sandbox = Sandbox.create(timeout=300, metadata={"who": "a b"}, envs={"A": "given"})
        run([commands, timeouts, background, stdin, pty, files, directories, watches, urls, lifecycle, refusals, kills])
