from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [LINT_IMPORTS, "--config", folder / "pyproject.toml", "--no-cache"],
        cwd=folder,
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_every_module_imports_only_from_layers_below_its_own() -> None:
    result = lint_imports(ROOT)

    assert result.returncode == 0, result.stdout


def test_a_module_that_breaks_a_contract_is_found(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for path in ROOT.glob("cpupool/**/*.py"):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    with (tmp_path / "cpupool/core/cpuset.py").open("a") as module:
        module.write("\nimport cpupool.manager.manager\n")

    result = lint_imports(tmp_path)

    assert result.returncode != 0
    assert "cpupool.core is not allowed to import cpupool.manager" in result.stdout
