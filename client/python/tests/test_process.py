"""Programs that use telexec, and their ends."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from conftest import LIMIT_SECONDS, MARK, Daemon, processes, until

import telexec


def program(daemon: Daemon, mark: str, text: str) -> subprocess.Popen[str]:
    """A program that has `agent` and `env`."""
    head = f"import telexec\nagent = telexec.connect({daemon.uri!r})\nenv = {{{MARK!r}: {mark!r}}}\n"
    words = [sys.executable, "-c", head + textwrap.dedent(text)]
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(started: subprocess.Popen[str]) -> tuple[int, str, str]:
    stdout, stderr = started.communicate(timeout=LIMIT_SECONDS)
    return started.returncode, stdout, stderr


BLOCKING = {
    "run": 'agent.run("sleep 1000 & sleep 1000", env=env)',
    "next": 'list(agent.start("sleep 1000 & sleep 1000", env=env))',
    "wait": 'with agent.start("sleep 1000 & sleep 1000", env=env) as execution: execution.wait()',
}


@pytest.mark.parametrize("call", BLOCKING)
def test_an_interrupt_ends_the_command(daemon: Daemon, mark: str, call: str) -> None:
    text = f"""
        import time
        try:
            {BLOCKING[call]}
        except KeyboardInterrupt:
            print(time.monotonic())
    """
    started = program(daemon, mark, text)
    until(lambda: len(processes(mark)) >= 2, "it runs")
    sent = time.monotonic()
    started.send_signal(signal.SIGINT)
    code, stdout, stderr = ended(started)
    assert code == 0, stderr
    # the clock is the machine's; in a `with` block the end of the command is waited for
    assert call == "wait" or float(stdout) - sent < 0.5
    until(lambda: not processes(mark), "it is ended")


def test_a_program_that_goes_on_after_an_interrupt_leaves_nothing(daemon: Daemon, mark: str) -> None:
    text = """
        import time
        try:
            for event in agent.start("sleep 1000 & sleep 1000", env=env):
                pass
        except KeyboardInterrupt:
            pass
        print("goes on", flush=True)
        time.sleep(1000)
    """
    started = program(daemon, mark, text)
    until(lambda: len(processes(mark)) >= 2, "it runs")
    started.send_signal(signal.SIGINT)
    assert started.stdout is not None and started.stdout.readline() == "goes on\n"
    # the reference is gone, and the program is not
    until(lambda: not processes(mark), "it is ended")
    assert started.poll() is None
    started.kill()
    started.communicate()


def test_a_program_that_ends_leaves_nothing(daemon: Daemon, mark: str) -> None:
    text = """
        import threading
        held = [agent.start("sleep 1000 & sleep 1000", env=env) for _ in range(3)]
        threading.Thread(target=lambda: agent.run("sleep 1000", env=env), daemon=True).start()
        import time
        while len(agent.list()) < 4: time.sleep(0.02)
    """
    code, _, stderr = ended(program(daemon, mark, text))
    # the thread may say that it was interrupted
    assert code == 0 and "panicked" not in stderr, stderr
    until(lambda: not processes(mark), "they are ended")


def test_a_program_in_asyncio_that_ends_leaves_nothing(daemon: Daemon, mark: str) -> None:
    text = f"""
        import asyncio, telexec.aio
        async def main():
            agent = await telexec.aio.connect({daemon.uri!r})
            tasks = [asyncio.create_task(agent.run("sleep 1000", env=env)) for _ in range(20)]
            while len(await agent.list()) < 20: await asyncio.sleep(0.02)
        asyncio.run(main())
    """
    assert ended(program(daemon, mark, text)) == (0, "", "")
    until(lambda: not processes(mark), "they are ended")


def test_an_interrupt_in_asyncio_ends_the_command(daemon: Daemon, mark: str) -> None:
    text = f"""
        import asyncio, telexec.aio
        async def main():
            agent = await telexec.aio.connect({daemon.uri!r})
            async with agent.start("sleep 1000 & sleep 1000", env=env) as execution:
                await execution.wait()
        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            print("interrupted")
    """
    started = program(daemon, mark, text)
    until(lambda: len(processes(mark)) >= 2, "it runs")
    started.send_signal(signal.SIGINT)
    assert ended(started) == (0, "interrupted\n", "")
    assert processes(mark) == []


def test_a_program_that_fails_leaves_nothing(daemon: Daemon, mark: str) -> None:
    text = """
        execution = agent.start("echo ready; sleep 1000", env=env)
        next(execution)
        raise SystemExit(3)
    """
    assert ended(program(daemon, mark, text)) == (3, "", "")
    until(lambda: not processes(mark), "it is ended")


def test_a_fork_connects_again(daemon: Daemon, mark: str) -> None:
    text = f"""
        import gc, os
        execution = agent.start("echo ready; sleep 1000", env=env)
        next(execution)
        files, pending = agent.files, agent._core.list(False, {{}})
        child = os.fork()
        if child == 0:
            for call in (lambda: agent.run("true"), lambda: next(execution), lambda: execution.close(),
                         lambda: files.read("/x"), pending.wait):
                try:
                    call()
                except telexec.Error as error:
                    assert "call telexec.connect() again" in str(error), error
                else:
                    os._exit(1)
            del agent, execution, files, pending, call
            gc.collect()
            again = telexec.connect({daemon.uri!r})
            assert again.run("echo child").stdout == b"child\\n"
            import sys
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert agent.run("echo parent").stdout == b"parent\\n"
        assert agent.get(execution.id).state == "running"
    """
    assert ended(program(daemon, mark, text)) == (0, "", "")


def test_processes_of_multiprocessing(daemon: Daemon, mark: str, tmp_path: pathlib.Path) -> None:
    text = f"""
        import multiprocessing, telexec
        def work(number):
            return telexec.connect({daemon.uri!r}).run(f"echo {{number}}", text=True).stdout
        if __name__ == "__main__":
            telexec.connect({daemon.uri!r}).run("true")
            with multiprocessing.get_context("fork").Pool(3) as pool:
                print(pool.map(work, range(6)))
    """
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(text))
    output = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert output.stdout == f"{[f'{number}' + chr(10) for number in range(6)]}\n", output.stderr


def test_no_thread_of_python_is_made(agent: telexec.Agent) -> None:
    import threading

    before = threading.active_count()
    agent.run("true")
    assert threading.active_count() == before and os.getpid()


def test_calls_that_are_cancelled_early_leave_nothing(daemon: Daemon, mark: str) -> None:
    text = f"""
        import asyncio, telexec.aio
        async def main():
            agent = await telexec.aio.connect({daemon.uri!r})
            for seconds in (0, 0.0005, 0.001, 0.002, 0.004):
                try: await asyncio.wait_for(agent.run("sleep 1000", env=env), seconds)
                except TimeoutError: pass
        asyncio.run(main())
        telexec._telexec.shut_down()
        telexec._telexec.shut_down()
    """
    assert ended(program(daemon, mark, text)) == (0, "", "")
    until(lambda: not processes(mark), "they are ended")


def test_another_interpreter_cannot_have_it(daemon: Daemon, mark: str) -> None:
    text = f"""
        try: import _interpreters as interpreters
        except ImportError: import _xxsubinterpreters as interpreters
        def elsewhere():
            other = interpreters.create()
            failed = interpreters.run_string(other, '''if True:
                try: import telexec._telexec
                except ImportError as error: assert "subinterpreter" in str(error), error
                else: raise AssertionError
            ''')
            interpreters.destroy(other)
            assert failed is None, failed
        elsewhere()
        import telexec
        agent = telexec.connect({daemon.uri!r})
        elsewhere()
        assert agent.run("echo out").stdout == b"out\\n"
        assert telexec.connect({daemon.uri!r}).run("echo out").stdout == b"out\\n"
    """
    words = [sys.executable, "-c", textwrap.dedent(text)]
    assert subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_SECONDS).stderr == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a user without other processes")
@pytest.mark.parametrize("threads", range(3))
def test_without_threads_it_fails_like_anything_else(threads: int) -> None:
    text = f"""
        import os, resource, telexec
        telexec.Error, telexec.Unreachable, telexec.connect
        os.environ["HOME"] = "/nowhere"
        os.setresgid(61055, 61055, 61055)
        os.setresuid(61055, 61055, 61055)
        limit = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        resource.setrlimit(resource.RLIMIT_NPROC, (1 + {threads}, limit))
        for _ in range(2):
            try: telexec.connect("unix:///nowhere")
            except telexec.Error as error: assert "ulimit -u" in str(error), error
            else: raise AssertionError
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
        try: telexec.connect("unix:///nowhere")
        except telexec.Unreachable: pass
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(text)], stdin=subprocess.DEVNULL, capture_output=True,
                         timeout=LIMIT_SECONDS)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
