"""Looks into the wheel and the sdist that `make dist` built, then uses the wheel as a stranger would.

    python .ci/dist.py dist

The wheel goes into an empty environment in a temporary folder, first alone (torch comes with it), then with the extra
`lab`. Python runs there isolated (`-I`) and in that folder, so that nothing of the checkout is on its path.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
# Nobody imports these; they must be there all the same.
DATA = {".css", ".js", ".typed"}


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    wheel, sdist = only(folder.glob("*.whl")), only(folder.glob("*.tar.gz"))
    version = look_into_wheel(wheel)
    look_into_sdist(sdist)
    with tempfile.TemporaryDirectory(prefix="lesam-wheel-") as empty:
        use(wheel, version, Path(empty))
    print(f"{wheel.name} and {sdist.name}: complete, and the wheel works on its own")


def only(found: object) -> Path:
    """The one file of its kind: a stale one beside it would be published as well."""
    (file,) = found  # type: ignore[misc]
    return file


def look_into_wheel(wheel: Path) -> str:
    """Every file of the package and the licence, nothing else; the version it calls itself."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
    package = {name for name in names if ".dist-info/" not in name}
    expect(package == files_of_the_package(), "the wheel", package ^ files_of_the_package())
    expect("lesam/py.typed" in package, "the wheel", {"lesam/py.typed"})
    licence = {name for name in names if name.endswith(".dist-info/licenses/LICENSE")}
    expect(bool(licence), "the wheel", {"LICENSE"})
    relative = set(re.findall(r"\]\((?!https?://|#)([^)]*)\)", metadata))
    expect(not relative, "the description, which has relative links,", relative)
    return re.search(r"^Version: (.+)$", metadata, re.MULTILINE)[1]  # type: ignore[index]


def look_into_sdist(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {str(PurePosixPath(*PurePosixPath(name).parts[1:])) for name in archive.getnames()}
    beside = {"LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "pyproject.toml", "setup.py"}
    needed = files_of_the_package() | beside
    expect(needed <= names, "the sdist", needed - names)
    tests = {name for name in names if name.startswith("tests")}
    expect(not tests, "the sdist", tests)


def files_of_the_package() -> set[str]:
    found = {file for file in (ROOT / "lesam").rglob("*") if file.suffix in DATA | {".py"}}
    return {str(file.relative_to(ROOT)) for file in found}


def expect(holds: bool, where: str, files: set[str]) -> None:
    if not holds:
        sys.exit(f"{where} is not what it should be: {', '.join(sorted(files)[:10])}")


def use(wheel: Path, version: str, empty: Path) -> None:
    """Install, the README's first example, and the command line without and with its packages."""
    run(empty, sys.executable, "-m", "venv", "environment")
    python, lesam = empty / "environment/bin/python", empty / "environment/bin/lesam"
    install = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
    run(empty, *install, str(wheel))
    answer = run(empty, str(python), "-I", "-c", "import lesam; print(lesam.__version__, lesam.__file__)")
    expect(answer.split()[0] == version and str(empty) in answer, "the version", {answer})
    lines = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]  # type: ignore[index]
    print("the README's first example:", run(empty, str(python), "-I", "-c", lines).strip())
    refused = subprocess.run([lesam, "--help"], cwd=empty, capture_output=True, text=True)
    expect(refused.returncode != 0 and 'pip install "lesam[lab]"' in refused.stderr, "lesam", {refused.stderr})
    run(empty, *install, f"{wheel}[lab]")
    print(run(empty, str(lesam), "--help"))
    commands = run(empty, str(lesam), "train", "digits", "--scale", "smoke", "--method", "lesam")
    expect("digits" in commands, "lesam train", {commands})


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)[:200]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
