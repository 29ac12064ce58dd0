"""A server of commands for each process that attacks, and the folders that a user would have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attack.attacks import Server
from tests.attack.small_home import Home, make_home
from tests.support.figures import figure, leave_what_said_nothing

__all__ = ["figure"]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    leave_what_said_nothing(report, "attack")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("server"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Home:
    return make_home(tmp_path_factory.mktemp("home"), server)
