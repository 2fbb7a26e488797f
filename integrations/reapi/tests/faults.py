"""Actions by a client of the API, through BuildGrid: what they may do, and what goes wrong: faults.py BIN_DIRECTORY"""

import os
import re
import subprocess
import sys
import time
import uuid

from buildgrid._protos.build.bazel.remote.execution.v2 import remote_execution_pb2 as pb
from buildgrid._protos.google.rpc import code_pb2 as code

import reapi_site
from reapi_client import Client, digest, directory

BIN = sys.argv[1]
SH = ["/bin/sh", "-c"]


def status(response, expected, *words):
    assert response.status.code == expected, response
    for word in words:
        assert word in response.status.message, response
    return response


def outputs(site, client):
    """Files, directories and links are what they were, in both versions of the API."""
    script = client.put(b"#!/bin/sh\nprintf %s \"$1\" > made; cat in/data\n")
    root = client.put(
        directory(
            {"run*": script},
            {"in": client.put(directory({"data": client.put(b"input")})), "empty": client.put(pb.Directory())},
            {"link": "in/data"},
        )
    )
    text = """
        ./run content && test -d empty && test "$(readlink link)" = in/data && cat link >&2
        mkdir -p d/e d/none; echo x > d/e/f; chmod +x d/e/f; ln -s e/f d/l; ln -s d top; echo y > below/out
        echo "$(env | grep -v TELEXEC_ | cut -d= -f1 | sort | xargs)"; exit 3
    """
    paths = ["made", "d", "top", "absent", "below/out"]
    result = client.run([*SH, text], root=root, outputs=paths, environment={"PATH": "/usr/bin:/bin", "A": "b=c d"}).result
    assert result.exit_code == 3 and result.stderr_raw == b"input", result
    # the shell itself adds PWD
    assert result.stdout_raw == b"inputA PATH PWD\n", result
    assert [(file.path, client.get(file.digest), file.is_executable) for file in result.output_files] == [
        ("made", b"content", False),
        ("below/out", b"y\n", False),
    ]
    assert [(link.path, link.target) for link in result.output_symlinks] == [("top", "d")]
    (made,) = result.output_directories
    tree = pb.Tree.FromString(client.get(made.tree_digest))
    by_digest = {digest(child.SerializeToString()).hash: child for child in tree.children}
    assert [(link.name, link.target) for link in tree.root.symlinks] == [("l", "e/f")]
    inner = {node.name: by_digest[node.digest.hash] for node in tree.root.directories}
    assert list(inner) == ["e", "none"] and inner["none"] == pb.Directory()
    assert [(file.name, file.is_executable, client.get(file.digest)) for file in inner["e"].files] == [("f", True, b"x\n")]
    times = result.execution_metadata
    order = [times.queued_timestamp, times.input_fetch_start_timestamp, times.input_fetch_completed_timestamp]
    order += [times.execution_start_timestamp, times.execution_completed_timestamp, times.output_upload_start_timestamp]
    order += [times.output_upload_completed_timestamp]
    assert [time.ToNanoseconds() for time in order] == sorted(time.ToNanoseconds() for time in order), times

    older = {"output_files": ["made", "l"], "output_directories": ["d"]}
    result = client.run([*SH, "echo 1 > made; mkdir -p d; ln -s made l"], **older).result
    assert [file.path for file in result.output_files] == ["made"] and [d.path for d in result.output_directories] == ["d"]
    assert [link.path for link in result.output_file_symlinks] == ["l"] and not result.output_symlinks

    result = client.run([*SH, "pwd; echo o > out"], working_directory="a/b", outputs=["out"]).result
    assert result.stdout_raw.endswith(b"/a/b\n") and result.output_files[0].path == "out"


def sizes(site, client):
    """Blobs of many bytes, many blobs, and much output."""
    large, many = os.urandom(9_000_000), {f"f{n}": client.put(b"%d" % n) for n in range(700)}
    root = client.put(directory({"large": client.put(large)}, {"many": client.put(directory(many))}))
    text = "cat many/* | cksum; cp -r many copy; cat large > out; head -c 300000 /dev/zero; cat large >&2"
    result = client.run([*SH, text], root=root, outputs=["out", "copy"]).result
    assert client.get(result.output_files[0].digest) == large
    assert client.get(result.stderr_digest) == large and not result.stderr_raw
    assert client.get(result.stdout_digest).endswith(b"\0" * 300000)
    tree = pb.Tree.FromString(client.get(result.output_directories[0].tree_digest))
    assert {file.name: file.digest for file in tree.root.files} == many


