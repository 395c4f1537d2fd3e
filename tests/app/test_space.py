"""The Space starts, as its own process, with nothing but its files and a run."""

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from app.conftest import free_port

SPACE = Path(__file__).parents[2] / "spaces" / "app.py"


def test_the_space_serves_the_page(trained):
    port = free_port()
    settings = {"RUNS": str(trained.path), "GRADIO_SERVER_NAME": "127.0.0.1", "GRADIO_SERVER_PORT": str(port)}
    process = subprocess.Popen(
        [sys.executable, str(SPACE)], env=os.environ | settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        ends = time.monotonic() + 120
        while time.monotonic() < ends and process.poll() is None:
            try:
                page = httpx.get(f"http://127.0.0.1:{port}/", timeout=5.0)
                break
            except httpx.HTTPError:
                time.sleep(0.5)
        else:
            process.kill()
            pytest.fail(f"the Space did not start: {process.communicate()[0].decode()[-2000:]}")
        assert page.status_code == 200
        assert "open_nvib" in page.text
    finally:
        process.terminate()
        process.wait(30)
        if process.stdout:
            process.stdout.close()


def test_a_space_without_a_run_says_so_in_a_line(tmp_path):
    done = subprocess.run([sys.executable, str(SPACE)], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "RUNS" in done.stderr
    assert "Traceback" not in done.stderr
