"""Writes what runs a pipeline elsewhere: systemd unit, Kubernetes manifests, Containerfile. Nothing here asks a cluster.

target.py       what is asked for, checked
need.py         how much CPU and memory a worker needs, from a profile
command.py      the command line that all of them start
unit.py         systemd
manifests.py    Kubernetes, with KEDA
image.py        Containerfile
"""
