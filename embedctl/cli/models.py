"""`embedctl models`: the models known by name; one's own names for folders; models carried in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from embedctl.cli.console import show_report, show_table
from embedctl.cli.options import Json

EPILOG = """[bold]Examples[/bold]
embedctl models
embedctl models add ours ./our-model
embedctl models pack all-MiniLM-L6-v2 --out minilm.tar
embedctl models unpack minilm.tar"""

COLUMNS = ("name", "here", "gives", "dim", "max_length", "size_mb", "licence", "from")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name, as in --model NAME.", show_default=False)]

group = typer.Typer(epilog=EPILOG, invoke_without_command=True, no_args_is_help=False, rich_markup_mode="rich")


def add_to(app: typer.Typer) -> None:
    app.add_typer(group, name="models")


@group.callback()
def listed(context: typer.Context, as_json: Json = False) -> None:
    """List the models known by name, and which of them are on this machine; add and carry others.

    Any other sentence-transformers or transformers folder works by its path, and any hub id where there is a hub.
    """
    if context.invoked_subcommand is None:
        from embedctl.cli.inventory import known_models

        show_table("models", known_models(), COLUMNS, as_json=as_json)


@group.command(
    epilog="[bold]Examples[/bold]\nembedctl models add ours ./our-model\nembedctl embed c.parquet --model ours"
)
def add(
    name: Name,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The model's folder.", show_default=False)],
    force: Annotated[bool, typer.Option("--force", metavar="", help="Take the name from another folder.")] = False,
    as_json: Json = False,
) -> int:
    """Give a model's folder a name, after seeing that it opens."""
    from embedctl.cli.inventory import card_of
    from embedctl.errors import UsageError
    from embedctl.models import registered
    from embedctl.models.load import find_model

    registered.check_name(name)
    if not folder.is_dir():
        raise UsageError(
            f"{folder}: no such folder", hint="a model is a folder with config.json, weights and tokenizer"
        )
    found = find_model(str(folder), offline=True)
    registered.add(name, folder.resolve(), replace=force)
    show_report({"version": 1, "name": name, "folder": str(folder.resolve()), **card_of(found)}, as_json=as_json)
    return 0


@group.command(epilog="[bold]Examples[/bold]\nembedctl models remove ours")
def remove(name: Name, as_json: Json = False) -> int:
    """Forget a name that was added. The folder stays."""
    from embedctl.models import registered

    show_report({"version": 1, "removed": name, "folder": str(registered.remove(name))}, as_json=as_json)
    return 0


@group.command(
    epilog="[bold]Examples[/bold]\nembedctl models pack all-MiniLM-L6-v2\nembedctl models pack ./ours --out ours.tar"
)
def pack(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name, folder or hub id.", show_default=False)],
    out: Annotated[
        Optional[Path],  # noqa: UP045 - evaluated by Typer at run time
        typer.Option("--out", "-o", metavar="FILE", help="Default: <name>.tar", show_default=False),
    ] = None,
    as_json: Json = False,
) -> int:
    """Put a model into one file with checksums, for a machine that reaches no hub."""
    from embedctl.models.bundle import pack as packed
    from embedctl.models.load import find_model

    folder = find_model(model)
    target = out or Path(f"{folder.name.rpartition('/')[2]}.tar")
    bundle = packed(folder, target)
    told = {"file": str(target), "name": bundle.name, "files": len(bundle.files), "bytes": bundle.size_bytes}
    show_report({"version": 1, **told, "fingerprint": bundle.fingerprint}, as_json=as_json)
    return 0


@group.command(
    epilog="[bold]Examples[/bold]\nembedctl models unpack ours.tar\nembedctl models unpack ours.tar --to m --name us"
)
def unpack(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `models pack` wrote.", show_default=False)],
    to: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--to", metavar="FOLDER", help="Where its folder goes. Default: $XDG_DATA_HOME.", show_default=False
        ),
    ] = None,
    name: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--name", metavar="NAME", help="Name to add it by. Default: its own.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> int:
    """Check a packed model against its checksums, unpack it, and add it by name."""
    from embedctl.cli.inventory import card_of
    from embedctl.errors import ModelError
    from embedctl.models import known, registered
    from embedctl.models.bundle import unpack as unpacked
    from embedctl.models.load import find_model

    if name is not None:
        registered.check_name(name)
    bundle, folder = unpacked(file, to or registered.data_folder() / "models")
    found = find_model(str(folder), offline=True)
    if found.fingerprint() != bundle.fingerprint:
        raise ModelError(f"{folder}: its files are whole, but not all that the packed model had", hint="pack it again")
    called = name or (f"{bundle.name}-packed" if known.find(bundle.name) else bundle.name)
    registered.add(called, folder.resolve(), replace=True)
    show_report({"version": 1, "name": called, "folder": str(folder), **card_of(found)}, as_json=as_json)
    return 0
