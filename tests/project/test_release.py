"""The parts of a release: one version, an sdist that builds, a wheel's tag, an index."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
from support.process import ROOT

import torch_sgemm
from torch_sgemm.info import build_info

sys.path.append(str(ROOT / "tools"))

import check_wheel  # noqa: E402
import release  # noqa: E402

pytestmark = pytest.mark.xdist_group("tree")  # an sdist's folder lies in the tree for a moment


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


# --- the version, and what is pinned ---


def test_the_version_is_in_one_place() -> None:
    number = release.version()
    assert number == torch_sgemm.__version__ == build_info()["version"]
    assigned = re.compile(rf"""version\w*["']?\s*[:=]\s*["']?{re.escape(number)}""", re.I)
    files = [
        path
        for pattern in ("*.py", "*.toml", "*.cff", "*.txt", "*.yml", "Makefile")
        for path in [*ROOT.glob(pattern), *(ROOT / "torch_sgemm").glob(pattern)]
    ]
    found = [path.name for path in files if assigned.search(path.read_text(encoding="utf-8"))]
    assert found == ["__init__.py"]


def test_the_changelog_has_the_version_first() -> None:
    headings = re.findall(r"^## \[([^\]]+)\](?: - \S+)?$", text_of("CHANGELOG.md"), re.M)
    assert headings and headings[0] in ("Unreleased", release.version())
    assert release.version() in headings
    assert release.release_date(text_of("CHANGELOG.md"), release.version())


def test_a_version_without_a_section_is_refused() -> None:
    with pytest.raises(SystemExit, match="no section"):
        release.release_date("## [0.1.0] - 2026-01-02\n", "0.2.0")
    assert release.release_date("## [0.1.0] - 2026-01-02\n", "0.1.0") == "2026-01-02"


def test_formatters_are_pinned_once() -> None:
    """pyproject.toml says which; pre-commit's tags, which can't read it, are the same."""
    project, hooks = text_of("pyproject.toml"), yaml.safe_load(text_of(".pre-commit-config.yaml"))
    tags = {repo["repo"].rsplit("/", 1)[1]: repo["rev"] for repo in hooks["repos"]}
    for name, repository in (
        ("ruff", "ruff-pre-commit"), ("clang-format", "mirrors-clang-format"),
    ):  # fmt: skip
        (pinned,) = re.findall(rf'"{name}==([\d.]+)"', project)
        assert tags[repository] == f"v{pinned}"


# --- what GitHub reads ---


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda p: p.name)
def test_github_files_are_yaml(path: Path) -> None:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.parent.name == "workflows":
        steps = [step for job in content["jobs"].values() for step in job["steps"]]
        assert all(("uses" in step) != ("run" in step) for step in steps)
        assert all(re.search(r"@v\d", step["uses"]) for step in steps if "uses" in step)
        for step in steps:
            for script in re.findall(r"\S*tools/\S+\.py|\.ci/\w+", step.get("run", "")):
                assert (ROOT / script).is_file()
    elif path.name != "config.yml":
        assert content["name"] and content["description"]
        ids = [field["id"] for field in content["body"]]
        assert len(ids) == len(set(ids)) and "info" in ids


def test_workflows_run_the_whole_check_and_make_wheels() -> None:
    assert "run: .ci/run\n" in text_of(".github/workflows/test.yml")
    wheels = text_of(".github/workflows/wheels.yml")
    assert "cibuildwheel" in wheels and "release.py index dist" in wheels
    assert "release.py repair {wheel} {dest_dir}" in text_of("pyproject.toml")


def test_wheels_are_built_on_a_machine_of_each_platform() -> None:
    """The matrix, the builds that cibuildwheel knows, and what the index asks for are the same."""
    jobs = yaml.safe_load(text_of(".github/workflows/wheels.yml"))["jobs"]
    matrix = {x["platform"]: x["runner"] for x in jobs["wheel"]["strategy"]["matrix"]["include"]}
    assert matrix == {"x86_64": "ubuntu-24.04", "aarch64": "ubuntu-24.04-arm"}
    project = text_of("pyproject.toml")
    assert re.findall(r'"cp312-manylinux_(\w+)"', project) == list(matrix)
    assert re.findall(r"^manylinux-(\w+)-image = \"(\w+)\"", project, re.M) == [
        (platform, "manylinux_2_28") for platform in matrix
    ]
    (asked,) = [s["run"] for s in jobs["index"]["steps"] if "release.py index" in s.get("run", "")]
    assert asked.split("--platform ")[1].split() == list(matrix)


