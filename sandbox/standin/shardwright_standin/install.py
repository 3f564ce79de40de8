"""Put the stand-in into a root file system, under the real programs' names and places.

`python -m shardwright_standin.install --root FOLDER [--version 1.2.1] [--triton]`

It copies this package and the recorded contracts, and writes the entry points. The root needs the
Debian packages that README.md lists; nothing is downloaded here.
"""

from __future__ import annotations

import argparse
import compileall
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from py_compile import PycInvalidationMode

from shardwright_standin import contracts, identity

# Where Debian's python3 looks for packages that dpkg does not own, whatever its minor version.
_LIBRARY = "usr/local/lib/shardwright-standin"
_EXAMPLES = "app/tensorrt_llm/examples"
# Triton's images have them elsewhere, and the models of TensorRT-LLM's backend beside them.
_TRITON_EXAMPLES = "app/examples"
_TRITON_MODELS = (
    "app/all_models/inflight_batcher_llm/preprocessing",
    "app/all_models/inflight_batcher_llm/postprocessing",
    "app/all_models/llmapi/tensorrt_llm",
)
_TRITON_SERVER = "opt/tritonserver/bin/tritonserver"
_FAMILIES = ("llama", "qwen")

# Path in the root, and what the script there calls.
PROGRAMS: Mapping[str, str] = {
    "usr/local/bin/trtllm-build": "build",
    "usr/local/bin/trtllm-serve": "serve",
    "usr/local/bin/trtllm-llmapi-launch": "llmapi_launch",
    "usr/local/bin/trtllm-eval": "eval",
    "usr/local/bin/trtllm-bench": "bench",
    "usr/local/bin/vllm": "vllm",
    "usr/local/bin/aiperf": "aiperf",
    "usr/local/bin/nim-serve": "nim",
    "usr/bin/nvidia-smi": "nvidia_smi",
}
# What `python -m` finds: a module's name, what it imports and what it calls.
_MODULES: Mapping[str, tuple[str, str]] = {
    "sglang.launch_server": ("shardwright_standin.tools.sglang", "main()"),
    "sglang.benchmark.serving": (
        "shardwright_standin.tools.serving_benchmark",
        'main("sglang-benchmark-serving", sys.argv[1:])',
    ),
    "tensorrt_llm.serve.scripts.benchmark_serving": (
        "shardwright_standin.tools.serving_benchmark",
        'main("trtllm-benchmark-serving", sys.argv[1:])',
    ),
}
_SCRIPT = """#!/usr/bin/env python3
# Stand-in for an engine without GPUs, for tests only.
import os
import sys

LIBRARY = {library!r}
sys.path.insert(0, LIBRARY)
# Ranks are processes of their own and must find the package too.
os.environ["PYTHONPATH"] = os.pathsep.join(
    part for part in (LIBRARY, os.environ.get("PYTHONPATH", "")) if part
)

from shardwright_standin.tools.{module} import main

sys.exit(main({arguments}))
"""


def install(root: Path, version: str, prefix: str = "/", *, triton: bool = False) -> list[Path]:
    """Install below `root`; `prefix` is where the root will be when it runs.

    With `triton` the root is as Triton's images are, of which the version is TensorRT-LLM's.

    Returns:
        The entry points' paths.

    Raises:
        UnknownReleaseError: For a release that is not known.
    """
    distributions = identity.distributions(version)
    library = root / _LIBRARY
    package = library / "shardwright_standin"
    if package.exists():
        shutil.rmtree(package)
    shutil.copytree(
        Path(__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "contracts")
    )
    shutil.copytree(contracts.folder(), package / "contracts")
    (package / "installed.json").write_text(json.dumps({"version": version}) + "\n")
    _write_metadata(library, distributions)
    for name, (imported, call) in _MODULES.items():
        _write_module(library, name, imported, call)
    _compile(library)
    where = str(Path(prefix) / _LIBRARY)
    written = [_write(root / path, where, module) for path, module in PROGRAMS.items()]
    examples = root / (_TRITON_EXAMPLES if triton else _EXAMPLES)
    written.append(_write(examples / "quantization/quantize.py", where, "quantize"))
    if triton:
        written.append(_write(root / _TRITON_SERVER, where, "triton"))
        for model in _TRITON_MODELS:
            _write_model(root / model)
    for family in _FAMILIES:
        path = examples / "models/core" / family / "convert_checkpoint.py"
        written.append(_write(path, where, "convert_checkpoint", repr(family)))
    # A .pth file makes every python3 of the root see the library, `python -m` included.
    for site in sorted(root.glob("usr/lib/python3/dist-packages")):
        (site / "shardwright-standin.pth").write_text(f"{where}\n")
    return written


def _write_module(library: Path, name: str, imported: str, call: str) -> None:
    folder = library
    for package in name.split(".")[:-1]:
        folder /= package
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").write_text('"""Stand-in without GPUs, for tests only."""\n')
    module = name.rpartition(".")[2]
    (folder / f"{module}.py").write_text(
        f"import sys\n\nfrom {imported} import main\n\n"
        f'if __name__ == "__main__":\n    sys.exit({call})\n'
    )


def _compile(library: Path) -> None:
    """Compile the modules: a pod's user cannot keep what it compiles, and each rank would anew.

    By content, as an image's files have no times. A Python of another version passes it over.

    Raises:
        ValueError: A module cannot be compiled.
    """
    mode = PycInvalidationMode.UNCHECKED_HASH
    if not compileall.compile_dir(library, quiet=1, force=True, invalidation_mode=mode):
        raise ValueError(f"not everything below {library} compiles")


def _write_metadata(library: Path, distributions: Mapping[str, str]) -> None:
    """What `importlib.metadata` reads: the runner notes these versions in an engine's manifest."""
    for stale in library.glob("*.dist-info"):
        shutil.rmtree(stale)
    for name, version in distributions.items():
        folder = library / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            "Summary: Stand-in for an engine without GPUs, for tests only.\n"
        )


def _write_model(folder: Path) -> None:
    """A Python model as the image has it: its code, and a template in which nothing is filled."""
    code = folder / "1" / "model.py"
    code.parent.mkdir(parents=True, exist_ok=True)
    code.write_text('"""Played by the stand-in\'s tritonserver itself."""\n')
    (folder / "config.pbtxt").write_text(f'name: "{folder.name}"\nmax_batch_size: ${{unfilled}}\n')


def _write(path: Path, library: str, module: str, arguments: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_SCRIPT.format(library=library, module=module, arguments=arguments))
    path.chmod(0o755)
    return path


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--version", default=identity.DEFAULT_VERSION)
    parser.add_argument("--triton", action="store_true")
    asked = parser.parse_args()
    for path in install(asked.root, asked.version, triton=asked.triton):
        print(path)


if __name__ == "__main__":
    main()
