"""Each test of a promise leaves its figure; and a teacher that the command made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import make_home
from tests.support.figures import figure, leave_what_said_nothing

__all__ = ["figure"]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    leave_what_said_nothing(report, "reliability")


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows, and a teacher that the finetune command made."""
    return make_home(tmp_path_factory.mktemp("home"), 240, 80)
