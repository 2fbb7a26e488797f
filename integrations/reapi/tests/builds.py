"""Bazel, unmodified, builds and tests on agents, by way of BuildGrid: builds.py BIN_DIRECTORY BAZEL"""

import re
import subprocess
import sys
import uuid

import bazel_site
import reapi_client
import reapi_site

BIN, BAZEL = sys.argv[1:]
MANY = 24


def done(site, worker):
    return len(re.findall(" done ", site.log(f"worker-{worker}")))


def builds(site, bazel):
    """A genrule, a cc_binary and tests, on both agents."""
    said = bazel.run("build", "//:hello", "//:main")
    assert "3 processes: 3 remote" in said, said
    assert bazel.output("out.txt") == "HELLO\n"
    where = bazel.output("below/where.txt")
    assert f"{site.work('w')}/" in where and "/actions/" in where, where
    made = subprocess.run([bazel.workspace / "bazel-bin/main"], capture_output=True, text=True, check=True)
    assert made.stdout == "from C++\n"
    assert re.search("//:check +PASSED", bazel.run("test", "//:check"))
    said = bazel.run("test", "//:fails", "--test_output=errors", fails=True)
    assert "it fails here" in said and "1 fails remotely" in said, said


def caches(site, bazel):
    """What was built once is not run again."""
    before = done(site, "w")
    bazel.clean()
    said = bazel.run("build", "//:hello", "//:main")
    assert "3 processes: 3 remote cache hit" in said, said
    assert done(site, "w") == before


def running(mark):
    """The action, not Bazel's shell for it."""
    return [pid for pid in reapi_site.processes(mark) if reapi_site.command_line(pid).startswith(mark)]


def cancels(site, bazel, mark):
    """An operation that is cancelled leaves no process."""
    # Bazel would ask for a cancelled action again
    build = bazel.begin("build", "//:slow", "--remote_retries=0")
    site.until("the action", lambda: running(mark))
    (name,) = reapi_client.Client(site.address).running()
    command = [site.bgd, "operation", "--remote", f"http://{site.address}", "cancel", name]
    subprocess.run(command, capture_output=True, check=True)
    site.until("the end of all its processes", lambda: not reapi_site.processes(mark))
    said, _ = build.communicate(timeout=60)
    assert build.returncode != 0, said
    site.until_logged("worker-w", "let go")


def survives(site, bazel, mark):
    """A build goes on while the worker, an agent and BuildGrid are killed and started again."""
    before = done(site, "w")
    build = bazel.begin("build", "--jobs=8", *[f"//:many{n}" for n in range(MANY)])
    progress = lambda count: site.until("progress", lambda: done(site, "w") >= before + count)
    progress(3)
    site.kill("worker-w")
    start_worker(site)
    progress(8)
    site.kill("agent-a1")
    site.start_agent("a1")
    progress(14)
    said, _ = build.communicate(timeout=100)
    assert build.returncode == 0, said
    assert all(bazel.output(f"many{n}.txt") == f"{mark} {n}\n" for n in range(MANY))
    bots = re.findall(r"bot=\"w/(\S+?)\" lease=\S+ code=0.* done|done bot=\"w/(\S+?)\" lease=\S+ code=0", site.log("worker-w"))
    assert len({bot for pair in bots for bot in pair if bot}) == 2, bots


def start_worker(site):
    site.start_worker("w", ["a1", "a2"])


def main():
    reapi_site.watchdog(200)
    mark = f"mark-{uuid.uuid4()}"
    with reapi_site.site(BIN) as site:
        site.start_agent("a1")
        site.start_agent("a2")
        start_worker(site)
        site.until_ready("w", 2)
        bazel = bazel_site.Bazel(BAZEL, site.directory, site.address, mark, MANY)
        try:
            for part, words in [(builds, ()), (caches, ()), (cancels, (mark,)), (survives, (mark,))]:
                part(site, bazel, *words)
                print(f"{part.__name__} holds", flush=True)
        finally:
            bazel.shut_down()
        assert site.kill("worker-w", reapi_site.signal.SIGTERM) == 0


main()
