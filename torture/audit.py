"""Dependencies: known weaknesses where a database can be asked, and what can be told without one.

    python -m torture.audit        writes results/audit.json

pip-audit asks a database of weaknesses, which needs the network. Where there is no answer, the file says so, and holds
the rest: that every installed version is the pinned one, that they fit together (`pip check`), their licences, and the
hash of the list of pins, so that somebody with a network can ask about the very same list.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PINS, RESULT = ROOT / "constraints.txt", ROOT / "results" / "audit.json"
COPYLEFT = re.compile(r"\b(A?GPL|SSPL)\b")  # what an Apache-2.0 package must not need
IN_PART = {"docutils"}  # of the docs alone, and public domain but for its support of an editor


def pins(text: str) -> dict[str, str]:
    """name → version of the lines `name==version`."""
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)$", text, re.MULTILINE))


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def known_weaknesses() -> dict[str, Any]:
    """What pip-audit says of the pins, or why it says nothing."""
    program = shutil.which("pip-audit", path=str(Path(sys.executable).parent)) or shutil.which("pip-audit")
    if program is None:
        return {"asked": False, "why": "pip-audit is not installed here (pip install pip-audit)"}
    why = ""
    for service in ("pypi", "osv"):
        with tempfile.NamedTemporaryFile(suffix=".json") as out:
            asked = [
                program,
                "-r",
                str(PINS),
                "--no-deps",
                "--disable-pip",
                "-s",
                service,
                "-f",
                "json",
                "-o",
                out.name,
            ]
            done = subprocess.run(asked, capture_output=True, text=True, timeout=600)
            try:
                found = json.loads(Path(out.name).read_bytes())["dependencies"]
            except (ValueError, KeyError):
                why = (re.findall(r"\b\w*(?:Error|Timeout)\b", done.stderr) or ["no answer"])[-1]
                continue
        weak = [{"name": one["name"], "version": one.get("version"), "ids": _ids(one)} for one in found if _ids(one)]
        skipped = [one["name"] for one in found if "skip_reason" in one]
        if len(skipped) < len(found):
            return {"asked": True, "service": service, "packages": len(found), "skipped": skipped, "weaknesses": weak}
        why = "not one of the packages could be looked up"  # which is how the first service says that it is offline
    return {"asked": False, "why": f"no database of weaknesses answered: {why}"}


def _ids(entry: dict[str, Any]) -> list[str]:
    return [one["id"] for one in entry.get("vulns", [])]


def licence(name: str) -> str:
    """What the package says of itself, in short."""
    metadata = importlib.metadata.metadata(name)
    classified = [one.rpartition(" :: ")[2] for one in metadata.get_all("Classifier", []) if one.startswith("License")]
    said = metadata.get("License-Expression") or ", ".join(classified) or (metadata.get("License") or "").strip()
    return (said.splitlines() or ["not said"])[0][:80]


def installed() -> dict[str, str]:
    return {canonical(one.metadata["Name"]): one.version for one in importlib.metadata.distributions()}


def audit() -> dict[str, Any]:
    text = PINS.read_text()
    pinned, here = pins(text), installed()
    known = {name: version for name, version in pinned.items() if canonical(name) in here}
    licences = {name: licence(name) for name in sorted(known)}
    check = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    return {
        "pins": len(pinned),
        "pins_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "installed": len(known),
        "other_versions": {
            name: here[canonical(name)]
            for name, version in known.items()
            if here[canonical(name)].partition("+")[0] != version  # 2.13.0+cpu is a build of 2.13.0
        },
        "pip_check": check.stdout.strip().splitlines()[-1] if check.returncode == 0 else check.stdout.strip()[-500:],
        "licences": licences,
        "copyleft": sorted(name for name, said in licences.items() if COPYLEFT.search(said) and name not in IN_PART),
        "known_weaknesses": known_weaknesses(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": sys.version.split()[0],
    }


def main() -> int:
    record = audit()
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    print(
        json.dumps({key: record[key] for key in ("pins", "other_versions", "pip_check", "known_weaknesses")}, indent=1)
    )
    weak = record["known_weaknesses"].get("weaknesses")
    return 1 if weak or record["other_versions"] or record["copyleft"] else 0


if __name__ == "__main__":
    sys.exit(main())