def ends(site, client):
    """Signals and timeouts; what an action has forked ends with it."""
    assert client.run([*SH, "kill -SEGV $$"]).result.exit_code == 128 + 11
    mark = f"mark-{uuid.uuid4()}"
    fork = f"setsid sh -c 'sleep 1000; : {mark}' & sh -c 'sleep 1000; : {mark}'"
    late = status(client.run([*SH, "echo begun;" + fork], timeout=0.5), code.DEADLINE_EXCEEDED, "500ms")
    assert late.result.stdout_raw == b"begun\n" and not reapi_site.processes(mark)
    left = client.run([*SH, f"setsid sh -c 'sleep 1000; : {mark}' & exit 0"])
    assert left.result.exit_code == 0 and not reapi_site.processes(mark)
    status(client.run(["true"], timeout=7200), code.INVALID_ARGUMENT, "--max-timeout")
    status(client.run(["no-such-program"]), code.FAILED_PRECONDITION, "no-such-program")


def refusals(site, client):
    """What is malformed or hostile is refused, with the name of what is wrong, and nothing is run."""
    ran = site.directory / "ran"
    touch = [*SH, f"touch {ran}"]
    blob = client.put(b"x")
    twice, bad = pb.Directory(), pb.Directory()
    twice.files.add(name="a", digest=blob)
    twice.symlinks.add(name="a", target="/etc")
    bad.files.add(name="a").digest.hash = "../../../etc/passwd"
    roots = [(directory({name: blob}), "name of a file") for name in ["..", ".", "", "a/b", "/etc/x", "a\0"]]
    roots += [(twice, "twice"), (directory({}, {}, {"l": ""}), "target"), (bad, "no digest"), (b"\xff\xff", "Directory")]
    cases = [(touch, {"outputs": [path]}, path) for path in ["../out", "/etc/out", "a/../../out", "a//b", "."]]
    cases += [(touch, {"root": client.put(root)}, words) for root, words in roots]
    cases += [(touch, {"working_directory": "../w"}, "../w"), ([], {}, "argv")]
    actions = [client.action(argv, **options) for argv, options, _ in cases]
    for response, (_, _, words) in zip(client.run_all(actions), cases):
        status(response, code.INVALID_ARGUMENT, words)
    unfit = [("mkfifo out", "out", "out"), ("mkdir d; touch d/$(printf '\\377')", "d", "UTF-8")]
    actions = [client.action([*SH, text], outputs=[path]) for text, path, _ in unfit]
    for response, (_, _, words) in zip(client.run_all(actions), unfit):
        status(response, code.FAILED_PRECONDITION, words)
    assert not ran.exists()


def platforms(site, client):
    """Properties choose the worker, the user and limits; others are refused."""
    run = lambda argv=["id", "-un"], **properties: client.run(argv, platform=properties)
    assert run(OSFamily="linux", pool="first").result.stdout_raw == b"root\n"
    status(run(unknown="value"), code.FAILED_PRECONDITION, "unknown")
    status(run(user="daemon", pool="first"), code.FAILED_PRECONDITION, "--allow-user")
    status(run(memory="much"), code.FAILED_PRECONDITION, "memory")
    if "limits.memory_bytes" in site.log("agent-a1"):
        eats = ["/usr/bin/python3", "-c", "x = bytearray(300 << 20)"]
        result = run(eats, memory="100MiB").result
        assert result.exit_code == 137 and b"OOM killer" in result.stderr_raw, result
        assert run(eats).result.exit_code == 0


