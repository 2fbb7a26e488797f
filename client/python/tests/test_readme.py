"""The examples of the README, in their order, in one program; comments at the end of a `print` are what it prints."""

import contextlib
import io
import pathlib
import re

import pytest

README = pathlib.Path(__file__).parents[1] / "README.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.usefixtures("configured")
def test_the_examples_run(agent: object) -> None:
    pytest.importorskip("inspect_ai")
    assert len(EXAMPLES) > 5
    names: dict[str, object] = {}
    for example in EXAMPLES:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(example, "README.md", "exec", dont_inherit=True), names)
        for printed in re.findall(r"print\(.*\)  # (.*)$", example, re.MULTILINE):
            assert printed + "\n" in said.getvalue()
