"""The first hour of a user: the package is built, installed in an empty environment, and README and Start are followed.

Nothing of the working tree is on the path: the programs find what the wheel has, and the packages that its metadata
asks for. The page's text says what to do, and the script does it, in an empty directory:

python    Below "Save this as `NAME`" the block is the file NAME. All other blocks are typed into one Python, one after
          the other; a `text` block right below one is what it prints.
console   The lines after `$ ` run in a shell; the other lines are what it prints.
bash      The commands run one after the other, and each exits with 0. `headrace run` without --once, and `consume`
          without a limit, go on in the background, as in another terminal, until the end of the block: then Ctrl-C ends
          them. `make` makes the environment, which is there already.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import tarfile
import zipfile
from contextlib import ExitStack
from importlib.metadata import distribution
from pathlib import Path

import pytest

from headrace.testing.broker import free_port
from tests.docs.environments import build, check_out, find_packages, install, link_package
from tests.docs.test_code_blocks import FENCE, ROOT, blocks

pytestmark = pytest.mark.slow
PATIENCE = 600  # seconds


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    return check_out(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def built(checkout, tmp_path_factory):
    """The wheel and the source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    wheel, sdist = sorted(build(checkout, folder, "wheel", "sdist"), key=lambda path: path.suffix, reverse=True)
    return wheel, sdist


@pytest.fixture(scope="module")
def wheel(built):
    return built[0]


@pytest.fixture(scope="module")
def base(wheel, tmp_path_factory):
    return install(wheel, tmp_path_factory.mktemp("base") / "venv")


@pytest.fixture(scope="module")
def everything(wheel, tmp_path_factory):
    return install(wheel, tmp_path_factory.mktemp("all") / "venv", ["all"])


# -------------------------------------------------------------------------------------------------------- the package
def test_the_source_distribution_builds_the_same_wheel(built, tmp_path):
    wheel, sdist = built
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    (again,) = build(unpacked, tmp_path / "dist", "wheel")
    assert files_of(again) == files_of(wheel)
    assert {"README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md"} <= {
        path.name for path in unpacked.iterdir()
    }


