"""What telexec-nats promises, one by one.

each.py BIN_DIRECTORY NATS_SERVER
"""

import asyncio
import base64
import itertools
import json
import os
import signal
import ssl
import subprocess
import sys
import tempfile
import time

import nats
import nkeys

from nats_site import Events, Site, submit


async def main(bin_directory, nats_server):
    for part in (usual, signed, labelled, secured):
        with tempfile.TemporaryDirectory(prefix="telexec-nats-") as directory:
            site = Site(directory, bin_directory, nats_server, 2)
            try:
                for name in site.names:
                    site.start_agent(name)
                if part is not secured:
                    await site.start_server()
                await asyncio.wait_for(part(site), 300)
                print(part.__name__, "holds")
            except BaseException:
                print(site.logs())
                raise
            finally:
                site.stop()


class Asker:
    def __init__(self, client, events, agent, headers=lambda *_: {}):
        self.client, self.js, self.events, self.agent, self.headers = client, client.jetstream(), events, agent, headers

    async def run(self, request):
        """Submits it; its last event and headers."""
        await submit(self.js, self.agent, request)
        return await self.events.one(request["execution_id"])

    async def control(self, method, **request):
        subject, payload = f"telexec.ctl.{self.agent}", json.dumps(request).encode()
        headers = {"Telexec-Method": method, "Content-Type": "application/json", **self.headers(subject, payload, method)}
        answer = await self.client.request(subject, payload, timeout=40, headers=headers)
        status = (answer.headers or {}).get("Telexec-Status")
        return (status, answer.headers.get("Telexec-Message")) if status else json.loads(answer.data)

    async def output(self, id):
        data = b""
        for event, _ in self.events.of[id]:
            for stream in ("stdout", "stderr"):
                if stream in event:
                    assert int(event.get("position", 0)) == len(data), (id, len(data), event.get("position"))
                    data += base64.b64decode(event[stream])
        return data


async def dead(client, js):
    """The reasons why requests are dead, so far."""
    subscription = await js.subscribe("telexec.dead.>", ordered_consumer=True)
    reasons = []
    try:
        while True:
            message = await subscription.next_msg(timeout=1)
            reasons.append(message.headers["Telexec-Reason"])
    except (asyncio.TimeoutError, nats.errors.TimeoutError):
        await subscription.unsubscribe()
        return reasons


async def until(what, holds):
    deadline = time.monotonic() + 60
    while not await holds():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.1)


