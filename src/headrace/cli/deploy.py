"""Write what runs a pipeline elsewhere: a systemd unit, Kubernetes manifests with autoscaling, and a Containerfile.

    headrace deploy jobs.py:pipeline --plan plan.toml --run runs/first -o deploy/
    headrace deploy jobs.py:pipeline --serve --image registry.example.com/photos:3 --replicas 2,20 -o deploy/

Nothing is started, and no cluster is asked. DIR gets NAME.service and NAME.env for systemd, kubernetes.yaml (ConfigMap,
Deployment, Service, PodDisruptionBudget, KEDA ScaledObject) and a Containerfile. CPU and memory come from RUN, a profile of one
worker; how long a stop may take from the Plan. Addresses and secrets come by environment, and are in none of the files.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli import EXIT_DONE
from headrace.cli.pipeline_arguments import PIPELINE_HELP, add_plan_arguments, positive
from headrace.cli.terminal import say, write, write_json

if TYPE_CHECKING:
    from headrace.base.plan import Plan
    from headrace.deploy.need import Need
    from headrace.deploy.target import Target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("pipeline", metavar="MODULE:ATTRIBUTE", help=PIPELINE_HELP)
    add_plan_arguments(parser)
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="folder for the files; made if need be")
    parser.add_argument("--force", action="store_true", help="replace files of an earlier call")
    parser.add_argument("--serve", action="store_true", help="answer HTTP requests; else work on a queue")
    parser.add_argument("--run", dest="run_folder", metavar="RUN", help="a profile of one worker, for CPU and memory")
    parser.add_argument("--name", metavar="NAME", help="of the unit and the Deployment (default: the pipeline's file)")
    parser.add_argument("--image", metavar="IMAGE", help="the container's image (default: NAME)")
    parser.add_argument(
        "--supervise", type=positive, default=1, metavar="N", help="worker processes of one machine or pod (default 1)"
    )
    parser.add_argument("--replicas", metavar="LEAST,MOST", default="1,10", help="pods (default 1,10)")
    parser.add_argument("--include", action="append", default=[], metavar="FILE", help="a file that the pipeline needs")
    parser.add_argument("--prometheus", metavar="URL", help="where KEDA asks how many workers are wanted")
    parser.add_argument("--job", default="headrace", help="job_name of the scrape in prometheus.yml (default headrace)")
    parser.add_argument("--program", metavar="PATH", help="headrace on a machine with systemd")
    parser.add_argument("--json", action="store_true", help="print which files were written (schema headrace.deploy/1)")


def run(args: argparse.Namespace) -> int:
    """Write the files and say which."""
    target = _target(args)
    files = _make_files(target)
    folder = Path(args.output)
    _write_all(folder, files, force=args.force)
    for warning in _warnings(target):
        say(f"headrace deploy: {warning}")
    if args.json:
        write_json({"schema": "headrace.deploy/1", "name": target.name, "files": sorted(files)}, indented=True)
    else:
        write("\n".join(str(folder / name) for name in files))
    return EXIT_DONE


def _target(args: argparse.Namespace) -> Target:
    from headrace.deploy.target import Target, name_of

    given = {"prometheus": args.prometheus, "program": args.program}
    name = name_of(args.pipeline) if args.name is None else args.name
    least, most = _replicas(args.replicas)
    return Target(
        pipeline=args.pipeline,
        name=name,
        plan=_plan(args),
        has_plan=bool(args.plan or args.settings),
        is_service=args.serve,
        supervise=args.supervise,
        image=args.image or name,  # not that of its base: the next build would begin with it
        least=least,
        most=most,
        job=args.job,
        include=tuple(args.include),
        allow=tuple(args.allow),
        need=None if args.run_folder is None else _need(args.run_folder),
        **{name: value for name, value in given.items() if value is not None},
    )


def _replicas(text: str) -> tuple[int, int]:
    from headrace.base.errors import SettingsError

    parts = text.split(",")
    if len(parts) != 2 or not all(part.isascii() and part.isdecimal() and len(part) <= 6 for part in parts):
        raise SettingsError(f"--replicas: expected LEAST,MOST such as 1,10; got {text!r}")
    return int(parts[0]), int(parts[1])


def _plan(args: argparse.Namespace) -> Plan:
    from headrace.base.plan import Plan

    return (Plan.load(args.plan) if args.plan else Plan()).with_settings(args.settings)


def _need(run_folder: str) -> Need:
    from headrace.deploy.need import find_need
    from headrace.diagnose.analysis import Analysis
    from headrace.runs.reader import read_run

    return find_need(Analysis(read_run(run_folder)).profile)


def _make_files(target: Target) -> dict[str, str]:
    from headrace.deploy.command import PLAN
    from headrace.deploy.image import make_containerfile
    from headrace.deploy.manifests import make_manifests
    from headrace.deploy.unit import make_environment, make_unit

    return {
        f"{target.name}.service": make_unit(target),
        f"{target.name}.env": make_environment(target),
        **({PLAN: target.plan.as_toml()} if target.has_plan else {}),
        "kubernetes.yaml": make_manifests(target),
        "Containerfile": make_containerfile(target),
    }


def _write_all(folder: Path, files: dict[str, str], *, force: bool) -> None:
    """Write all files or none.

    Raises:
        SettingsError: If that is not possible, or would replace something.
    """
    from headrace.base.errors import SettingsError
    from headrace.runs.run_folder import replace_file

    there = [name for name in files if (folder / name).exists() or (folder / name).is_symlink()]
    if there and not force:
        raise SettingsError(f"{folder / there[0]} exists; name another folder with -o, or replace it with --force")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            replace_file(folder / name, text.encode())
    except OSError as error:
        raise SettingsError(f"-o {folder} cannot be written: {error.strerror}") from None


def _warnings(target: Target) -> list[str]:
    found = []
    if target.need is None:
        found.append("without --run nothing is known of CPU and memory: the files leave them out")
    elif (target.need.longest_seconds or 0.0) > target.plan.run.grace_seconds:
        found.append(
            f"jobs took up to {target.need.longest_seconds:.0f} s, longer than run.grace_seconds "
            f"({target.plan.run.grace_seconds:g}): a stop gives them back, and they begin again elsewhere; raise it in the Plan"
        )
    missing = [name for name in (target.file, *target.include) if name and not Path(name).exists()]
    found += [f"{name} is not here; the Containerfile copies it" for name in missing]
    outside = [name for name in (target.file, *target.include) if name.startswith(("/", "../"))]
    found += [f"{name} lies outside of this folder, where a container is built from" for name in outside]
    return found
