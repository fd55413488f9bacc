"""One nursery for all tests of a process, because what it imports takes longer than they do."""

from collections.abc import Iterator

import pytest

from tests.hostile.nursery import Nursery


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    started = Nursery(tmp_path_factory.mktemp("nursery"))
    yield started
    started.close()