def test_every_part_is_in_the_index_before_it_is_published() -> None:
    """Artifacts are merged by a pattern; a job that isn't waited for would be left out."""
    jobs = yaml.safe_load(text_of(".github/workflows/wheels.yml"))["jobs"]
    assert [jobs[name].get("needs") for name in ("sdist", "wheel", "index", "publish")] == [
        None, "sdist", "wheel", "index",
    ]  # fmt: skip
    uploads = {
        name: [s["with"]["name"] for s in job["steps"] if "upload-artifact" in s.get("uses", "")]
        for name, job in jobs.items()
    }
    assert uploads["sdist"] == ["part-sdist"]
    assert uploads["wheel"] == ["part-${{ matrix.platform }}"]
    (merged,) = [s["with"] for s in jobs["index"]["steps"] if "download-" in s.get("uses", "")]
    assert merged == {"pattern": "part-*", "path": "dist", "merge-multiple": True}


def test_the_citation_is_yaml_and_has_no_version_of_its_own() -> None:
    citation = yaml.safe_load(text_of("CITATION.cff"))
    assert citation["license"] == "MIT" and citation["authors"] and "version" not in citation
    assert citation["authors"][0]["name"] in text_of("LICENSE")


# --- the files ---


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools.command.bdist_wheel", reason="needs setuptools 77 or later")
    return release.build_sdist(tmp_path_factory.mktemp("sdist"))


def test_the_sdist_has_what_a_build_needs(sdist: Path) -> None:
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    needed = {"pyproject.toml", "setup.py", "CMakeLists.txt", "LICENSE", "README.md"}
    for folder in ("csrc", "tools", "torch_sgemm", "torch_sgemm_autoload"):
        needed |= {
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / folder).rglob("*")
            if path.suffix in (".py", ".cu", ".cuh", ".cpp", ".h", ".typed")
        }
    assert len(needed) > 100 and not needed - names
    assert not [name for name in names if name.endswith((".so", "build_info.json"))]


def packed_here(directory: Path) -> Path:
    """A wheel with the library that is loaded, of the tag that setuptools gives."""
    on = f"py3-none-linux_{platform.machine()}"
    wheel = directory / f"torch_sgemm-{release.version()}-{on}.whl"
    about = f"torch_sgemm-{release.version()}.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        for package in check_wheel.PACKAGES:
            for path in sorted((ROOT / package).rglob("*.*")):
                if "__pycache__" not in path.parts:
                    packed.write(path, path.relative_to(ROOT))
        tag = f"Root-Is-Purelib: false\nTag: {on}\n"
        packed.writestr(f"{about}/WHEEL", f"Wheel-Version: 1.0\nGenerator: test\n{tag}")
        head = f"Metadata-Version: 2.1\nName: torch_sgemm\nVersion: {release.version()}\n"
        packed.writestr(f"{about}/METADATA", head)
        record = "".join(f"{name},,\n" for name in packed.namelist())
        packed.writestr(f"{about}/RECORD", record)
    return wheel


def test_the_tests_of_a_wheel_see_its_files_and_not_the_checkout_s(tmp_path: Path) -> None:
    wheel = packed_here(tmp_path)
    tree = check_wheel.tree_of(wheel, tmp_path / "tree")
    assert (tree / "torch_sgemm" / "libtorch_sgemm.so").is_file()
    assert (tree / "tests" / "project" / "test_release.py").is_file() and (tree / "csrc").is_dir()
    assert not (tree / ".git").exists() and not (tree / ".venv").exists()


@pytest.mark.skipif(not shutil.which("auditwheel"), reason="needs auditwheel and patchelf")
def test_a_wheel_gets_its_manylinux_tag_and_keeps_its_library(tmp_path: Path) -> None:
    fixed = release.repair(packed_here(tmp_path), tmp_path / "dist")
    assert re.fullmatch(r"torch_sgemm-.*-py3-none-manylinux_\d_\d+_\w+\.whl", fixed.name)
    with zipfile.ZipFile(fixed) as packed:
        assert not [name for name in packed.namelist() if ".libs/" in name]
        library = packed.read("torch_sgemm/libtorch_sgemm.so")
    assert library == (ROOT / "torch_sgemm" / "libtorch_sgemm.so").read_bytes()


