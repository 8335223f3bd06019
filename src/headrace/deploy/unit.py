"""A systemd unit, and the file with its environment."""

from __future__ import annotations

from headrace.deploy.command import PLAN, QUEUE, arguments
from headrace.deploy.need import BESIDE_BYTES
from headrace.deploy.target import Target


def make_unit(target: Target) -> str:
    """Return NAME.service."""
    folder = f"/opt/{target.name}"
    # systemd takes what follows a % for a specifier
    words = [word.replace("%", "%%") for word in arguments(target, folder=folder, plan=f"{folder}/{PLAN}")]
    memory = []
    if target.need is not None:
        total = target.supervise * target.need.memory_bytes + BESIDE_BYTES
        memory = [f"# {target.need.says}; {target.supervise} of them.", f"MemoryMax={total}"]
    return "\n".join(
        [
            f"# Made by `headrace deploy`. Files of the pipeline: {folder}; settings: /etc/headrace/{target.name}.env.",
            "[Unit]",
            f"Description=headrace: {target.name}",
            "After=network-online.target",
            "Wants=network-online.target",
            "StartLimitIntervalSec=300",
            "StartLimitBurst=5",
            "",
            "[Service]",
            "Type=exec",
            "User=headrace",
            f"StateDirectory=headrace/{target.name}",
            f"WorkingDirectory=/var/lib/headrace/{target.name}",
            f"EnvironmentFile=/etc/headrace/{target.name}.env",
            "# Passwords and keys, readable by root alone; it may be missing.",
            f"EnvironmentFile=-/etc/headrace/{target.name}.secret",
            "Environment=PYTHONUNBUFFERED=1",
            f"ExecStart={target.program} {' '.join(words)}",
            *(["ExecReload=/bin/kill -HUP $MAINPID"] if target.is_service else []),
            "# The supervisor tells its workers itself; what is left when the time is over is killed with it.",
            "KillMode=mixed",
            f"TimeoutStopSec={target.stop_seconds}",
            "# 130: jobs were given back to the queue, as a stop does.",
            "SuccessExitStatus=130",
            "Restart=on-failure",
            "RestartSec=5",
            "# 2: a wrong setting; 70: every start ends the same way.",
            "RestartPreventExitStatus=2 70",
            *memory,
            "LimitNOFILE=65536",
            "NoNewPrivileges=yes",
            "PrivateTmp=yes",
            "ProtectSystem=strict",
            "ProtectHome=yes",
            "ProtectKernelTunables=yes",
            "ProtectControlGroups=yes",
            "RestrictSUIDSGID=yes",
            "",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
    )


def make_environment(target: Target) -> str:
    """Return NAME.env: what differs from place to place, without secrets."""
    lines = ["# Settings of this place. What is secret belongs into the file beside it that ends with .secret."]
    if not target.is_service:
        lines += [
            "# The queue, such as sqs://photos or redis://cache:6379/0; with a password: into the .secret file.",
            f"{QUEUE}=",
        ]
    return "\n".join([*lines, ""])
