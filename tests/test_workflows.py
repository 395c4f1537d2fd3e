"""What the workflows test is what `pyproject.toml` allows."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def workflow(name: str) -> dict:
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_python_of_the_classifiers_is_tested():
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project()["classifiers"]))
    assert workflow("tests")["jobs"]["versions"]["strategy"]["matrix"]["python"] == named
    assert project()["requires-python"] == f">={named[0]}"


def test_the_oldest_allowed_versions_are_tested():
    bounds = [*project()["dependencies"], *project()["optional-dependencies"]["text"]]
    oldest = [re.match(r"(torch|transformers)>=([\d.]+),<\d+$", bound) for bound in bounds]
    expected = [f"{bound[1]}=={bound[2]}.*" for bound in oldest if bound]
    packages = workflow("tests")["jobs"]["versions"]["strategy"]["matrix"]["packages"]
    assert packages == [" ".join(expected), "torch transformers"]


def test_only_the_job_that_publishes_may_write_and_only_its_identity():
    release = workflow("release")
    assert release["permissions"] == {"contents": "read"}
    allowed = {name: job.get("permissions") for name, job in release["jobs"].items()}
    assert allowed == {"build": None, "publish": {"id-token": "write"}}
