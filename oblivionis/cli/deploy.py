"""The commands `deploy init`, `deploy renew` and `deploy hub`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from oblivionis.deploy import hub

deploy_cli = typer.Typer(help="Set up real server and client machines.", no_args_is_help=True)


@deploy_cli.command("init")
def deploy_init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder of the deployment.")],
    clients: Annotated[int, typer.Option(min=1, metavar="N", help="How many SuperNodes.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME_OR_IP",
            help="How SuperNodes reach the server; repeatable, the first one is written into their start scripts "
            "(default: 127.0.0.1, everything on this machine).",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Of nginx, reached from outside.")] = 9443,
    superlink_port: Annotated[int, typer.Option(min=1, max=65535, help="Of the SuperLink, on the server only.")] = 9444,
    node_port: Annotated[
        int,
        typer.Option(
            min=1, max=65535, help="Of SuperNode 0 for its own ClientApp, on its machine only; 1 more for each other."
        ),
    ] = 9500,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Validity of the server's certificate.")] = 825,
    in_containers: Annotated[
        bool, typer.Option("--containers", help="For containers: also a Dockerfile and a Compose file.")
    ] = False,
) -> None:
    """Create CA, certificates, node keys, nginx's configuration and the start scripts of a deployment.

    One folder for the server and one for each client. Nothing is overwritten; private keys are readable by you alone.
    """
    from oblivionis.deploy import folder as deploy

    owner = (os.getuid(), os.getgid()) if in_containers else None
    hosts = tuple(host or ("127.0.0.1",))
    deployment = deploy.Deployment(clients, hosts, port, superlink_port, node_port, days, owner)
    deploy.create(folder, deployment)
    print(deploy.next_steps(folder, deployment))


@deploy_cli.command("renew")
def deploy_renew(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the deployment, with ca/ and server/.")],
    host: Annotated[
        list[str] | None, typer.Option(metavar="NAME_OR_IP", help="A further name of the server; repeatable.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Validity of the new certificate.")] = 825,
) -> None:
    """Make the server a new certificate and key, before the old one ends or for a further name.

    Clients need nothing new. Start nginx and the SuperLink again afterwards.
    """
    from oblivionis.deploy import folder as deploy

    names = deploy.renew(folder, host or (), days)
    print(f"wrote {folder / 'server' / 'server.crt'} for {', '.join(names)}; start nginx and the SuperLink again")


@deploy_cli.command("hub")
def deploy_hub(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder of the app, such as `oblivionis`.")],
    publisher: Annotated[str, typer.Option(metavar="NAME", help="Your account on Flower's hub.")] = "oblivionis",
) -> None:
    """Lay out this program as the app that Flower's hub takes, with a README of its own, ready to be published.

    `flwr app publish DIR` then sends it, and `flwr new @NAME/oblivionis` gets it.
    """

    hub.write(folder, publisher)
    print(f"wrote {folder}; try it with: flwr run {folder} --stream; publish it with: flwr app publish {folder}")
