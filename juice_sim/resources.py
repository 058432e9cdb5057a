"""Where the files lie that travel with the package: hooks, the plugin's source, scenarios, example.yaml.

In a checkout they are top-level folders; in an installed wheel they are under `juice_sim/shipped` (see pyproject.toml).
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_SHIPPED = _PACKAGE / "shipped"
_CHECKOUT = _PACKAGE.parent


def _find(name: str) -> Path:
    for base in (_SHIPPED, _CHECKOUT):
        path = base / name
        if path.exists():
            return path
    raise FileNotFoundError(
        f"{name} is neither in {_SHIPPED} nor in {_CHECKOUT}: the installation is incomplete; install juice-sim again"
    )


def hooks_dir() -> Path:
    """The folder with juice-config.sh, juice-prolog.sh, juice-epilog.sh and juice_hook.py."""
    return _find("hooks")


def spank_plugin_dir() -> Path:
    """The folder with the source of the SPANK plugin."""
    return _find("spank-plugin")


def scenarios_dir() -> Path:
    """The folder with the scenarios that ship with the package."""
    return _find("scenarios")


def example_yaml() -> Path:
    """The configuration for `RAY_FAKE_CLUSTER=1 ray start --autoscaling-config=...`."""
    return _find("example.yaml")
