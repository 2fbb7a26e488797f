"""Gateways and agents that are killed, and two gateways of one pool: restarts.py BIN_DIRECTORY [PART...]"""

import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import threading
import time

import httpx

from e2b_site import KEY, Site, fails, free_port, run, states
import e2b
from e2b import Sandbox

# nobody else on this machine sleeps as long
NAP = os.getpid()
site = None


def gateways():
    """A sandbox and its commands outlive the gateway, however that ends."""
    sandbox = Sandbox.create(timeout=300, metadata={"a": "b"}, envs={"A": "given"})
    handle = sandbox.commands.run("while sleep 0.2; do echo tick; done", background=True, timeout=0)
    sandbox.set_timeout(250)
    for how in (signal.SIGKILL, signal.SIGTERM):
        site.kill("gateway", how)
        fails(Exception, lambda: sandbox.commands.run("true"))
        site.start_gateway()
        assert sandbox.commands.run("echo $A").stdout == "given\n"
        left = sandbox.get_info().end_at.timestamp() - time.time()
        assert sandbox.get_info().metadata == {"a": "b"} and 200 < left < 250, left
        (process,) = sandbox.commands.list()
        assert process.pid == handle.pid
        followed = sandbox.commands.connect(handle.pid)
        assert next(iter(followed))[0] == "tick\n"
        followed.disconnect()
    sandbox.set_timeout(2)
    site.kill("gateway")
    time.sleep(3)
    site.start_gateway()
    # its time was over meanwhile
    site.until("a free target", lambda: f"{sandbox.sandbox_id} is gone" in site.log("gateway"))
    assert not sandbox.is_running()
    state = site.home("one") / ".telexec-e2b"
    (claim,) = state.iterdir()
    assert '"free"' in claim.read_text() and sandbox._envd_access_token not in claim.read_text()
    assert state.stat().st_mode & 0o77 == 0 and claim.stat().st_mode & 0o77 == 0


def agents():
    """A dead agent is the SDK's own exception, and so is one that comes back without the command."""
    sandbox = Sandbox.create(timeout=300)
    handle = sandbox.commands.run("sleep 45", background=True, timeout=0)
    site.kill("agent-one")
    began = time.monotonic()
    fails(e2b.SandboxUnreachableException, handle.wait)
    fails(e2b.SandboxUnreachableException, lambda: sandbox.commands.run("true"), "port is not open")
    fails(e2b.SandboxException, lambda: sandbox.files.read("x"))
    assert time.monotonic() - began < 45, time.monotonic() - began
    assert Sandbox.list().next_items()[0].sandbox_id == sandbox.sandbox_id
    # killed while it cannot be reached: it is gone at once, and its target is free when it is back and clean
    sandbox.kill()
    assert not sandbox.is_running()
    site.socket("one").unlink(missing_ok=True)
    site.start_agent("one")
    site.until("a free target", lambda: f"{sandbox.sandbox_id} is gone" in site.log("gateway"))
    with Sandbox.create() as sandbox:
        assert sandbox.commands.run("echo back").stdout == "back\n"

        handle = sandbox.commands.run("sleep 45", background=True, timeout=0)
        site.kill("agent-one")
        site.socket("one").unlink(missing_ok=True)
        site.start_agent("one")
        fails(e2b.SandboxUnreachableException, handle.wait)
        assert sandbox.commands.run("echo $((1 + 1))").stdout == "2\n"


def pools():
    """However many ask two gateways at once, no target is given to two."""
    port = free_port()
    site.agents.append("two")
    site.kill("gateway", signal.SIGTERM)
    site.start_agent("two")
    site.start_gateway()
    site.start_gateway(key="gateway-two", port=port)
    urls = [site.url, f"http://127.0.0.1:{port}"]

    def create(n):
        url = urls[n % 2]
        try:
            return Sandbox.create(timeout=300, api_url=url, sandbox_url=url, retries=0)
        except e2b.ServiceBusyException:
            return None

    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        for _ in range(10):
            created = [sandbox for sandbox in threads.map(create, range(16)) if sandbox]
            homes = [sandbox.commands.run("pwd").stdout.split("/telexec-e2b/")[0] for sandbox in created]
            assert 1 <= len(created) <= 2 and len(set(homes)) == len(homes), homes
            for sandbox in created:
                assert sandbox.kill()
    # what one has taken the other leaves alone, and does not serve
    sandbox = create(0)
    fails(e2b.SandboxNotFoundException, lambda: Sandbox.connect(sandbox.sandbox_id, api_url=urls[1]))
    first, second = create(1), create(1)
    assert first and not second
    sandbox.kill()
    first.kill()