async def usual(site):
    site.start_bridge("a0")
    client = await site.connect()
    await site.until_stream(client)
    js = client.jetstream()
    asker = Asker(client, Events(js), "a0")

    # a result, with all that was written
    event, _ = await asker.run({"execution_id": "one", "command": "echo hello; exit 3"})
    assert event["exited"]["exitCode"] == 3 and event["exited"]["cause"] == "EXIT_CAUSE_EXITED", event
    assert await asker.output("one") == b"hello\n"
    # more than a message holds
    event, _ = await asker.run({"execution_id": "large", "argv": ["seq", "600000"]})
    assert event["exited"].get("exitCode", 0) == 0
    assert await asker.output("large") == b"".join(b"%d\n" % number for number in range(1, 600001))
    # in protobuf's binary format: field 2 is argv, 17 is execution_id
    payload = b"\x12\x04true" + b"\x8a\x01\x06binary"
    await js.publish("telexec.run.a0", payload)
    subscription = await js.subscribe("telexec.out.binary", ordered_consumer=True)
    while True:
        message = await subscription.next_msg(timeout=20)
        assert message.headers["Content-Type"] == "application/protobuf"
        if message.data[:1] == b"\x22":  # field 4 is exited
            break
    await subscription.unsubscribe()

    # what cannot run is told where its events would be
    for id, request, status in [
        ("no-program", {"argv": ["no-such-program"]}, "5"),
        ("both", {"argv": ["x"], "command": "x"}, "3"),
        ("no-user", {"argv": ["true"], "user": "no-such-user"}, "5"),
    ]:
        event, headers = await asker.run({"execution_id": id, **request})
        assert not event and headers["Telexec-Status"] == status and headers["Telexec-Message"], headers
    # too late
    await submit(js, "a0", {"execution_id": "late", "command": f"touch {site.directory}/late"}, **{"Telexec-Expires": "1"})
    _, headers = await asker.events.one("late")
    assert headers["Telexec-Status"] == "4" and not (site.directory / "late").exists(), headers

    # what is no request is kept with the reason
    bad = [
        (b"{", "application/json", "is no ExecuteRequest"),
        (b'{"no_such_field": 1}', "application/json", "is no ExecuteRequest"),
        (b"\xff\xff", "application/protobuf", "is no ExecuteRequest"),
        (b"{}", "application/protobuf", "looks like JSON"),
        (b'{"argv": "' + b"x" * 1_048_000 + b'"}', "application/json", "is no ExecuteRequest"),
        (b"{}", "application/json", "execution_id: is missing"),
        (b'{"execution_id": "../x"}', "application/json", "execution_id: must match"),
        (b'{"execution_id": "a..b"}', "application/json", "execution_id: must not"),
        (b"{}", "text/plain", "Content-Type must be"),
    ]
    for payload, content_type, _ in bad:
        await js.publish("telexec.run.a0", payload, headers={"Content-Type": content_type})
    # an id of another request
    await submit(js, "a0", {"execution_id": "one", "command": "echo other"}, **{"Nats-Msg-Id": "other"})
    reasons = ["already used by another request"] + [reason for _, _, reason in bad]

    async def all_dead():
        found = await dead(client, js)
        return len(found) == len(reasons) and all(any(reason in one for one in found) for reason in reasons)

    await until("all are dead", all_dead)

    # telexec-nats does not publish to where a stranger wants
    await client.publish("telexec.ctl.a0", b"{}", reply="telexec.out.future", headers={"Telexec-Method": "GetExecution"})
    event, headers = await asker.run({"execution_id": "future", "argv": ["true"]})
    assert "exited" in event, headers

    # while it runs
    await submit(js, "a0", {"execution_id": "cat", "argv": ["cat"], "accepts_input": True})
    await until("it runs", lambda: state(asker, "cat", "EXECUTION_STATE_RUNNING"))
    written = await asker.control("WriteInput", execution_id="cat", data=base64.b64encode(b"input\n").decode())
    assert int(written["committedOffset"]) == 6, written
    await until("it has written", lambda: wrote(asker, "cat", 6))
    event = await asker.control("Attach", execution_id="cat", position=2)
    assert base64.b64decode(event["stdout"]) == b"put\n", event
    listed = await asker.control("ListExecutions")
    assert [execution["executionId"] for execution in listed["executions"]] == ["cat"], listed
    await asker.control("WriteInput", execution_id="cat", offset=6, close=True)
    event, _ = await asker.events.one("cat")
    assert event["exited"].get("exitCode", 0) == 0 and await asker.output("cat") == b"input\n"
    await submit(js, "a0", {"execution_id": "stubborn", "command": "trap '' TERM; while :; do sleep 1; done"})
    await until("it runs", lambda: state(asker, "stubborn", "EXECUTION_STATE_RUNNING"))
    await asker.control("Cancel", execution_id="stubborn")
    event, _ = await asker.events.one("stubborn")
    assert event["exited"]["signalName"] == "SIGKILL" and event["exited"]["cause"] == "EXIT_CAUSE_CANCELLED", event
    assert (await asker.control("GetExecution", execution_id="none"))[0] == "5"
    assert (await asker.control("SignalExecution", execution_id="cat", signal="NONE"))[0] == "3"
    assert (await asker.control("Execute"))[0] == "12"

    # telexec-nats is not there for a while, in an orderly way and without one: the command runs, and nothing is lost
    for id, how in [("stopped", signal.SIGTERM), ("killed", signal.SIGKILL)]:
        text = f"for i in $(seq 300); do echo $i; sleep 0.01; done; printf x >> {site.directory}/{id}"
        await submit(js, "a0", {"execution_id": id, "command": text})
        await until("it runs", lambda: state(asker, id, "EXECUTION_STATE_RUNNING"))
        site.kill("bridge-a0", how)
        await asyncio.sleep(0.5)
        site.start_bridge("a0")
        event, _ = await asker.events.one(id)
        assert event["exited"].get("exitCode", 0) == 0, event
        assert await asker.output(id) == b"".join(b"%d\n" % number for number in range(1, 301))
        assert (site.directory / id).read_text() == "x"

    # the agent is killed while a command runs: it is not started again
    await submit(js, "a0", {"execution_id": "lost", "command": f"printf x >> {site.directory}/lost; sleep 1000"})
    await until("it runs", lambda: state(asker, "lost", "EXECUTION_STATE_RUNNING"))
    pid = (await asker.control("GetExecution", execution_id="lost"))["execution"]["pid"]
    site.kill("agent-a0")
    site.start_agent("a0")
    event, headers = await asker.events.one("lost", 60)
    os.killpg(pid, signal.SIGKILL)
    assert headers["Telexec-Status"] == "10" and (site.directory / "lost").read_text() == "x", headers


async def state(asker, id, expected):
    found = await asker.control("GetExecution", execution_id=id)
    return isinstance(found, dict) and found["execution"]["state"] == expected


