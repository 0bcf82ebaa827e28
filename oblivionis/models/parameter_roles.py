"""The role of a trainable parameter of a peft model, by its name; no other module knows peft's names."""

from __future__ import annotations

from enum import Enum


class Role(Enum):
    """What a trainable parameter does in addition to the base weights.

    `A`, `B`: the factors of a linear layer's update B·A; of the experts below each other for `target_parameters`.
    `EMBEDDING_A`, `EMBEDDING_B`: those of an embedding, where A starts as zero and B does not. `MAGNITUDE`: DoRA's
    lengths of a weight's rows. `SAVED`: a copy of base weights that is trained as a whole (`modules_to_save`).
    """

    A = "lora_A"
    B = "lora_B"
    EMBEDDING_A = "lora_embedding_A"
    EMBEDDING_B = "lora_embedding_B"
    MAGNITUDE = "lora_magnitude_vector"
    SAVED = "modules_to_save"


_BY_PART = {role.value: role for role in Role}


def role(name: str) -> Role | None:
    """The role of a parameter.

    Parameters
    ----------
    name : str
        As in `named_parameters` of a peft model, or as peft writes it to a file.

    Returns
    -------
    Role or None
        None for a base weight.
    """
    return next((_BY_PART[part] for part in name.split(".") if part in _BY_PART), None)


def module_of(name: str) -> str:
    """The module that a parameter belongs to or adapts; all parameters of an adapted layer have the same.

    Parameters
    ----------
    name : str
        As for `role`.

    Returns
    -------
    str
        The name without `weight` or `bias`, or without what begins with the part that tells its role.
    """
    parts = name.split(".")
    end = next((place for place, part in enumerate(parts) if part in _BY_PART), len(parts))
    return ".".join(parts[:end]).removesuffix(".weight").removesuffix(".bias")


def file_key(name: str) -> str:
    """What peft calls a trained parameter in an adapter's file.

    Parameters
    ----------
    name : str
        As in `named_parameters` of a peft model whose adapter is called `default`.

    Returns
    -------
    str
        Without the adapter's name, for a module that is trained as a whole without the wrapper's as well.
    """
    key = name.replace(f".{Role.SAVED.value}.default.", ".").replace(".default.", ".").removesuffix(".default")
    return key.removesuffix(".weight") if role(name) is Role.MAGNITUDE else key


def partner(name: str) -> str:
    """The name of the factor B that belongs to the factor A called `name`; `name` itself where it is no factor A."""
    return name.replace(f".{Role.A.value}.", f".{Role.B.value}.")
