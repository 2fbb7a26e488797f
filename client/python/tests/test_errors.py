"""Errors."""

import asyncio

import pytest

import telexec


@pytest.mark.parametrize("when_converted", [False, True])
def test_a_panic_is_an_error(when_converted: bool) -> None:
    """Neither a blocking call, nor an await, nor a race waits forever."""
    from telexec import _telexec

    panicking = getattr(_telexec, "panicking", None)
    if panicking is None:
        pytest.skip("only a debug build has a call that panics")

    async def awaited() -> None:
        await panicking(when_converted)

    race = _telexec.Race()
    race.add(1, panicking(when_converted))
    for call in (panicking(when_converted).wait, lambda: asyncio.run(asyncio.wait_for(awaited(), 60))):
        with pytest.raises(telexec.Error, match="internal error in telexec: on purpose"):
            call()
    ended = race.next(0).wait()
    assert ended is not None and "internal error" in str(ended[2])