def users(site, client):
    """Actions of another user: their outputs are read, and they cannot change what is kept."""
    site.start_agent("u")
    site.start_worker("u", ["u"], "--property", "pool=u", "--user", "nobody", "--allow-user", "daemon")
    site.until_ready("u")
    root = client.put(directory({"in": client.put(b"kept " + os.urandom(8).hex().encode())}))
    text = """
        id -un; umask 077; mkdir -p d/e; echo 1 > d/e/f; echo 2 > out; chmod 0 d/e
        chmod 666 in 2>/dev/null || echo cannot chmod; (echo x >> in) 2>/dev/null || echo cannot write; chmod 700 d/e
        ls .. 2>/dev/null || echo cannot list
    """
    # out of the reach of others, who may know where it is
    shared = site.directory / "shared"
    shared.touch()
    shared.chmod(0o666)
    victim = client.action([*SH, f"umask 0; pwd > {shared}; echo honest > out; sleep 2"], outputs=["out"], platform={"pool": "u", "user": "daemon"})
    thief = client.action([*SH, f"until [ -s {shared} ]; do sleep 0.01; done; cd $(cat {shared}) && rm -f out && echo forged > out"], platform={"pool": "u"})
    answers = client.run_all([victim, thief])
    assert answers[1].result.exit_code != 0, answers[1]
    assert client.get(answers[0].result.output_files[0].digest) == b"honest\n", answers[0]
    for platform, user in [({}, "nobody"), ({"user": "daemon"}, "daemon")]:
        answer = client.run([*SH, text], root=root, outputs=["d", "out"], platform={"pool": "u", **platform})
        expected = f"{user}\ncannot chmod\ncannot write\ncannot list\n"
        assert answer.result.stdout_raw.decode() == expected, answer
        assert client.get(answer.result.output_files[0].digest) == b"2\n", answer
    # directories that cannot be written to, and that are deeper than a process can have open
    client.run([*SH, "mkdir d; echo 1 > d/f; chmod 555 d"], platform={"pool": "u"})
    deep = "import os\nfor _ in range(3000):\n    os.mkdir('a'); os.chdir('a')"
    client.run(["/usr/bin/python3", "-c", deep], platform={"pool": "u"})
    assert site.kill("worker-u", reapi_site.signal.SIGTERM) == 0
    assert not list(site.work("u").glob("*/actions/*"))


def missing(site, client):
    """A CAS that lacks blobs is told which."""
    for lacking in [directory({"absent": digest(b"absent")}), directory({}, {"absent": digest(os.urandom(9))})]:
        answer = client.run(["true"], root=client.put(lacking))
        status(answer, code.FAILED_PRECONDITION, "lacks")
        (detail,) = answer.status.details
        assert detail.type_url.endswith("/google.rpc.PreconditionFailure") and b"MISSING" in detail.value, detail
    named = digest(b"absent")
    root = client.put(directory({"absent": named}))
    assert f"blobs/{named.hash}/6".encode() in client.run(["true"], root=root).status.details[0].value
    client.put(b"absent")
    assert client.run(["cat", "absent"], root=root).result.stdout_raw == b"absent"


def altered(site, client):
    """A blob that was changed on the target is not used again."""
    root = client.put(directory({"in": client.put(b"original")}))
    # one after another, all of them with one blob
    for change in ["echo x >> in", "chmod 600 in; printf altered! > in", "touch in", "rm in"]:
        client.run([*SH, change], root=root, platform={"pool": "first"})
        answer = client.run(["cat", "in"], root=root, platform={"pool": "first"})
        assert answer.result.stdout_raw == b"original", (change, answer)
    if os.geteuid() == 0:
        # one that cannot be linked, replaced or removed is in nobody's way
        client.run([*SH, "chattr +i in"], root=root, platform={"pool": "first"})
        answer = client.run(["cat", "in"], root=root, platform={"pool": "first"})
        subprocess.run(["chattr", "-R", "-i", site.work("first")], check=True)
        assert answer.result.stdout_raw == b"original", answer