def test_a_wheel_is_probed_where_pip_puts_it(tmp_path: Path) -> None:
    answer = check_wheel.check(Path(sys.executable), packed_here(tmp_path), tmp_path / "target")
    if "No module named pip" in str(answer.get("error")):
        pytest.skip("pip isn't installed here")
    assert "error" not in answer, answer
    assert str(answer["at"]).startswith(str(tmp_path)) and answer["worst"] <= 98


def test_without_auditwheel_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release.shutil, "which", lambda *_, **__: None)
    with pytest.raises(SystemExit, match=r"pip install '\.\[release\]'"):
        release.repair(tmp_path / "none.whl", tmp_path)


def test_large_wheels_are_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "torch_sgemm-0-py3-none-any.whl"
    with wheel.open("wb") as file:
        file.truncate(60 * 10**6)
    release.check_size(wheel)
    with wheel.open("ab") as file:
        file.write(b"1")
    with pytest.raises(SystemExit, match="60 MB|up to 60"):
        release.check_size(wheel)


def bare_wheel(directory: Path, tag: str) -> Path:
    """A wheel without the library."""
    number = release.version()
    wheel = directory / f"torch_sgemm-{number}-{tag}.whl"
    about = f"torch_sgemm-{number}.dist-info"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr(f"{about}/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        head = f"Metadata-Version: 2.1\nName: torch_sgemm\nVersion: {number}\n"
        packed.writestr(f"{about}/METADATA", head)
        packed.writestr(f"{about}/RECORD", "")
    return wheel


def download(index: Path, target: Path, *options: str) -> None:
    """Downloads torch_sgemm by pip from a static index alone."""
    command = [
        sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-cache-dir",
        "--disable-pip-version-check", "--isolated", "--index-url", index.as_uri(),
        "-d", str(target), *options, "torch_sgemm",
    ]  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if "No module named pip" in done.stderr:
        pytest.skip("pip isn't installed here")
    assert done.returncode == 0, done.stderr[-3000:]


def test_pip_installs_from_the_index(tmp_path: Path) -> None:
    """The page alone: pip downloads a wheel and checks it by its digest."""
    wheel = bare_wheel(tmp_path, "py3-none-any")
    page = release.write_index(tmp_path)
    assert "#sha256=" in page.read_text()
    download(tmp_path / "simple", tmp_path / "got")
    assert (tmp_path / "got" / wheel.name).read_bytes() == wheel.read_bytes()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_pip_takes_the_wheel_of_its_platform(machine: str, tmp_path: Path) -> None:
    tags = [f"py3-none-manylinux_2_28_{name}" for name in ("x86_64", "aarch64")]
    names = {tag.rpartition("28_")[2]: bare_wheel(tmp_path, tag).name for tag in tags}
    release.write_index(tmp_path, list(names))
    only = ("--only-binary=:all:", "--platform", f"manylinux_2_28_{machine}")
    download(tmp_path / "simple", tmp_path / "got", *only)
    assert [path.name for path in (tmp_path / "got").iterdir()] == [names[machine]]


def test_an_index_without_a_platform_s_wheel_is_refused(tmp_path: Path) -> None:
    bare_wheel(tmp_path, "py3-none-manylinux_2_28_x86_64")
    release.main(["index", str(tmp_path), "--platform", "x86_64"])
    with pytest.raises(SystemExit, match="no wheel for aarch64"):
        release.main(["index", str(tmp_path), "--platform", "x86_64", "aarch64"])


def test_an_index_of_two_versions_is_refused(tmp_path: Path) -> None:
    bare_wheel(tmp_path, "py3-none-any")
    (tmp_path / "torch_sgemm-0.0.9.tar.gz").touch()
    with pytest.raises(SystemExit, match=r"versions 0\.0\.9, "):
        release.write_index(tmp_path)


def test_an_index_without_a_wheel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no wheel"):
        release.write_index(tmp_path)


def test_a_tag_has_to_be_the_version(capsys: pytest.CaptureFixture) -> None:
    release.main(["version", "--tag", f"v{release.version()}"])
    assert capsys.readouterr().out.strip() == release.version()
    with pytest.raises(SystemExit, match="the tag is v9"):
        release.main(["version", "--tag", "v9"])


def test_tests_are_run_only_where_the_wheel_may_be_installed() -> None:
    command = [sys.executable, str(ROOT / "tools" / "check_wheel.py"), "--tests", "--env", "x"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "only into those that it makes" in done.stderr
