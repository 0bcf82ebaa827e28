"""`oblivionis deploy init --containers`: the Compose file, the image, and what neither may have."""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

import jsonschema
import pytest
import yaml
from cryptography import x509
from packaging.requirements import Requirement
from support.commands import call

from oblivionis import __version__
from oblivionis.deploy import containers
from oblivionis.deploy import folder as deploy
from oblivionis.errors import OblivionisError

OWNER = (1234, 567)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    made = tmp_path_factory.mktemp("containers") / "lab"
    deploy.create(made, deploy.Deployment(clients=2, owner=OWNER))
    return made


@pytest.fixture(scope="module")
def services(lab):
    return yaml.safe_load((lab / "compose.yaml").read_text(encoding="utf-8"))["services"]


def composed(**changed):
    return yaml.safe_load(containers.compose(**{"clients": 2, "owner": OWNER, "port": 9443, "local": True, **changed}))


def within(path):
    """The path of a deployment's folder that lies at `path` in a container."""
    return str(PurePosixPath(path).relative_to(containers.ROOT))


# -- the Compose file ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_is_valid_by_the_compose_specification(lab):
    (package,) = find_spec("check_jsonschema").submodule_search_locations
    schema = json.loads((Path(package) / "builtin_schemas" / "vendor" / "compose-spec.json").read_text("utf-8"))
    content = yaml.safe_load((lab / "compose.yaml").read_text(encoding="utf-8"))
    jsonschema.validate(content, schema)
    content["services"]["node0"]["comand"] = []
    with pytest.raises(jsonschema.ValidationError, match="comand"):
        jsonschema.validate(content, schema)


@pytest.mark.slow
def test_each_service_runs_the_start_script_of_its_folder(lab, services):
    ran = {}
    for name, service in services.items():
        (script,) = service["command"]
        file = lab / within(service["working_dir"]) / script
        assert file.is_file() and os.access(file, os.X_OK)
        ran[name] = str(file.relative_to(lab))
    assert ran == {
        "superlink": "server/start-superlink.sh",
        "nginx": "server/start-nginx.sh",
        "node0": "node0/start-supernode.sh",
        "node1": "node1/start-supernode.sh",
    }


def test_the_scripts_are_those_of_a_deployment_without_containers(lab, tmp_path):
    deploy.create(tmp_path / "lab", deploy.Deployment(clients=2))
    made, plain = ({p.relative_to(at): p for at in [top] for p in at.rglob("*")} for top in (lab, tmp_path / "lab"))
    further = {str(path) for path in made if path.parts[0] != "image" and path not in plain}
    assert further == {"compose.yaml"} and plain.keys() <= made.keys()
    differ = {str(n) for n, p in plain.items() if p.is_file() and p.read_bytes() != made[n].read_bytes()}
    keys = {n for n in differ if n.endswith((".key", ".pub", ".crt"))}
    assert differ - keys == {"README.md", "server/nginx.conf", "server/flwr-home/config.toml"}
    assert f"{containers.ROOT}/server/ca.crt" in (lab / "server/flwr-home/config.toml").read_text(encoding="utf-8")
    text = (lab / "server/nginx.conf").read_text(encoding="utf-8")
    assert text.replace("listen 9443 ", "listen 127.0.0.1:9443 ") == plain[Path("server/nginx.conf")].read_text("utf-8")


def test_only_the_port_for_supernodes_is_published(services):
    assert {name: s["ports"] for name, s in services.items() if "ports" in s} == {"superlink": ["127.0.0.1:9443:9443"]}
    assert services["nginx"]["network_mode"] == "service:superlink", "reaches the SuperLink on its loopback interface"
    assert composed(local=False, port=443)["services"]["superlink"]["ports"] == ["443:443"]