async def wrote(asker, id, bytes):
    found = await asker.control("GetExecution", execution_id=id)
    return int(found["execution"].get("position", 0)) == bytes


async def signed(site):
    seed = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER)
    alice, mallory = nkeys.from_seed(seed), nkeys.from_seed(nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_USER))
    site.arguments = ["--caller", alice.public_key.decode()]
    for name in site.names:
        site.start_bridge(name)
    client = await site.connect()
    await site.until_stream(client)
    js = client.jetstream()
    events, nonces = Events(js), itertools.count()

    def sign(subject, payload, key=alice, life=60, claims=None, method=""):
        expires, nonce = str(int(time.time()) + life), str(next(nonces))
        signature = key.sign(b"\n".join([b"telexec-nats-1", subject.encode(), expires.encode(), b"application/json", method.encode(), nonce.encode(), payload]))
        return {
            "Telexec-Key": (claims or key).public_key.decode(),
            "Telexec-Expires": expires,
            "Telexec-Nonce": nonce,
            "Telexec-Signature": base64.b64encode(signature).decode(),
            "Content-Type": "application/json",
        }

    def request(id):
        return json.dumps({"execution_id": id, "command": f"touch {site.directory}/ran-{id}"}).encode()

    subject = "telexec.run.a0"
    good = sign(subject, request("good"))
    await js.publish(subject, request("good"), headers=good)
    event, headers = await events.one("good")
    assert "exited" in event, headers
    bad = [
        (subject, {"Content-Type": "application/json"}, "Telexec-Key is missing"),
        (subject, sign(subject, request("bad"), mallory), "is not the nkey of a caller"),
        (subject, sign(subject, request("bad"), mallory, claims=alice), "is not that of this message"),
        (subject, good, "is not that of this message"),
        ("telexec.run.a1", sign(subject, request("bad")), "is not that of this message"),
        (subject, sign(subject, request("bad"), life=1000000), "within the next 24 hours"),
        (subject, {**sign(subject, request("bad")), "Content-Type": "application/protobuf"}, "is not that of this message"),
        (subject, {**sign(subject, request("bad")), "Telexec-Routed-From": subject}, "no subject of a label"),
    ]
    for to, headers, _ in bad:
        await js.publish(to, request("bad"), headers=headers)

    async def all_dead():
        found = await dead(client, js)
        return len(found) == len(bad) and all(any(reason in one for one in found) for _, _, reason in bad)

    await until("all are dead", all_dead)
    assert not (site.directory / "ran-bad").exists()
    # nobody has used up the id
    await js.publish(subject, request("bad"), headers=sign(subject, request("bad")))
    event, headers = await events.one("bad")
    assert "exited" in event, headers
    asker = Asker(client, events, "a0", lambda subject, payload, method: sign(subject, payload, method=method))
    assert "execution" in await asker.control("GetExecution", execution_id="good")
    # what was signed once is good once, and for its method
    kept = sign("telexec.ctl.a0", b'{"execution_id": "good"}', method="GetExecution")
    asker.headers = lambda *_: kept
    assert (await asker.control("Cancel", execution_id="good"))[0] == "16"
    assert "execution" in await asker.control("GetExecution", execution_id="good")
    status, message = await asker.control("GetExecution", execution_id="good")
    assert status == "16" and "was used before" in message, message
    asker.headers = lambda *_: {}
    assert (await asker.control("GetExecution", execution_id="good"))[0] == "16"


async def labelled(site):
    for name in site.names:
        site.start_bridge(name, "--label", "web")
    client = await site.connect()
    await site.until_stream(client)
    js = client.jetstream()
    events, count = Events(js), 60
    for number in range(count):
        request = {"execution_id": f"l{number}", "command": f"printf x >> {site.directory}/ran-{number}; sleep 0.1"}
        await submit(js, "label:web", request)
        if number % 3 == 0:
            await submit(js, "label:web", request, **{"Nats-Msg-Id": f"{number} again"})
        if number == count // 2:
            site.kill("bridge-a0")
            site.start_bridge("a0", "--label", "web")
    await events.read(count, 120)
    aborted = 0
    for number in range(count):
        ran = site.directory / f"ran-{number}"
        event, headers = events.of[f"l{number}"][-1]
        if "exited" in event:
            assert ran.read_text() == "x", number
        else:
            # what was claimed and not begun when telexec-nats was killed
            assert headers["Telexec-Status"] == "10" and (not ran.exists() or ran.read_text() == "x"), headers
            aborted += 1
    assert aborted <= count // 4, f"{aborted} were aborted"
    # the first message says which agent has it; either is free at times
    agents = [headers["Telexec-Agent"] for told in events.of.values() for _, headers in told if "Telexec-Agent" in headers]
    assert len(agents) == count and set(agents) <= set(site.names), agents


