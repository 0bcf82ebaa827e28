"""Writes the reference page of all configuration keys from the schema and the files in `conf/`.

`python -m oblivionis.config.reference > docs/reference/configuration.md`
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from oblivionis.config.compose import method_params
from oblivionis.config.layers import CONF, GROUPS, list_choices, list_experiments, selector
from oblivionis.config.limits import PARAMETERS
from oblivionis.config.values import KEYS, Key, sections

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
oblivionis simulate tofu strategy=fedadam strategy.tau=0.01 unlearning=simnpo
flwr run . --run-config 'config="tofu" overrides="strategy=fedadam strategy.tau=0.01"'
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
    for section, cls in sections():
        keys = [key for key in KEYS.values() if key.path.rpartition(".")[0] == section]
        text += f"\n## {section or 'Top level'}\n\n{(cls.__doc__ or '').strip()}\n\n" if keys else ""
        text += "| key | type | default | range | meaning |\n| --- | --- | --- | --- | --- |\n" if keys else ""
        text += "".join(_row(key) for key in keys)
        if section == "unlearning":
            text += _methods(choices["unlearning"])
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
    limits = key.about
    allowed = ", ".join(f"`{choice}`" for choice in limits.choices)
    if not allowed and key.kind in (int, float):
        allowed = limits.range()
    elif not allowed and limits.at_least == 1:
        allowed = "not empty"
    kind = f"list of {key.item.__name__}" if key.item else key.kind.__name__
    kind += " or null" if key.optional else ""
    help = f"{limits.help} [{limits.unit}]" if limits.unit else limits.help
    return _line(f"`{key.path}`", kind, _literal(key.default), allowed, help)


def _methods(methods: list[str]) -> str:
    text = "\nHyperparameters (`unlearning.params.…`) of each method, from its file in `conf/unlearning/`:\n\n"
    text += "| method | parameter | default | range | meaning |\n| --- | --- | --- | --- | --- |\n"
    for method in methods:
        for name, default in method_params(method).items():
            limits = PARAMETERS.get(name)
            allowed = (", ".join(limits.choices) or limits.range()) if limits else ""
            text += _line(f"`{method}`", f"`{name}`", _literal(default), allowed, limits.help if limits else "")
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
