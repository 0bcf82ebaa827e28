"""What the services of a Compose file run, with their settings, is a deployment: as processes, without containers."""

import shutil
from pathlib import PurePosixPath

import pytest
import yaml
from support.deployed import Deployed

from oblivionis.deploy import containers

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")]


def test_the_commands_of_the_services_bring_supernodes_online(tmp_path):
    with Deployed(tmp_path / "lab", clients=1) as lab:
        services = yaml.safe_load(containers.compose(1, (1000, 1000), lab.port, local=True))["services"]

        def start(name, **here):
            """On this machine the folder lies elsewhere, and a service has no name."""
            service = services[name]
            own = lab.folder / PurePosixPath(service["working_dir"]).relative_to(containers.ROOT)
            there = {containers.ROOT: str(lab.folder), f"{containers.SUPERLINK}:": "127.0.0.1:"}
            settings = service["environment"]
            for inside, outside in there.items():
                settings = {key: value.replace(inside, outside) for key, value in settings.items()}
            (script,) = service["command"]
            lab.start(name, own / script, **settings, **here)

        start("superlink")
        lab.wait_port("superlink", lab.superlink_port)
        start("nginx")
        lab.wait_port("nginx", lab.port)
        lab.register()
        start("node0", RUNTIME_PORT=lab.node_ports[0])
        lab.wait_online(1)
        assert "POST /v1/fleet/" in (lab.server / "nginx-access.log").read_text(), "through nginx"