def rooms(site, client):
    """The cache has a limit, and a target that is full gives its actions to others."""
    site.start_agent("small")
    site.start_worker("small", ["small"], "--property", "pool=small", "--cache-size", "100K")
    site.until_ready("small")
    roots = [client.put(directory({"in": client.put(os.urandom(40_000))})) for _ in range(5)]
    actions = [client.action(["wc", "-c", "in"], root=root, platform={"pool": "small"}) for root in [*roots, *roots]]
    for answer in client.run_all(actions):
        assert answer.result.stdout_raw == b"40000 in\n", answer
    (kept,) = site.work("small").glob("*/cas.*/sha256")
    assert sum(path.stat().st_size for path in kept.iterdir()) <= 100 * 1024
    root = client.put(directory({"in": client.put(os.urandom(110_000))}))
    status(client.run(["true"], root=root, platform={"pool": "small"}), code.RESOURCE_EXHAUSTED, "--cache-size")
    site.kill("worker-small", reapi_site.signal.SIGTERM)

    # the disk of one target: what does not fit there runs on the other one
    disk = site.work("full")
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k,mode=755", "full", disk], check=True)
    try:
        site.start_worker("full", ["small"], "--property", "pool=room", "--property", "pool=alone")
        site.until_ready("full")
        root = client.put(directory({"in": client.put(os.urandom(2_000_000))}))
        action = client.action(["wc", "-c", "in"], root=root, platform={"pool": "room"})
        call, _ = client.begin(action)
        site.until_logged("worker-full", "cannot run it now")
        site.until_logged("worker-full", "gets no more actions")
        site.start_worker("room", ["u"], "--property", "pool=room")
        answer = client.finish(call)
        assert answer.result.stdout_raw == b"2000000 in\n", answer
        assert "/u.sock" in answer.result.execution_metadata.worker, answer
        site.until_logged("worker-full", "gets actions again")
        # the blobs that are kept make way, though they are fewer than the cache may have
        for size in [300_000, 400_000]:
            root = client.put(directory({"in": client.put(os.urandom(size))}))
            answer = client.run(["wc", "-c", "in"], root=root, platform={"pool": "alone"})
            assert answer.result.stdout_raw == f"{size} in\n".encode(), answer
        site.until_logged("worker-full", "removed blobs")
        site.kill("worker-full", reapi_site.signal.SIGTERM)
        site.kill("worker-room", reapi_site.signal.SIGTERM)
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def losses(site, client):
    """An agent, the server or the worker goes while an action runs: it has one result, and leaves no process."""
    mark, count = f"mark-{uuid.uuid4()}", site.directory / "count"
    gate = site.directory / "gate"
    os.mkfifo(gate)
    # waits to be let on, by whoever writes to the pipe
    text = f"echo $$ >> {count}; read line < {gate}; echo $line; : {mark}"
    runs = lambda: len(count.read_text().split()) if count.exists() else 0
    begin = lambda: client.begin(client.action([*SH, text], platform={"pool": "first"}))[0]

    call = begin()
    site.until("the action", lambda: runs() == 1)
    site.kill("agent-a1")
    site.start_agent("a1")
    site.until("it runs again", lambda: runs() == 2)
    gate.write_text("after the agent\n")
    assert client.finish(call).result.stdout_raw == b"after the agent\n"

    call = begin()
    site.until("the action", lambda: runs() == 3)
    site.kill("worker-first", reapi_site.signal.SIGTERM)
    assert len(reapi_site.processes(mark)) == 0
    start_first(site)
    site.until("it runs again", lambda: runs() == 4)
    gate.write_text("after SIGTERM\n")
    assert client.finish(call).result.stdout_raw == b"after SIGTERM\n"

    call = begin()
    site.until("the action", lambda: runs() == 5)
    site.kill("worker-first")
    start_first(site)
    site.until("it runs again", lambda: runs() == 6)
    # the first one was ended before that
    assert len(reapi_site.processes(mark)) == 1
    gate.write_text("after SIGKILL\n")
    assert client.finish(call).result.stdout_raw == b"after SIGKILL\n"

    action = client.action([*SH, text], platform={"pool": "first"})
    call, name = client.begin(action)
    site.until("the action", lambda: runs() == 7)
    site.kill("buildgrid")
    site.start_buildgrid()
    gate.write_text("after the server\n")
    again = Client(site.address)
    response = pb.ExecuteResponse()
    wait = again.execution.WaitExecution(pb.WaitExecutionRequest(name=name), timeout=60)
    for operation in wait:
        if operation.done:
            operation.response.Unpack(response)
    assert response.result.stdout_raw == b"after the server\n", response
    assert runs() == 7


def start_first(site):
    site.start_worker("first", ["a1"], "--property", "pool=first")


def main():
    reapi_site.watchdog(240)
    with reapi_site.site(BIN) as site:
        site.start_agent("a1")
        start_first(site)
        site.until_ready("first")
        client = Client(site.address)
        parts = [outputs, sizes, ends, refusals, platforms, missing, altered]
        if os.geteuid() == 0:
            parts += [users, rooms]
        for part in [*parts, losses]:
            began = time.monotonic()
            part(site, client)
            print(f"{part.__name__} holds ({time.monotonic() - began:.1f} s)", flush=True)
        actions = [path for path in site.directory.glob("work-*/*/actions/*")]
        site.until("that no action's directory is left", lambda: not any(path.exists() for path in actions))
        assert not re.search("panicked", site.logs())


main()
