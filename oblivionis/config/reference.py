"""Writes the reference page of all configuration keys from the schema and the files in `conf/`.

`python -m oblivionis.config.reference > docs/reference/configuration.md`
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from oblivionis.config.compose import AUTO, PARAMETRISED, parameters
from oblivionis.config.configuration_layers import GROUPS, list_choices, list_experiments, selector
from oblivionis.config.extension_traits import Limit
from oblivionis.config.values import KEYS, Key, declared_key, sections
from oblivionis.config.yaml_files import CONF

DOCUMENTS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCUMENTS / "reference" / "configuration.md"

HEAD = """# Configuration

Made from the schema and the files in `conf/`; do not edit it by hand, but run
`python -m oblivionis.config.reference > docs/reference/configuration.md`.

A configuration is composed in layers; later ones win:

1. the defaults below;
2. one file of each group: {groups};
3. the experiment: a file in `conf/` by its name, or your own YAML file by its path;
4. overrides: `key=value` on the command line, or all of them in one string as Flower's run config `overrides`.

```
oblivionis simulate tofu strategy=fedadam strategy.params.tau=0.01 unlearning=simnpo
flwr run . --run-config 'config="tofu" overrides="strategy=fedadam strategy.params.tau=0.01"'
```

A value is YAML: `true`, `null`, `1e-3`, `[finetune, unlearn]`. Everything that is wrong is reported at once, before any
work.

## Experiments

In `conf/`: {experiments}.

An experiment gives values of any key, and for each group a name, or values, or both:

```yaml
extends: default            # optional: another experiment, by name or path, to start from
strategy: fedadam           # the file conf/strategy/fedadam.yaml
unlearning:                 # values on top of the group's file, whichever is chosen
  epochs: 3
data:                       # values given with a name count for that name only:
  name: fictitious          # `data=tofu` on the command line sets them aside
  authors: 100
per_choice:                 # values for a name of a group, used when it is chosen
  unlearning:
    simnpo: {{learning_rate: 1e-3, params: {{beta: 2.5}}}}
federation.clients: 10      # a dotted key is the same as nested ones
training:
  learning_rate: ${{oc.env:RATE, 1e-3}}   # OmegaConf's interpolations work
```

A model of your own needs no file in `conf/model`: give `model.source` and any `model.name`.
`runs/<name>/config.yaml` holds every key of a run and can be given as an experiment again.

A loss, an aggregator, an evaluator and an attack bring keys of their own, each with its files:
`conf/unlearning/<name>.yaml` (`unlearning.params.…`), `conf/strategy/<name>.yaml` (`strategy.params.…`),
`conf/evaluator/<name>.yaml` (`evaluation.<name>.…`) and `conf/attack/<name>.yaml` (`attack.<name>.…`) have the keys and
defaults, the `LIMITS` of the code file the ranges. Configurations from before 0.2 named an aggregator's parameters
without `params.` (`strategy.server_learning_rate`, `tau`, `beta_1`, `beta_2`, `momentum`, `proximal_mu`); they are
still read.

## Groups

| group | chosen by | choices | default |
| --- | --- | --- | --- |
"""


def page() -> str:
    """The page in Markdown."""
    choices = list_choices()
    text = HEAD.format(
        groups=", ".join(f"`conf/{group}/`" for group in GROUPS),
        experiments=", ".join(f"`{name}`" for name in list_experiments()),
    )
    for group, default in GROUPS.items():
        names = ", ".join(f"`{name}`" for name in choices[group])
        text += f"| `{group}` | `{group}=…` or `{selector(group)}=…` | {names} | `{default}` |\n"
    for section, meaning in sections():
        keys = [key for key in KEYS.values() if key.path.rpartition(".")[0] == section]
        text += f"\n## {section or 'Top level'}\n\n{meaning}\n\n" if keys else ""
        text += "| key | type | default | range | meaning |\n| --- | --- | --- | --- | --- |\n" if keys else ""
        text += "".join(_row(key) for key in keys)
        if section in PARAMETRISED:
            text += _parameters(section, choices[section])
    return _linked(text)


def _linked(text: str) -> str:
    """Help texts name a document by its file name alone: its path from the page, by where it lies in `docs/`."""
    places = {file.name: file.relative_to(DOCUMENTS) for file in DOCUMENTS.rglob("*.md") if file.parent != DOCUMENTS}

    def link(found: re.Match[str]) -> str:
        place = places.get(found[1])
        if place is None:
            return found[0]
        return f"]({place.name}" if place.parent.name == PAGE.parent.name else f"](../{place.as_posix()}"

    return re.sub(r"\]\(([\w-]+\.md)", link, text)


def _row(key: Key) -> str:
    return _line(f"`{key.path}`", _type(key), _literal(key.default), _range(key), _meaning(key))


def _type(key: Key) -> str:
    kind = f"list of {key.item.__name__}" if key.item else key.kind.__name__
    return kind + (" or null" if key.optional else "")


def _range(key: Key) -> str:
    allowed = ", ".join(f"`{choice}`" for choice in key.about.choices)
    if not allowed and key.kind in (int, float):
        return key.about.range()
    return "not empty" if not allowed and key.about.at_least == 1 else allowed


def _meaning(key: Key) -> str:
    return f"{key.about.help} [{key.about.unit}]" if key.about.unit else key.about.help


def _parameters(group: str, names: list[str]) -> str:
    """The parameters of every choice of a group that has a code file of its own."""
    text = f"\nParameters (`{group}.params.…`) of each choice, from its files:\n\n"
    text += f"| `{selector(group)}` | parameter | default | range | meaning |\n| --- | --- | --- | --- | --- |\n"
    for name in sorted({*names} - {AUTO}):
        own = parameters(group, name)
        assert own is not None
        for parameter, default in own.defaults.items():
            key = declared_key(parameter, default, own.code.limits.get(parameter, Limit()))
            text += _line(f"`{name}`", f"`{parameter}`", _literal(default), _range(key), _meaning(key))
    return text


def _literal(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return f"`{'null' if value is None else str(value).lower()}`"
    if isinstance(value, list):
        return f"`[{', '.join(map(str, value))}]`"
    if isinstance(value, str):
        quoted = value.replace("\n", "\\n")
        return f'`"{quoted}"`' if quoted != value or value != value.strip() else f"`{value}`"
    return f"`{value!r}`"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |\n"


if __name__ == "__main__":
    if not CONF.is_dir():
        sys.exit(f"{CONF} is missing")
    print(page(), end="")