def pauses():
    """What is paused stays so, also where a gateway was killed before it had stopped all."""
    sandbox = Sandbox.create(timeout=300)
    nap = f"sleep {NAP}5"
    handle = sandbox.commands.run(nap, background=True, timeout=0)
    assert sandbox.pause() and states(f"^{nap}") == {"T"}
    site.kill("gateway")
    subprocess.run(["pkill", "-CONT", "-f", f"^{nap}"], check=True)
    # it runs for a moment before it sleeps again
    site.until("it continues", lambda: states(f"^{nap}") == {"S"})
    site.start_gateway()
    assert states(f"^{nap}") == {"T"}
    sandbox.connect(timeout=300)
    site.until("it continues", lambda: states(f"^{nap}") == {"S"})
    assert sandbox.commands.kill(handle.pid)
    sandbox.kill()


def halves():
    """A gateway that is killed while it creates a sandbox leaves a whole one or none."""
    claims, homes = site.home("one") / ".telexec-e2b", site.home("one") / "telexec-e2b"

    Sandbox.create().kill()

    def create():
        try:
            Sandbox.create(timeout=300, retries=0)
        except Exception:
            pass

    for _ in range(5):
        before = set(os.listdir(claims))
        creating = threading.Thread(target=create)
        creating.start()
        while set(os.listdir(claims)) <= before:
            pass
        site.kill("gateway")
        creating.join()
        site.start_gateway()
        listed = Sandbox.list().next_items()
        for one in listed:
            assert (homes / one.sandbox_id).is_dir(), one
            assert Sandbox.kill(one.sandbox_id)
        assert os.listdir(homes) == [], (listed, os.listdir(homes))


def longest():
    """The longest claim is no trouble to the next gateway, however long its name is."""
    key = {"X-API-KEY": KEY}

    def create(length):
        message = {"templateID": "base", "metadata": {"a": "x" * length}}
        return httpx.post(f"{site.url}/sandboxes", json=message, headers=key, timeout=60)

    low, high = 500_000, 1024 * 1024
    while high - low > 1:
        length = (low + high) // 2
        answer = create(length)
        if answer.status_code == 201:
            low = length
            Sandbox.kill(answer.json()["sandboxID"])
        else:
            assert answer.status_code in (400, 413), answer.text
            high = length
    # times are not always written as long
    assert create(low - 20).status_code == 201
    site.kill("gateway")
    (claim,) = (site.home("one") / ".telexec-e2b").iterdir()
    text = json.loads(claim.read_text())
    text["deadline"]["secs_since_epoch"] = int(time.time()) - 100
    claim.write_text(json.dumps(text, separators=(",", ":")))
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    site.start_gateway("--name", "x" * 200, key="long", port=port)
    sandbox = Sandbox.create(api_url=url, sandbox_url=url, retries=0)
    assert sandbox.commands.run("echo free").stdout == "free\n" and sandbox.kill()
    site.kill("long", signal.SIGTERM)
    site.start_gateway()


