"""The texts of a deployment's files: placeholders, and the `$` and `@` of shells and of nginx beside them."""

import re

import pytest

from oblivionis.deploy import templates
from oblivionis.deploy.templates import fill

TEXTS = ("START_SUPERLINK", "START_NGINX", "REGISTER_NODES", "FLOWER_SUPEREXEC", "START_SUPERNODE", "NGINX_CONF")
VALUES = {
    "START_SUPERLINK": {"SUPERLINK_PORT"},
    "START_SUPERNODE": {"SUPERLINK", "RUNTIME_PORT", "PARTITION", "PARTITIONS"},
    "NGINX_CONF": {"SUPERLINK_PORT", "LISTEN"},
    "CONFIG_TOML": {"SUPERLINK_PORT", "SERVER_DIR"},
    "README": {"PARTITIONS", "SUPERLINK", "VALID_UNTIL"},
}


def test_a_placeholder_is_filled_in_wherever_it_stands():
    assert fill("listen @PORT@; @PORT@@HOST@", PORT=443, HOST="::1") == "listen 443; 443::1"


def test_what_shells_and_nginx_mean_stays():
    text = 'exec "$@" ${A:-@x@} $$ $uri a@b @Port@ @ @@'
    assert fill(text) == text
    assert fill("@A@", A="$B @C@") == "$B @C@", "what is filled in is no template"


def test_a_placeholder_without_a_value_is_an_error():
    with pytest.raises(KeyError, match="PARTITION"):
        fill("@PARTITIONS@ of @PARTITION@", PARTITIONS=3)


@pytest.mark.parametrize("name", sorted({*TEXTS, *VALUES}))
def test_every_text_names_what_it_takes(name):
    text = getattr(templates, name)
    needed = VALUES.get(name, set())
    assert set(re.findall(r"@([A-Z_]+)@", text)) == needed, "programs and remedies are filled in already"
    filled = fill(text, **{key: f"<{key.lower()}>" for key in needed})
    assert "@" not in filled.replace('"$@"', "") and all(f"<{key.lower()}>" in filled for key in needed)
    assert filled.count("$") == text.count("$")
    for missing in needed:
        with pytest.raises(KeyError, match=missing):
            fill(text, **{key: "" for key in needed - {missing}})