async def secured(site):
    """TLS, and NATS's own accounts, with no more permissions than the documents say."""
    certs = site.directory / "certs"
    for words in (["init"], ["issue", "localhost", "--server", "--ip", "127.0.0.1"]):
        subprocess.run([site.bin / "telexec", "certs", *words, "--dir", certs], check=True, stdout=subprocess.DEVNULL)
    seed = nkeys.encode_seed(bytes(range(1, 33)), nkeys.PREFIX_BYTE_USER)
    (site.directory / "seed").write_bytes(seed + b"\n")
    key = nkeys.from_seed(seed).public_key.decode()
    (site.directory / "nats.conf").write_text(
        f"""
        tls {{ cert_file: "{certs}/localhost.pem", key_file: "{certs}/localhost.key" }}
        authorization {{ users = [
          {{ nkey: {key}, permissions: {{
            publish: ["telexec.out.>", "telexec.dead.*", "telexec.run.a0", "$JS.API.>", "$JS.ACK.>", "_INBOX.>"],
            subscribe: ["telexec.ctl.a0", "telexec.ctl.label:web", "_INBOX.>"] }} }},
          {{ user: publisher, password: secret, permissions: {{
            publish: ["telexec.run.a0", "$JS.API.STREAM.INFO.TELEXEC_RUN", "$JS.API.STREAM.NAMES", "$JS.API.CONSUMER.>", "$JS.FC.>"],
            subscribe: ["_INBOX.>"] }} }},
          {{ user: caller, password: secret, permissions: {{
            publish: ["telexec.run.a0", "telexec.ctl.a0", "telexec.out.>", "$JS.API.STREAM.MSG.GET.TELEXEC_OUT",
              "$JS.API.CONSUMER.CREATE.TELEXEC_OUT.>", "$JS.API.CONSUMER.MSG.NEXT.TELEXEC_OUT.>", "$JS.API.CONSUMER.LIST.TELEXEC_RUN"],
            subscribe: ["_INBOX.>"] }} }}
        ] }}
        """
    )
    await site.start_server("-c", str(site.directory / "nats.conf"))
    site.url = site.url.replace("nats:", "tls:")
    site.arguments = ["--nkey", str(site.directory / "seed"), "--nats-ca", str(certs / "ca.pem")]
    site.start_bridge("a0", "--label", "web")
    context = ssl.create_default_context(cafile=certs / "ca.pem")
    client = await site.connect(tls=context, user="publisher", password="secret")
    await site.until_stream(client)
    events = Events(client.jetstream())
    await submit(events.js, "a0", {"execution_id": "over-tls", "argv": ["true"]})
    event, headers = await events.one("over-tls")
    assert "exited" in event, headers
    # the same with `telexec`
    environment = {**os.environ, "TELEXEC_CONFIG": "/dev/null", "TELEXEC_NATS_CA": str(certs / "ca.pem")}
    environment |= {"TELEXEC_NATS_USER": "caller", "TELEXEC_NATS_PASSWORD": "secret"}
    server = site.url.replace("tls:", "nats+tls:")

    def telexec(*words, **variables):
        ran = [site.bin / "telexec", *words]
        return subprocess.run(ran, env={**environment, **variables}, capture_output=True, text=True, timeout=60)

    ran = await asyncio.to_thread(telexec, "exec", "-i", f"{server}/a0", "-c", "echo out; exit 3")
    assert (ran.returncode, ran.stdout) == (3, "out\n"), ran
    ran = await asyncio.to_thread(telexec, "exec", "--queue", "1s", f"{server}/a1", "true")
    assert ran.returncode == 255, ran
    ran = await asyncio.to_thread(telexec, "fleet", "-w", f"{server}/label:web", "true")
    assert ran.returncode == 0 and "1 of 1 ok" in ran.stderr, ran
    for variables, code, reason in (
        ({"TELEXEC_NATS_PASSWORD": "wrong"}, 255, "authorization violation"),
        ({"TELEXEC_NATS_PASSWORD": ""}, 2, "must be given together"),
        ({"TELEXEC_NATS_CA": ""}, 255, "certificate"),
        ({"TELEXEC_NATS_CREDS": "/no/such/file"}, 2, "cannot use /no/such/file"),
    ):
        ran = await asyncio.to_thread(telexec, "exec", f"{server}/a0", "true", **variables)
        assert ran.returncode == code and reason in ran.stderr, (reason, ran)

    # to others this one may not publish
    try:
        await events.js.publish("telexec.run.a1", b"{}", timeout=2)
        raise AssertionError("it may")
    except (asyncio.TimeoutError, nats.errors.Error, nats.js.errors.NoStreamResponseError):
        pass


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
