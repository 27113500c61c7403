"""How pip builds the package (PEP 517, PEP 660): the sources in terrace/, and libterrace.so, built by CMake.

Nothing but Python, CMake, a compiler and Debian packages is used, and no network. One wheel serves every Python,
because the library has no Python in it. Settings (`pip install . --config-settings library=PATH`):

    library     a built libterrace.so to take, as does the environment variable TERRACE_LIBRARY; else one is built
    standalone  a folder with a library and a program that need nothing (tools/wheel): the wheel runs elsewhere too
"""

import base64
import hashlib
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "terrace"
BUILD = ROOT / "build" / "wheel"
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "TERRACE_BUILD_C": "ON",
    "TERRACE_BUILD_TRAINER": "OFF",
    "TERRACE_BUILD_TOOLS": "OFF",
    "TERRACE_BUILD_TESTS": "OFF",
    "TERRACE_BUILD_BENCH": "OFF",
    "TERRACE_INSTALL": "OFF",
}

_ADVICE = "`sudo tools/setup` in the source tree installs what it is built with."


def _version():
    return re.search(r"project\(terrace VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)


def _soname():
    abi = re.search(r"#define TERRACE_ABI (\d+)", (ROOT / "capi/terrace.h").read_text()).group(1)
    return f"libterrace.so.{abi}"


def _tag(standalone=None):
    """That of this machine, or of all that have a glibc which is as new as the one that the binaries want (PEP 600)."""
    if standalone is None:
        return "py3-none-" + re.sub(r"[-.]", "_", sysconfig.get_platform())
    asked = ["readelf", "--version-info", "--wide", *map(str, _binaries(standalone).values())]
    wanted = subprocess.run(
        asked, stdout=subprocess.PIPE, check=True, text=True, env={**os.environ, "LC_ALL": "C"}
    ).stdout
    glibc = max(int(minor) for minor in re.findall(r"Name: GLIBC_2\.(\d+)", wanted))
    return f"py3-none-manylinux_2_{glibc}_{platform.machine()}"


# --- What needs nothing (tools/wheel) ---


def _standalone(settings):
    """The folder that the settings name, or None."""
    given = (settings or {}).get("standalone")
    return pathlib.Path(given).resolve() if given else None


def _binaries(standalone):
    """Where in a wheel they are, and where in the folder."""
    return {f"terrace/lib/{_soname()}": standalone / _soname(), "terrace/bin/terrace": standalone / "terrace"}


# --- The library ---


def _library(settings):
    """The path of a built library."""
    given = (settings or {}).get("library") or os.environ.get("TERRACE_LIBRARY")
    if given:
        if not os.path.isfile(given):
            sys.exit(f"Terrace: there is no library {given}, which TERRACE_LIBRARY or the setting library names")
        return pathlib.Path(given).resolve()
    if shutil.which("cmake") is None:
        sys.exit(f"Terrace is built with CMake, which is missing here. {_ADVICE}")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    _run(["cmake", "-S", str(ROOT), "-B", str(BUILD), *generator, *(f"-D{k}={v}" for k, v in OPTIONS.items())])
    _run(["cmake", "--build", str(BUILD), "--target", "terrace_c", "--parallel", str(len(os.sched_getaffinity(0)))])
    return BUILD / "capi" / _soname()


def _run(command):
    # stdout is the answer of the backend.
    if subprocess.run(command, stdout=sys.stderr).returncode != 0:
        sys.exit(f"Terrace: `{' '.join(command[:2])}` failed, see above. {_ADVICE}")


def _stripped(binary):
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / binary.name
        shutil.copyfile(binary, copy)
        if shutil.which("strip"):
            subprocess.run(["strip", "--strip-unneeded", str(copy)], check=True)
        return copy.read_bytes()


# --- Wheels ---


def _extras(project):
    """Lines of the metadata for [project.optional-dependencies]. Python 3.9 cannot read TOML: an extra is a line."""
    section = project.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    lines = []
    for extra, needs in re.findall(r"^(\w+) = \[(.*)\]$", section, re.M):
        lines.append(f"Provides-Extra: {extra}\n")
        lines += [f"Requires-Dist: {need} ; extra == '{extra}'\n" for need in re.findall(r'"([^"]+)"', needs)]
    return "".join(lines)


def _metadata():
    project = (ROOT / "pyproject.toml").read_text()
    summary = re.search(r'^description = "(.*)"$', project, re.M).group(1)
    return (
        f"Metadata-Version: 2.1\nName: terrace\nVersion: {_version()}\nSummary: {summary}\nLicense: Apache-2.0\n"
        f"Requires-Python: >=3.9\n{_extras(project)}Description-Content-Type: text/markdown\n\n"
        f"{(ROOT / 'README.md').read_text()}"
    )


def _info(standalone=None):
    """The files of the folder of metadata. The command `terrace` is there where the program is."""
    wheel = f"Wheel-Version: 1.0\nGenerator: terrace\nRoot-Is-Purelib: false\nTag: {_tag(standalone)}\n"
    files = {"METADATA": _metadata().encode(), "WHEEL": wheel.encode(), "LICENSE": (ROOT / "LICENSE").read_bytes()}
    if standalone is not None:
        files["entry_points.txt"] = b"[console_scripts]\nterrace = terrace.__main__:main\n"
        for licence in sorted((standalone / "licenses").iterdir()):
            files[f"licenses/{licence.name}"] = licence.read_bytes()
    return files


def _sources():
    for path in sorted(PACKAGE.rglob("*")):
        inside = path.relative_to(PACKAGE)
        if path.is_file() and path.suffix in (".py", ".typed", ".json") and inside.parts[0] != "lib":
            yield f"terrace/{inside.as_posix()}", path.read_bytes()


def _write_wheel(folder, files, standalone=None):
    """Writes files of {name: bytes} with the record of them. The same files give the same wheel."""
    name = f"terrace-{_version()}"
    info = f"{name}.dist-info"
    files = {**files, **{f"{info}/{file}": content for file, content in _info(standalone).items()}}
    record = [f"{file},sha256={_digest(content)},{len(content)}" for file, content in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    path = pathlib.Path(folder) / f"{name}-{_tag(standalone)}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, content in files.items():
            entry = zipfile.ZipInfo(file, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100755 if file.startswith(("terrace/lib/", "terrace/bin/")) else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return path.name


def _digest(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    standalone = _standalone(config_settings)
    if standalone is None:
        binaries = {f"terrace/lib/{_soname()}": _library(config_settings)}
    else:
        binaries = _binaries(standalone)
    stripped = {name: _stripped(binary) for name, binary in binaries.items()}
    return _write_wheel(wheel_directory, {**dict(_sources()), **stripped}, standalone)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """The sources stay where they are, beside a link to the library where it is built."""
    link = PACKAGE / "lib" / _soname()
    library = _library(config_settings)
    link.parent.mkdir(exist_ok=True)
    if link.is_symlink() or link.exists():
        link.unlink()
    link.symlink_to(library)
    return _write_wheel(wheel_directory, {"terrace.pth": f"{PACKAGE.parent}\n".encode()})


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    info = pathlib.Path(metadata_directory) / f"terrace-{_version()}.dist-info"
    info.mkdir()
    for name, content in _info(_standalone(config_settings)).items():
        (info / name).write_bytes(content)
    return info.name


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


# --- The source ---


def build_sdist(sdist_directory, config_settings=None):
    """All files of the tree: those that git knows, or where there is no git all but what was built."""
    name = f"terrace-{_version()}"
    with tempfile.TemporaryDirectory() as folder:
        info = pathlib.Path(folder) / "PKG-INFO"
        info.write_text(_metadata())
        path = os.path.join(sdist_directory, f"{name}.tar.gz")
        with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
            archive.add(info, f"{name}/PKG-INFO")
            for file in _tree():
                archive.add(ROOT / file, f"{name}/{file}")
    return f"{name}.tar.gz"


def _tree():
    if (ROOT / ".git").exists() and shutil.which("git"):
        listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], stdout=subprocess.PIPE, check=True)
        return [file for file in listed.stdout.decode().split("\0") if file and (ROOT / file).is_file()]
    files = (path.relative_to(ROOT) for path in sorted(ROOT.rglob("*")) if path.is_file())
    built = re.compile(r"build|\.|PKG-INFO$")
    return [file.as_posix() for file in files if not built.match(file.parts[0]) and "__pycache__" not in file.parts]