def files_of(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {info.filename: info.CRC for info in archive.infolist() if not info.filename.endswith("RECORD")}


def test_the_base_tests_a_topology_and_has_nothing_else(base, tmp_path):
    """`pip install headrace`, a new project, its test in the driver; what is missing is named with its extra."""
    site = next(base.folder.glob("lib/python*/site-packages"))
    for package in ("pyspark", "pandas", "numpy", "pyarrow", "confluent_kafka", "obstore", "starlette", "uvicorn"):
        assert not (site / package).exists()
    assert base.size < 50e6, f"{base.size / 1e6:.0f} MB"
    print(f"the base has {base.size / 1e6:.1f} MB")  # noqa: T201
    tools = tmp_path / "tools"  # pytest, which no extra of Headrace installs
    for package in (distribution("pytest"), *find_packages(distribution("pytest"))):
        link_package(package, tools)
    made = base.run("headrace", "new", "shop", cwd=tmp_path)
    assert (made.returncode, made.stderr) == (0, "cd shop && make test, then make run\n")
    tests = [base.python, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_app.py"]
    tested = base.run(*tests, cwd=tmp_path / "shop", PYTHONPATH=str(tools))
    assert "1 passed" in tested.stdout, tested.stdout + tested.stderr
    (tmp_path / "shop/checkpoint").mkdir()
    base.run("headrace", "topics", "create", "--topic", "lines", "--log", "file:./data", cwd=tmp_path / "shop")
    for command, extra in {
        "headrace run app:app": "spark",
        "headrace produce --topic lines --log file:./data": "spark",
        "headrace topics list --log kafka://127.0.0.1:1": "kafka",
        "headrace dashboard --checkpoint ./checkpoint": "web",
        "headrace run app:app --web": "web",
    }.items():
        failed = subprocess.run(
            command.split(), cwd=tmp_path / "shop", env=base.variables(), capture_output=True, text=True, check=False,
            input="a line\n",
        )  # fmt: skip
        assert failed.returncode == 1
        assert re.fullmatch(rf"headrace: \w+ is not installed: pip install 'headrace\[{extra}\]'\n", failed.stderr)
    fine = base.run("headrace", "topology", "app:build", cwd=tmp_path / "shop")
    assert fine.stdout.startswith("Topologies:")


# ------------------------------------------------------------------------------------------------------------ the pages
class Follower:
    """Does what a page says, in an empty directory."""

    def __init__(self, page: Path, environment, directory: Path) -> None:
        self._page, self._environment, self._directory = page, environment, directory
        self._typed, self._printed = "", ""
        self._port = str(free_port())
        self.commands = 0

    def follow(self, *, kafka: bool) -> None:
        text, end = self._page.read_text(encoding="utf-8"), 0
        for found, block in zip(FENCE.finditer(text), blocks(self._page), strict=True):
            before, end = text[end : found.start()], found.end()
            saved = re.search(r"Save this as `(\S+)`:\s*\Z", before)
            match block.kind:
                case "python" if saved:
                    (self._directory / saved[1]).write_text(block.text)
                case "python":
                    self._typed += "\n" * (block.line - self._typed.count("\n")) + block.text
                case "text" if block.follows and self._typed:
                    self._printed += block.text
                case "console":
                    self._run_python()
                    self._run_console(block.text)
                case "bash" if ("broker" in block.text) == kafka:
                    self._run_python()
                    self._run_commands(block.text)
        self._run_python()

    def _run_python(self) -> None:
        typed, self._typed = self._typed, ""
        if typed:
            done = self._environment.run(self._environment.python, "-c", typed, cwd=self._directory)
            assert (done.returncode, done.stdout, done.stderr) == (0, self._printed, "")
            self._printed = ""

    def _run_console(self, text: str) -> None:
        lines = text.splitlines()
        typed = "\n".join(line.removeprefix("$ ") for line in lines if line.startswith("$ "))
        done = self._environment.run("bash", "-c", f"exec 2>&1\nset -e\n{typed}", cwd=self._directory)
        # Sorted: the two streams of a pipeline reach a terminal in any order.
        assert sorted(done.stdout.splitlines()) == sorted(line for line in lines if not line.startswith("$ "))

    def _run_commands(self, text: str) -> None:
        with ExitStack() as background:
            for line in text.replace("9092", self._port).splitlines():
                words = shlex.split(line, comments=True)
                if not words or words[0] == "make":
                    continue
                self.commands += 1
                if (words[1] == "run" and "--once" not in words) or (
                    words[1] == "consume" and "--max-messages" not in words
                ):
                    background.enter_context(Running(words, self._environment, self._directory))
                    continue
                done = subprocess.run(
                    words, cwd=self._directory, env=self._environment.variables(), capture_output=True, text=True,
                    check=False, input="all of it\n", timeout=PATIENCE,
                )  # fmt: skip
                # `status` exits with 1 while an application that has just started lags behind.
                assert done.returncode == 0 or (words[1] == "status" and done.stdout), (line, done.stdout, done.stderr)
                assert "Traceback" not in done.stderr


class Running:
    """A command in another terminal. It ends by Ctrl-C, without an error."""

    def __init__(self, words, environment, directory: Path) -> None:
        self._is_application = words[1] == "run"
        self._process = subprocess.Popen(
            words, cwd=directory, env=environment.variables(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, bufsize=0,
        )  # fmt: skip

    def __enter__(self):
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        if self._is_application:
            line = self._process.stderr.readline()
            assert re.fullmatch(r"word-count is running\. Ctrl-C ends it\. See http://\S+\n", line), line
        else:
            assert self._process.stdout.readline()  # a record

    def __exit__(self, *failure):
        self._process.send_signal(signal.SIGINT)
        _, err = self._process.communicate(timeout=PATIENCE)
        if self._is_application and failure == (None, None, None):
            assert self._process.returncode == 0
            assert err == (
                "word-count is stopping: it ends the running batch, and delivers what it can. Ctrl-C ends it now.\n"
                "word-count has stopped.\n"
            )


@pytest.mark.spark
def test_readme_is_followed_from_an_empty_directory(everything, tmp_path):
    Follower(ROOT / "README.md", everything, tmp_path).follow(kafka=False)
    reset = "reset --application-id word-count --checkpoint ./word-count/checkpoint --input-topics lines"
    done = everything.run("headrace", *reset.split(), "--log", "file:./word-count/log", cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "word-count was reset.")


@pytest.mark.spark
def test_start_is_followed_from_an_empty_directory(everything, tmp_path):
    follower = Follower(ROOT / "docs/start.md", everything, tmp_path)
    follower.follow(kafka=False)
    assert follower.commands == 7


@pytest.mark.long  # half a minute, for commands that tests/kafka has, too
@pytest.mark.spark
@pytest.mark.kafka
def test_start_is_followed_on_kafka(everything, tmp_path):
    page = ROOT / "docs/start.md"
    (saved,) = re.findall(
        r"Save this as `words.py`:\n\n```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL
    )
    (tmp_path / "words.py").write_text(saved)
    follower = Follower(page, everything, tmp_path)
    (commands,) = (block.text for block in blocks(page) if block.kind == "bash" and "broker" in block.text)
    follower._run_commands(commands)
    assert follower.commands == 6
