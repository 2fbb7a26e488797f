"""Users' code passes mypy --strict and pyright, and mistakes do not."""

import importlib.metadata
import os
import pathlib
import subprocess
import sys

import pytest

import telexec

HERE = pathlib.Path(__file__).parent


def mypy(*words: str, directory: pathlib.Path) -> tuple[int, str]:
    output = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir=/dev/null", *words],
        capture_output=True, text=True, cwd=directory,
    )  # fmt: skip
    return output.returncode, output.stdout


def test_a_program_passes(tmp_path: pathlib.Path) -> None:
    code, said = mypy(str(HERE / "typed_example.py"), directory=tmp_path)
    assert code == 0, said


def test_a_program_passes_pyright(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("pyright")
    # it fetches its program when it is used first: once for an environment
    env = {**os.environ, "PYRIGHT_PYTHON_CACHE_DIR": f"{sys.prefix}/pyright", "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    output = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(HERE / "typed_example.py")],
        capture_output=True, text=True, cwd=tmp_path, env=env,
    )  # fmt: skip
    assert output.returncode == 0, output.stdout + output.stderr


def test_mistakes_do_not_pass(tmp_path: pathlib.Path) -> None:
    lines = [
        'agent.run("true", tiemout=3)',
        'agent.run("true", timeout="3")',
        'agent.run("true", text=True).stdout.decode()',
        "agent.run(3)",
        'telexec.fleet("web1").run("true", tiemout=3)',
        "agent.dial(80)",
        "telexec.connect('web1', reconnect='5')",
        "telexec.fleet('web1').run('true', reconnect='5')",
        "agent.files.rename('a')",
        "agent.files.glob('/', '*', max_matches='5')",
        "telexec.Limits(1)",
    ]
    program = tmp_path / "mistakes.py"
    program.write_text("import telexec\nagent = telexec.connect('web1')\n" + "\n".join(lines) + "\n")
    code, said = mypy(str(program), directory=tmp_path)
    assert code == 1
    for number in range(len(lines)):
        assert f"mistakes.py:{number + 3}: error" in said, said


def test_the_package_passes(tmp_path: pathlib.Path) -> None:
    code, said = mypy("-p", "telexec", "--exclude", "dask", directory=tmp_path)
    said = "\n".join(line for line in said.splitlines() if "telexec/dask.py" not in line)
    assert "error:" not in said, said


def test_the_version_is_that_of_the_package() -> None:
    assert telexec.__version__ == importlib.metadata.version("telexec")
    assert "__version__" in dir(telexec)