def frozen():
    """Agents that do not answer neither hold up who needs one, nor keep a sandbox that is killed."""
    names = ["cold", "colder", "one"]
    for name in names[:2]:
        site.start_agent(name)
    site.kill("gateway", signal.SIGTERM)
    site.start_gateway(agents=names)
    with site.frozen("cold", "colder"):
        began = time.monotonic()
        sandbox = Sandbox.create(retries=0)
        took = time.monotonic() - began
        assert "one" in sandbox.commands.run("pwd").stdout and took < 8, took
    with site.frozen("one"):
        pausing = threading.Thread(target=lambda: fails(Exception, sandbox.pause))
        pausing.start()
        time.sleep(1)
        killing = threading.Thread(target=sandbox.kill)
        killing.start()
        site.until("its end", lambda: not Sandbox.list().next_items(), limit=5)
    pausing.join()
    killing.join()
    site.until("a free target", lambda: f"{sandbox.sandbox_id} is gone" in site.log("gateway"))
    for name in names[:2]:
        site.kill(f"agent-{name}", signal.SIGTERM)
    site.kill("gateway", signal.SIGTERM)
    site.start_gateway()


def weak():
    """An agent that a process can hide from is said to be one."""
    site.start_agent("weak", 'containment = "process-group"')
    port = free_port()
    site.start_gateway(key="weak", port=port, agents=["weak"])
    assert "give the agent a cgroup" in site.log("weak"), site.log("weak")
    site.kill("weak", signal.SIGTERM)
    site.kill("agent-weak", signal.SIGTERM)


def idempotent():
    """Who asks again gets the same."""
    first = Sandbox.create(idempotency_key="k")
    assert Sandbox.create(idempotency_key="k").sandbox_id == first.sandbox_id
    first.kill()


def homes():
    """What is emptied is what was empty, and no claim can name anything else."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    create = lambda: Sandbox.create(timeout=300, api_url=url, sandbox_url=url, retries=0)
    site.start_agent("three")
    fixed, state, victim = (site.own(site.directory / name) for name in ("fixed", "claims", "victim"))
    (fixed / "mine").write_text("kept")
    (victim / "mine").write_text("kept")
    options = ["--home", fixed, "--state-dir", state, "--name", "homes"]
    start = lambda *words, **more: site.start_gateway(*words, key="homes", port=port, agents=["three"], **more)
    says = lambda words: site.until(words, lambda: words in site.log("homes"))
    start(*options, wait=False)
    says("is not empty")
    fails(e2b.ServiceBusyException, create, "no target can be used", "is not empty")
    assert (fixed / "mine").read_text() == "kept"
    (fixed / "mine").unlink()
    says(": ready")
    sandbox = create()
    assert sandbox.commands.run("mkdir -p a/b; touch a/b/c .d; pwd").stdout == f"{fixed}\n"
    assert sandbox.kill() and list(fixed.iterdir()) == []
    sandbox = create()
    sandbox.commands.run("mkdir -p a/b; touch a/b/c; chmod -R a-w .; chmod 000 a/b")
    assert sandbox.kill() and list(fixed.iterdir()) == []
    sandbox = create()
    site.kill("homes")

    # a sandbox that runs as the agent's user writes a claim of its own
    (claim,) = state.glob("claim-*")
    text = json.loads(claim.read_text())
    for change in ({"home": str(victim)}, {"home": str(fixed.parent)}, {"home": ""}, {"id": "victim"}, {"id": "../victim"}):
        claim.write_text(json.dumps({**text, **change, "state": "ending"}))
        start(*options, wait=False)
        says("remove the claim")
        site.kill("homes")
        site.logs("homes").unlink()
        assert (victim / "mine").read_text() == "kept" and fixed.exists()
    claim.write_text(json.dumps(text))
    start(*options)
    assert sandbox.commands.run("pwd").stdout == f"{fixed}\n" and sandbox.kill()
    site.kill("homes", signal.SIGTERM)
    for home in ("/", "/etc/x", "/home", "/usr/local", "/tmp/../etc/x", fixed / ".." / "victim"):
        refused = subprocess.run(
            [site.bin / "telexec-e2b", "--target", f"unix://{site.socket('three')}", "--home", home, "--state-dir", state],
            capture_output=True, text=True, timeout=30,
        )
        assert refused.returncode == 2 and "--home" in refused.stderr, refused
    site.kill("agent-three", signal.SIGTERM)


if __name__ == "__main__":
    with Site(sys.argv[1]) as site:
        run([gateways, agents, pauses, halves, longest, frozen, weak, idempotent, homes, pools])
