"""Certificates for tests, made as `examples/site.toml` says."""

import subprocess
from pathlib import Path

_HOSTS = "paris.example oslo.example rome.example client"


def commands(example: Path) -> str:
    """The shell commands in the comment of an example file."""
    lines = example.read_text(encoding="utf-8").splitlines()
    begin = lines.index("#     umask 077")
    end = lines.index("#     done")
    return "\n".join(line.removeprefix("#     ") for line in lines[begin : end + 1])


def make_certificates(folder: Path, example: Path, *hosts: str) -> None:
    """A CA, and for each host a certificate that is good at the loopback address."""
    text = commands(example)
    if _HOSTS not in text or "DNS:$name" not in text:
        raise AssertionError(f"{example} makes certificates in another way")
    text = text.replace(_HOSTS, " ".join(hosts)).replace("DNS:$name", "DNS:localhost,IP:127.0.0.1")
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["bash", "-euc", text], cwd=folder, check=True, capture_output=True)
