"""Drives CMake for the compiled library; everything else is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))

import build_config  # noqa: E402
import build_library  # noqa: E402

PACKAGE = "torch_sgemm"


class BuildLibrary(build_ext):
    """In place (also: editable) the library goes to the source tree, otherwise to build_lib."""

    def run(self) -> None:
        target = ROOT if self.inplace or self.editable_mode else Path(self.build_lib)
        build_library.build([target / PACKAGE], self.distribution.get_version())

    def get_ext_filename(self, fullname: str) -> str:
        return f"{PACKAGE}/{build_library.LIBRARY}"

    def _files(self, base: Path) -> list[str]:
        return [str(base / PACKAGE / f) for f in (build_library.LIBRARY, build_library.INFO)]

    def get_outputs(self) -> list[str]:
        return self._files(Path(self.build_lib))

    def get_output_mapping(self) -> dict[str, str]:
        if not (self.inplace or self.editable_mode):
            return {}
        return dict(zip(self._files(Path(self.build_lib)), self._files(ROOT), strict=True))


class Wheel(bdist_wheel):
    """One wheel for every Python: the library has no Python symbols."""

    def get_tag(self) -> tuple[str, str, str]:
        return build_config.wheel_tag(super().get_tag()[2])


setup(
    ext_modules=[Extension(f"{PACKAGE}.libtorch_sgemm", sources=[])],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": Wheel},
)
