"""Federated fine-tuning and targeted unlearning of language models on Flower.

The names of `__all__` are what other programs may rely on; `docs/reference/versions.md` says how far. They are imported
from the room `api` when they are first used: `import oblivionis` loads none of the libraries behind them.
"""

import importlib.util
import logging
import os
from typing import TYPE_CHECKING, Any

from oblivionis.version import __version__ as __version__

if TYPE_CHECKING:
    from oblivionis.api import aggregators, federation, leakage, losses, ruler, wikimem
    from oblivionis.api.evaluation import Evaluation, evaluate_model
    from oblivionis.api.leakage import LeakageBounds, leakage_bounds
    from oblivionis.api.models import ModelLike, Rows, load_model
    from oblivionis.api.runs import Run, simulate
    from oblivionis.api.simulation import simulated_clients
    from oblivionis.config.problems import ConfigError
    from oblivionis.data.errors import DataError
    from oblivionis.data.tokenize import PromptTemplate
    from oblivionis.errors import OblivionisError, RunFailed, RunInterrupted
    from oblivionis.models.errors import ModelError
    from strategies.rounds.fedtu import FedTU
    from strategies.rounds.request_source import RequestList, UnlearnRequest

__all__ = [
    "ConfigError",
    "DataError",
    "Evaluation",
    "FedTU",
    "LeakageBounds",
    "ModelError",
    "ModelLike",
    "OblivionisError",
    "PromptTemplate",
    "RequestList",
    "Rows",
    "Run",
    "RunFailed",
    "RunInterrupted",
    "UnlearnRequest",
    "aggregators",
    "evaluate_model",
    "federation",
    "leakage",
    "leakage_bounds",
    "load_model",
    "losses",
    "ruler",
    "simulate",
    "simulated_clients",
    "wikimem",
]
_HOMES = {
    "oblivionis.api": ("aggregators", "federation", "leakage", "losses", "ruler", "wikimem"),
    "oblivionis.api.evaluation": ("Evaluation", "evaluate_model"),
    "oblivionis.api.leakage": ("LeakageBounds", "leakage_bounds"),
    "oblivionis.api.models": ("ModelLike", "Rows", "load_model"),
    "oblivionis.api.runs": ("Run", "simulate"),
    "oblivionis.api.simulation": ("simulated_clients",),
    "oblivionis.config.problems": ("ConfigError",),
    "oblivionis.data.errors": ("DataError",),
    "oblivionis.data.tokenize": ("PromptTemplate",),
    "oblivionis.errors": ("OblivionisError", "RunFailed", "RunInterrupted"),
    "oblivionis.models.errors": ("ModelError",),
    "strategies.rounds.fedtu": ("FedTU",),
    "strategies.rounds.request_source": ("RequestList", "UnlearnRequest"),
}
"""Where the public names come from, as the imports above say it to type checkers."""

# bitsandbytes warns of every float32 product and of optional kernels, on the terminal, wherever it is installed.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)

SIBLINGS = ("strategies", "clients", "evaluation")
"""The packages that this one imports: top-level names, which any other project may have as well."""
BENCHMARKS = "benchmarks"
"""The package that imports this one: in a checkout and a wheel's installation, not in one of Flower's bundles."""


def __getattr__(name: str) -> Any:
    """A public name, on first use."""
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(home)
    value = importlib.import_module(f"{home}.{name}") if home == f"{__name__}.api" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def check_siblings() -> None:
    """Look where Python would find the packages of `SIBLINGS`, without importing them.

    In a checkout, a wheel's installation and one of Flower's bundles alike they lie beside this package. Raises
    ImportError for one that is missing, or that is found in another place because another project's comes first; so it
    does for `BENCHMARKS` where that lies beside this package.
    """
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    optional = (BENCHMARKS,) if os.path.isdir(os.path.join(home, BENCHMARKS)) else ()
    for name in (*SIBLINGS, *optional):
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
