"""Makes the package: a wheel with libqrun.so and the program inside, or an archive of the sources. Called by pip
(PEP 517), or by hand for both of them:

    python3 python/build_backend.py dist

The library is built by CMake from the sources beside this folder, without packages that the wheel would need where it
is installed. CMAKE_ARGS has further arguments for CMake ("-DQRUN_CUDA=ON"). QRUN_BUILD names a build folder to take
instead of building.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from typing import Any, Dict, List, Optional, Tuple

HERE = pathlib.Path(__file__).resolve().parent
# In an archive of the sources, those of the engine are in a folder of their own.
ENGINE = HERE / "engine" if (HERE / "engine").exists() else HERE.parent
ENGINE_SOURCES = ["CMakeLists.txt", "LICENSE", "base", "cli", "cmake", "examples/CMakeLists.txt", "examples/c",
                  "include", "kernels", "loaders", "quant", "runtime", "serve"]
# What is linked in, or copied beside the library, by the Debian packages that have their licences.
CARRIED = ["libbsd-dev", "libcjson-dev", "libedit-dev", "libevent-dev", "libmd-dev", "libncurses-dev", "libpcre2-dev",
           "libssl-dev", "libutf8proc-dev"]
# What every Linux of a manylinux tag has, of which our own files may need no more.
OF_THE_SYSTEM = re.compile(r"(libc\.so\.6|libm\.so\.6|libdl\.so\.2|libpthread\.so\.0|librt\.so\.1|ld-linux.*)$")
EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "315532800"))  # 1980: the first that a wheel can have
CLASSIFIERS = ["Development Status :: 4 - Beta", "Operating System :: POSIX :: Linux", "Programming Language :: C",
               "Programming Language :: Python :: 3", "Typing :: Typed",
               "Topic :: Scientific/Engineering :: Artificial Intelligence"]

Content = Tuple[bytes, int]  # of a file, and its mode


def version() -> str:
    match = re.search(r"project\(qrun VERSION ([\d.]+)", (ENGINE / "CMakeLists.txt").read_text())
    assert match is not None
    return match.group(1)


def licence() -> pathlib.Path:
    return ENGINE / "LICENSE"


def metadata() -> str:
    lines = ["Metadata-Version: 2.1", "Name: qrun", f"Version: {version()}",
             "Summary: QLoRA fine-tuning and batched generation in one small native engine", "License: MIT",
             "License-File: LICENSE", "Requires-Python: >=3.9", *(f"Classifier: {name}" for name in CLASSIFIERS),
             "Description-Content-Type: text/markdown", ""]
    return "\n".join(lines) + "\n" + (HERE / "README.md").read_text()


# ---- The engine ------------------------------------------------------------------------------------------------------


def run(*command: str) -> None:
    print("$", shlex.join(command), flush=True)
    subprocess.run(command, check=True)


def build_engine() -> str:
    """The build folder."""
    if os.environ.get("QRUN_BUILD"):
        return os.environ["QRUN_BUILD"]
    if shutil.which("cmake") is None or not (ENGINE / "CMakeLists.txt").exists():
        sys.exit(f"qrun is built from its sources ({ENGINE}) by CMake; scripts/install-dependencies.sh installs what "
                 "that needs. pip before 21.3 copies the package away from its sources: update it")
    folder = str(ENGINE / "build" / "python")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    run("cmake", "-S", str(ENGINE), "-B", folder, *generator, "-DCMAKE_BUILD_TYPE=Release", "-DQRUN_PORTABLE=ON",
        "-DQRUN_BUILD_TESTS=OFF", "-DQRUN_BUILD_BENCH=OFF", "-DQRUN_CUDA=OFF", "-DCMAKE_INSTALL_LIBDIR=lib",
        *shlex.split(os.environ.get("CMAKE_ARGS", "")))
    run("cmake", "--build", folder, "--target", "product", "--parallel", str(os.cpu_count() or 1))
    return folder


def engine_files() -> Dict[str, Content]:
    """The program and its libraries, by their names in the package."""
    with tempfile.TemporaryDirectory() as prefix:
        run("cmake", "--install", build_engine(), "--strip", "--prefix", prefix)
        installed = pathlib.Path(prefix)
        libraries = [*(installed / "lib").glob("*.so.[0-9]"), *(installed / "lib").glob("libqrun_cuda.so")]
        if installed / "lib" / "libqrun.so.0" not in libraries:
            sys.exit("the build folder installs no lib/libqrun.so.0; configure it with -DCMAKE_INSTALL_LIBDIR=lib")
        files = {f"qrun/lib/{library.name}": (library.read_bytes(), 0o755) for library in libraries}
        files["qrun/bin/qrun"] = ((installed / "bin" / "qrun").read_bytes(), 0o755)
        return files


def read_elf(content: bytes, option: str, pattern: str) -> List[str]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        shown = subprocess.run(["readelf", "-W", option, file.name], check=True, capture_output=True, text=True).stdout
    return re.findall(pattern, shown)


def platform(files: Dict[str, Content]) -> str:
    """"manylinux_2_34_x86_64": the oldest glibc that has what the files need. "linux_x86_64", for this machine and its
    like, where they need libraries besides glibc that are not among them."""
    machine = sysconfig.get_platform().replace("-", "_").replace(".", "_").replace("linux_", "", 1)
    own = {name.rsplit("/", 1)[1] for name in files}
    glibc = (2, 5)
    for content, _ in files.values():
        for needed in read_elf(content, "-d", r"\(NEEDED\).*\[(.*)\]"):
            if needed not in own and not OF_THE_SYSTEM.match(needed):
                print(f"the wheel is for this machine and its like: it needs {needed}")
                return f"linux_{machine}"
        for found in read_elf(content, "-V", r"Name: GLIBC_(\d+\.\d+)"):
            major, minor = map(int, found.split("."))
            glibc = max(glibc, (major, minor))
    return f"manylinux_{glibc[0]}_{glibc[1]}_{machine}"


# ---- Wheels ----------------------------------------------------------------------------------------------------------


def package_files() -> Dict[str, Content]:
    files = [*(HERE / "qrun").glob("*.py"), HERE / "qrun" / "py.typed"]
    return {f"qrun/{file.name}": (file.read_bytes(), 0o644) for file in files}


def write_wheel(path: pathlib.Path, files: Dict[str, Content], info: str) -> None:
    rows = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        def add(name: str, content: bytes, mode: int) -> None:
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr, entry.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)

        for name, (content, mode) in sorted(files.items()):
            add(name, content, mode)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(content)}\n")
        add(f"{info}/RECORD", ("".join(rows) + f"{info}/RECORD,,\n").encode(), 0o644)


def licences(info: str) -> Dict[str, Content]:
    files = {f"{info}/LICENSE": (licence().read_bytes(), 0o644)}
    for package in CARRIED:
        path = pathlib.Path("/usr/share/doc") / package / "copyright"
        if path.exists():
            files[f"{info}/licenses/{package}.txt"] = (path.read_bytes(), 0o644)
    if len(files) == 1:
        print("this machine has no /usr/share/doc/PACKAGE/copyright: the wheel is without others' licences")
    return files


def build_wheel(wheel_directory: str, config_settings: Optional[Dict[str, Any]] = None,
                metadata_directory: Optional[str] = None) -> str:
    engine = engine_files()
    tag = f"py3-none-{platform(engine)}"
    info = f"qrun-{version()}.dist-info"
    wheel = f"Wheel-Version: 1.0\nGenerator: qrun\nRoot-Is-Purelib: false\nTag: {tag}\n"
    written = {"METADATA": metadata(), "WHEEL": wheel, "entry_points.txt": "[console_scripts]\n"
               "qrun = qrun._program:main\n", "top_level.txt": "qrun\n"}
    files = {**engine, **package_files(), **licences(info),
             **{f"{info}/{name}": (text.encode(), 0o644) for name, text in written.items()}}
    name = f"qrun-{version()}-{tag}.whl"
    write_wheel(pathlib.Path(wheel_directory) / name, files, info)
    return name


# ---- Archives of the sources -----------------------------------------------------------------------------------------


def source_files() -> Dict[str, pathlib.Path]:
    files = {name: HERE / name for name in ("README.md", "build_backend.py", "generate_api.py", "pyproject.toml")}
    files.update({name: HERE / name for name in package_files()})
    files["LICENSE"] = licence()
    for source in ENGINE_SOURCES:
        root = ENGINE / source
        found = [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file())
        files.update({f"engine/{path.relative_to(ENGINE)}": path for path in found if "__pycache__" not in path.parts})
    return files


def build_sdist(sdist_directory: str, config_settings: Optional[Dict[str, Any]] = None) -> str:
    folder = f"qrun-{version()}"
    contents = {name: path.read_bytes() for name, path in source_files().items()}
    contents["PKG-INFO"] = metadata().encode()
    name = f"{folder}.tar.gz"
    with open(pathlib.Path(sdist_directory) / name, "wb") as file, gzip.GzipFile("", "wb", 9, file, EPOCH) as packed, \
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, content in sorted(contents.items()):
            entry = tarfile.TarInfo(f"{folder}/{path}")
            entry.size, entry.mtime, entry.mode = len(content), EPOCH, 0o644
            archive.addfile(entry, io.BytesIO(content))
    return name


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print((__doc__ or "").strip(), file=sys.stderr)
        return 2
    os.makedirs(sys.argv[1], exist_ok=True)
    for made in (build_sdist(sys.argv[1]), build_wheel(sys.argv[1])):
        print(os.path.join(sys.argv[1], made))
    return 0


if __name__ == "__main__":
    sys.exit(main())
