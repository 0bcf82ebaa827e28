"""The fork server of a simulation: what its processes have loaded when they begin."""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib import metadata

from oblivionis.config import compose as configuration
from oblivionis.config import method_traits
from oblivionis.config.schema import Config
from oblivionis.flower.names import ENVIRONMENT
from oblivionis.models.fork_safe_imports import forkable
from oblivionis.runtime.fork_server import ForkServer, fork_server

OF_CLIENTS = (
    "transformers.models.llama.modeling_llama",
    "transformers.models.auto.tokenization_auto",
    "oblivionis.client.worker",
    "oblivionis.client.app",
)
_OF_RECALL = "nltk.stem.porter"
"""What ROUGE takes half a second to load, in each process that compares answers."""
_RECORDS = "oblivionis.models.configured_corpus:load_built_in"
VARIABLES = {**ENVIRONMENT, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
"""Of the environment of a simulation's processes."""


def client_fork_server(config: Config) -> AbstractContextManager[ForkServer]:
    """A fork server whose processes have what a client needs, and the threads that the configuration gives one."""
    names = OF_CLIENTS if forkable(metadata.version("torch")) else ("torch",)
    if config.evaluation.processes > 1 or method_traits.ends_recitation(config.unlearning.method):
        names = (*names, _OF_RECALL)
    threads = {"OMP_NUM_THREADS": str(config.federation.client_cpus)}
    return fork_server(names, {**VARIABLES, **threads}, (_RECORDS, configuration.to_yaml(config)))
