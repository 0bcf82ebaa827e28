"""Federated fine-tuning and targeted unlearning of language models on Flower."""

import importlib.util
import logging
import os

__version__ = "0.2.0"

# bitsandbytes warns of every float32 product and of optional kernels, on the terminal, wherever it is installed.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)

SIBLINGS = ("strategies", "clients", "evaluation", "benchmarks")
"""The other packages of this project: top-level names, which any other project may have as well."""


def check_siblings() -> None:
    """Look where Python would find the packages of `SIBLINGS`, without importing them.

    In a checkout, a wheel's installation and one of Flower's bundles alike they lie beside this package. Raises
    ImportError for one that is missing, or that is found elsewhere because another project's comes first.
    """
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for name in SIBLINGS:
        try:
            spec = importlib.util.find_spec(name)
        except ValueError:  # imported already, and made by hand
            raise ImportError(_shadowed(name, "a module without a file", home)) from None
        if spec is None or spec.origin is None:  # not found, or folders without __init__.py
            raise ImportError(
                f"oblivionis is incomplete: its package `{name}` is not in {home}. Install oblivionis again, or keep "
                f"{', '.join(SIBLINGS)} beside it."
            )
        if not _same_folder(os.path.dirname(spec.origin), os.path.join(home, name)):
            raise ImportError(_shadowed(name, spec.origin, home))


def _same_folder(found: str, own: str) -> bool:
    try:
        return os.path.samefile(found, own)
    except OSError:
        return False


def _shadowed(name: str, found: str, home: str) -> str:
    return (
        f"`{name}` is not the package of oblivionis, which lies in {home}: Python finds {found} first. Start in "
        f"another folder if that one is yours, take its folder off PYTHONPATH, or uninstall what brings it; "
        f"oblivionis is best installed in a virtual environment of its own."
    )


check_siblings()
