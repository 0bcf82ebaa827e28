"""What `oblivionis simulate` says before it starts: hints on the machine, and whether the memory will do."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from clients import losses
from clients.batch_quantities import check_quantities
from oblivionis.config import extension_traits
from oblivionis.config.schema import Config
from oblivionis.data.tokenize import layout_of
from oblivionis.errors import OblivionisError, RunError
from oblivionis.models import dry_run, loading
from oblivionis.models.assembly import prompt_template
from oblivionis.models.configured_corpus import corpus_of, tokenizer_of
from oblivionis.models.hardware import Machine, ResourceError, check
from oblivionis.models.memory import Estimate, estimate
from oblivionis.models.record_lengths import Lengths, lengths
from oblivionis.reports.format import bytes_text
from oblivionis.runs.tracking import check_tracking


def preflight(config: Config, console: Console) -> None:
    """Print hints and one line on memory.

    Raises RunError for an `evaluation.ruler.layer` that the model does not have, for clients' own data without their
    folder and for a loss of the user's own that cannot be used; ResourceError when a GPU that is asked for is missing,
    and in a strict configuration when the memory may not do; ModelError when a package or the model is missing;
    TemplateError for a template that does not fit the model.
    """
    machine = Machine.here()
    if config.data.on_clients and config.data.nodes is None:
        raise RunError(
            "data.nodes: a simulation of data=node needs the folder of the clients' folders (node0/data/, "
            "node1/data/, …); only SuperNodes of a deployment name their own (node-dir)"
        )
    check_tracking(config.tracking)
    _check_layer(config)
    _check_loss(config)
    layout_of(tokenizer_of(config), prompt_template(config.model))
    for hint in check(config, machine):
        console.print(f"hint: {hint}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    need = estimated(config, machine)
    if isinstance(need, str):
        console.print(need, style="yellow", markup=False)
        return
    console.print(f"memory: {summary(need, machine)}", highlight=False, soft_wrap=True)
    short = need.shortages(machine)
    if not short:
        return
    text = "; ".join(f"{what}: up to {bytes_text(needed)} of {bytes_text(free)} free" for what, needed, free in short)
    text = (
        f"the memory may not do ({text}). If a whole batch is made of the longest records, that is. {_advice(config)}"
    )
    if config.strict:
        raise ResourceError(f"strict: {text}")
    console.print(f"warning: {text}", style="red", markup=False, highlight=False, soft_wrap=True)


def estimated(config: Config, machine: Machine) -> Estimate | str:
    """How much memory a run takes, or in a line why that cannot be estimated.

    Raises OblivionisError for what is wrong with the configuration or the model. A model whose pass cannot be tried
    without numbers may still run.
    """
    try:
        return estimate(config, machine, lengths_of(config))
    except OblivionisError:
        raise
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return f"memory: cannot be told beforehand for this model ({reason})"


def lengths_of(config: Config) -> Lengths | None:
    """How long the records are, None where only the clients have them or the data cannot be read yet."""
    try:
        return lengths(corpus_of(config), config)
    except OblivionisError:
        return None


def _check_layer(config: Config) -> None:
    """RunError, before anything starts, when the model does not have the layer that RULER is to read."""
    if config.evaluation.ruler.layer is not None:
        from oblivionis.measures.ruler.paired_models import check_layer

        folder = loading.resolve(config.model.source, config.model.revision)
        check_layer(dry_run.skeleton(folder, dtype=loading.DTYPES[config.model.dtype]), config)


def _check_loss(config: Config) -> None:
    """RunError, before anything starts, for a loss of the user's own that clients could not import or compute."""
    method = config.unlearning.method
    if extension_traits.own_loss(method) is not None:
        try:
            check_quantities(method, losses.get(method).names)
        except ValueError as error:
            raise RunError(f"unlearning.method: {error}") from error


def summary(need: Estimate, machine: Machine) -> str:
    """The estimate in one line."""
    processes = f"{need.clients} client process{'' if need.clients == 1 else 'es'}"
    each = f"server {bytes_text(need.server.total)}, {processes} with {bytes_text(need.client.total)}"
    ram = f"{bytes_text(need.ram)} of {bytes_text(machine.free_ram)} free RAM"
    if not need.on_gpu:
        common = f", of each {bytes_text(need.shared)} in common" if need.shared else ""
        return f"at most {ram} ({each}{common})"
    shared = f", {need.gpu_clients} on one GPU" if need.gpu_clients < need.clients else ""
    gpu = f"{bytes_text(need.gpu)} of {bytes_text(machine.free_gpu)} free on a GPU"
    return f"at most {gpu} ({each}{shared}) and {ram}"


def memory_table(need: Estimate) -> Table:
    """The parts of the estimate, per process and together."""
    place = "GPU memory" if need.on_gpu else "RAM"
    table = Table(title=f"{place}, at most", title_justify="left")
    table.add_column("of one process")
    table.add_column("server", justify="right")
    table.add_column("client", justify="right")
    columns = [dict(process.parts) for process in (need.server, need.client)]
    for name in dict.fromkeys(name for column in columns for name in column):
        table.add_row(name, *(bytes_text(column[name]) if name in column else "" for column in columns))
    table.add_row("together", bytes_text(need.server.total), bytes_text(need.client.total), style="bold")
    if need.on_gpu:
        table.add_row("RAM besides", bytes_text(need.server.host), bytes_text(need.client.host))
    return table


def _advice(config: Config) -> str:
    """What would make it smaller, as far as it is not done yet."""
    options = ["training.batch_size", "model.max_length", "evaluation.token_budget"]
    more = []
    if not config.training.gradient_checkpointing:
        more.append("training.gradient_checkpointing=true")
    if config.model.mode == "lora" and config.model.quantization == "none":
        more.append("model.quantization=nf4")
    fewer = "larger federation.client_cpus or federation.client_gpus"
    if config.federation.client_processes > 1:
        fewer = f"federation.client_processes=1, {fewer}"
    more.append(f"fewer clients at a time ({fewer})")
    return f"Lower {', '.join(options[:-1])} or {options[-1]}, or try {', '.join(more)}"
