"""Commands that are run to their end."""

import json
import pathlib
import subprocess

import pytest
from conftest import MARK, PROGRAMS, Daemon

import telexec


def test_output_and_exit_codes_are_the_commands(agent: telexec.Agent) -> None:
    result = agent.run("echo out; echo err >&2; exit 3", timeout=10)
    assert (result.exit_code, result.stdout, result.stderr, result.cause) == (3, b"out\n", b"err\n", "exited")
    result = agent.run(["printf", "%s|", "a b", "*"])
    assert (result.exit_code, result.stdout) == (0, b"a b|*|")


def test_text_is_decoded(agent: telexec.Agent) -> None:
    assert agent.run("printf 'ü\\377'", text=True).stdout == "ü\N{REPLACEMENT CHARACTER}"
    assert agent.run("printf '\\377'").stdout == b"\xff"


@pytest.mark.parametrize("size", [0, 3, 256 * 1024 + 1, 5_000_000])
def test_input_arrives_and_ends(agent: telexec.Agent, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    assert agent.run(["cat"], input=data).stdout == data


def test_input_that_is_not_read_holds_up_nothing(agent: telexec.Agent) -> None:
    assert agent.run("exit 4", input=b"x" * 5_000_000).exit_code == 4


def test_settings_arrive(agent: telexec.Agent) -> None:
    result = agent.run('echo "$A $PWD"', env={"A": "b"}, cwd="/usr", shell="sh", text=True)
    assert result.stdout == "b /usr\n"
    assert agent.run("echo a; echo b >&2", merge=True).stdout == b"a\nb\n"
    assert agent.run("echo 12345", max_output=3).exit.dropped_bytes == 3
    assert agent.run("tty", terminal=(80, 24)).stdout.startswith(b"/dev/pts/")


def test_another_user(agent: telexec.Agent) -> None:
    if agent.run("id -u", text=True).stdout != "0\n":
        pytest.skip("the agent does not run as root")
    assert agent.run("id -un", user="nobody", text=True).stdout == "nobody\n"
    with pytest.raises(telexec.NotStarted, match="no such user"):
        agent.run("true", user="nobody-of-that-name")


def test_causes(agent: telexec.Agent, mark: str) -> None:
    result = agent.run("echo a; sleep 1000", timeout=0.3, env={MARK: mark})
    assert (result.exit_code, result.cause, result.stdout) == (-1, "timed_out", b"a\n")
    result = agent.run("kill -9 $$")
    assert (result.exit_code, result.cause, result.signal) == (-1, "signaled", "SIGKILL")


def test_usage_is_of_the_whole_tree(agent: telexec.Agent) -> None:
    # the shell does not wait for what uses the time
    usage = agent.run("(sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done' &) | cat").exit.usage
    assert usage.user_time is None or usage.user_time > 0.01, usage
    assert repr(usage).startswith(f"Usage(user_time={usage.user_time}, system_time="), usage


def test_receipts_are_verified(daemon: Daemon, agent: telexec.Agent, tmp_path: pathlib.Path) -> None:
    assert agent.run("true").exit.receipt is None
    result = agent.run(["printf", "a b"], receipt=True)
    receipt, stdout = tmp_path / "receipt", tmp_path / "stdout"
    receipt.write_text(result.exit.receipt or "")
    stdout.write_bytes(result.stdout)
    verify = [PROGRAMS / "telexec", "receipt", "verify", "--key", daemon.receipt_key, "--stdout", stdout, "--json", receipt]
    statement = json.loads(subprocess.run(verify, check=True, capture_output=True).stdout)
    assert statement["predicate"]["request"]["argv"] == ["printf", "a b"]
    assert statement["predicate"]["executionId"] == result.exit.id


def test_check_raises(agent: telexec.Agent) -> None:
    assert agent.run("true", check=True).exit_code == 0
    with pytest.raises(telexec.CommandFailed, match="code 7: no") as failed:
        agent.run("echo out; echo no >&2; exit 7", check=True)
    assert failed.value.result.exit_code == 7 and failed.value.result.stdout == b"out\n"
    with pytest.raises(telexec.TimedOut, match="timed out") as timed_out:
        agent.run("echo out; sleep 1000", check=True, timeout=0.3, text=True)
    assert timed_out.value.result.stdout == "out\n"
    with pytest.raises(telexec.CommandFailed, match="signaled by SIGTERM") as signaled:
        agent.run("kill $$", check=True)
    assert not isinstance(signaled.value, telexec.TimedOut)


def test_what_does_not_start(agent: telexec.Agent) -> None:
    with pytest.raises(telexec.NotStarted, match="cannot run /no/program: no such file"):
        agent.run(["/no/program"])
    with pytest.raises(telexec.NotStarted, match="cannot enter the directory /no"):
        agent.run("true", cwd="/no")
    for wrong in ({"cwd": "relative"}, {"timeout": 0}, {"env": {"A=": ""}}, {"id": "a b"}):
        with pytest.raises(telexec.Invalid):
            agent.run("true", **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout: -1"):
        agent.run("true", timeout=-1)
    with pytest.raises(telexec.Invalid, match="names no program"):
        agent.run([])


def test_by_mtls(daemon: Daemon) -> None:
    target = f"127.0.0.1:{daemon.port}"
    assert telexec.connect(target, **daemon.credentials()).run("echo hi").stdout == b"hi\n"
    with pytest.raises(telexec.Invalid, match="missing: key and ca"):
        telexec.connect(target, cert=daemon.certs / "client.pem")
    wrong = {**daemon.credentials(), "ca": daemon.certs / "client.pem"}
    with pytest.raises(telexec.Unreachable):
        telexec.connect(target, **wrong)
    with pytest.raises(telexec.Invalid, match="cannot use .*nothing"):
        telexec.connect(target, **{**wrong, "ca": daemon.certs / "nothing"})


def test_credentials_in_the_environment(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, path in daemon.credentials().items():
        monkeypatch.setenv(f"TELEXEC_{name.upper()}", str(path))
    assert telexec.connect(f"tcp://127.0.0.1:{daemon.port}").run("true").exit_code == 0


@pytest.mark.usefixtures("configured")
def test_configured_names() -> None:
    assert telexec.connect("web1").run("echo hi").stdout == b"hi\n"