def test_supernodes_of_the_same_machine_reach_the_service_and_trust_it(lab, services):
    assert services["node1"]["environment"]["SUPERLINK"] == "superlink:9443"
    assert "SUPERLINK" not in composed(local=False)["services"]["node1"]["environment"], "their scripts name the host"
    certificate = x509.load_pem_x509_certificate((lab / "server" / "server.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "superlink" in names.get_values_for_type(x509.DNSName)


def test_keys_are_secrets_and_reach_the_services_that_need_them(lab, services):
    whole = yaml.safe_load((lab / "compose.yaml").read_text(encoding="utf-8"))
    given = {
        name: {str((lab / whole["secrets"][s["source"]]["file"]).relative_to(lab)): within(s["target"])}
        for name, service in services.items()
        for s in service["secrets"]
    }
    server = {"server/server.key": "server/server.key"}
    nodes = {f"node{i}": {f"node{i}/node.key": f"node{i}/node.key"} for i in range(2)}
    assert given == {"superlink": server, "nginx": server, **nodes}
    assert "ca.key" not in (lab / "compose.yaml").read_text(encoding="utf-8")


def test_records_policy_and_scripts_are_read_only_and_what_a_node_writes_is_not(lab, services):
    for name, service in services.items():
        mounts = {within(m["target"]): m.get("read_only", False) for m in service["volumes"]}
        assert {m["source"] for m in service["volumes"]} == {f"./{path}" for path in mounts}, "as in the folder"
        assert all((lab / path).exists() for path in mounts)
        own = within(service["working_dir"])
        assert [path for path, fixed in mounts.items() if not fixed] == [own], "ledgers, runs, logs"
        script = str(PurePosixPath(own, service["command"][0]))
        needed = {"data", "node.toml", "bin", "ca.crt"} if name.startswith("node") else {"nodes", "nginx.conf"}
        assert {script, *(f"{own}/{part}" for part in needed)} <= mounts.keys()


def test_no_service_is_root_or_may_become_it(services):
    for service in services.values():
        assert service["user"] == "${OWNER:-1234:567}" and service["read_only"] is True
        assert service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges:true"]
        assert (service["image"], service["pull_policy"]) == (f"oblivionis:{__version__}", "never")
        assert not {"privileged", "cap_add", "pid", "devices"} & service.keys()


# -- the image -------------------------------------------------------------------------------------------------------


def test_the_dockerfile_passes_hadolint(lab):
    program = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([program, "--no-color", lab / "image" / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_has_this_program_for_this_python_and_a_user_of_its_own(lab):
    text = (lab / "image" / "Dockerfile").read_text(encoding="utf-8")
    assert f"FROM python:{sys.version_info[0]}.{sys.version_info[1]}-slim\n" in text
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["1000"]
    copied = re.findall(r"^COPY (\S+) ", text, re.MULTILINE)
    assert sorted(copied) == ["constraints.txt", "oblivionis"]
    project = tomllib.loads((lab / "image" / "oblivionis" / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["version"] == __version__


def test_no_key_is_where_the_image_is_built(lab):
    assert not [p for p in (lab / "image").rglob("*") if p.is_file() and b"PRIVATE KEY-----" in p.read_bytes()]


def test_libraries_have_the_versions_that_are_installed_here(lab):
    lines = (lab / "image" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = {r.name: str(r.specifier) for r in map(Requirement, lines)}
    assert found and all(f"=={metadata.version(n).split('+')[0]}" == version for n, version in found.items())
    required = [Requirement(line) for line in metadata.requires("oblivionis") or ()]
    assert {r.name for r in required if "extra" not in str(r.marker)} <= found.keys()
    assert "ray" in found, "what flwr[simulation] adds"
    assert not {"oblivionis", "pytest", "mlflow-skinny", "mkdocs"} & found.keys(), "of extras that nobody asked for"


# -- mistakes --------------------------------------------------------------------------------------------------------


def test_root_is_told_to_be_somebody_else(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 0)
    done = call("deploy", "init", tmp_path / "lab", "--clients", 1, "--containers")
    assert done.code == 2 and not (tmp_path / "lab").exists()
    assert "no container is to run as root" in done.err and len(done.err.splitlines()) == 1


def test_a_program_that_is_not_installed_makes_no_keys(tmp_path, monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(OblivionisError, match="is not installed"):
        deploy.create(tmp_path / "lab", deploy.Deployment(clients=1, owner=OWNER))
    assert not (tmp_path / "lab").exists()


@pytest.mark.slow
def test_the_command_says_what_comes_next(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: OWNER[0])
    monkeypatch.setattr(os, "getgid", lambda: OWNER[1])
    done = call("deploy", "init", tmp_path / "lab", "--clients", 1, "--host", "lab.example.org", "--containers")
    assert done.code == 0 and f"docker build -t oblivionis:{__version__} image" in done.out, done.err
    readme = (tmp_path / "lab" / "README.md").read_text(encoding="utf-8")
    assert "`lab.example.org:9443`" in readme and "docker compose exec superlink ./register-nodes.sh" in readme
    assert '"${OWNER:-1234:567}"' in (tmp_path / "lab" / "compose.yaml").read_text(encoding="utf-8")
    guide = Path(__file__).parents[4] / "docs" / "guides" / "containers.md"
    assert f"docker build -t oblivionis:{__version__} image" in guide.read_text(encoding="utf-8")
