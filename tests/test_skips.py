"""SRNS_REQUIRE: where something must be there, a test that is skipped for want of it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest

@pytest.mark.skipif(True, reason="Postgres is not installed")
def test_marked():
    pass

def test_within():
    pytest.skip("no Chromium here")
"""


@pytest.mark.parametrize(
    ("required", "expected"),
    [("", "2 skipped, 1 error"), ("postgres nginx", "1 skipped, 2 errors"), ("chromium", "1 failed, 1 skipped, 1 error")],
)
def test_what_is_required_is_not_skipped(tmp_path: Path, required: str, expected: str) -> None:
    (tmp_path / "test_these.py").write_text(TESTS)
    (tmp_path / "test_module.py").write_text("import pytest\npytest.importorskip('no_such_module')\n")
    here = Path(__file__).parent
    environment = {
        **os.environ,
        "SRNS_REQUIRE": f"no_such_module {required}",
        "PYTHONPATH": os.pathsep.join([str(here), *sys.path]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # they take seconds to import
    }
    options = ["-q", "-p", "conftest", "-p", "no:cacheprovider", "--continue-on-collection-errors", "-c", os.devnull]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "."], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert expected in done.stdout, done.stdout + done.stderr
    assert "SRNS_REQUIRE says" in done.stdout
