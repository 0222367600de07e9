"""What the measuring scripts of this folder share. Standard library only."""

import datetime
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys


def stop(message):
    sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {message}")


def program(variable, fallback):
    """The program that an environment variable names, or that lies on PATH under its usual name."""
    found = shutil.which(os.environ.get(variable, fallback))
    if found is None:
        stop(f"no program {os.environ.get(variable, fallback)}; set {variable} to its path")
    return found


def run(command):
    """Its stdout; ends the script where the command fails."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        stop(f"exit code {done.returncode} from: {' '.join(map(str, command))}\n{done.stderr.strip()}")
    return done.stdout


def version(command):
    """First line in which a program speaks of its version, or its first line."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).splitlines()
    return next((line for line in lines if "version" in line.lower()), lines[0] if lines else "unknown")


def cpu_name():
    info = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    fields = dict(re.findall(r"^(model name|cpu family|model)\s*: (.*)$", info, re.MULTILINE))
    return f"{fields.get('model name', 'unknown')} (family {fields.get('cpu family')}, model {fields.get('model')})"


def machine():
    """What a reader needs to judge a number by; the load average tells whether others were working."""
    return {
        "cpu": cpu_name(),
        "processors": len(os.sched_getaffinity(0)),
        "kernel": os.uname().release,
        "load_average": os.getloadavg()[0],
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def gpu_name():
    """Of the first GPU, as its driver has it."""
    return run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]).splitlines()[0].strip()


def summary(values):
    return {"median": statistics.median(values), "least": min(values), "most": max(values), "values": values}


def write_result(name, result):
    """bench/results/<gpu or cpu>-<date>-<name>.json, complete or not at all."""
    device = result["machine"].get("gpu", result["machine"]["cpu"])
    device = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    path = pathlib.Path(__file__).parent / "results" / f"{device}-{result['machine']['date'][:10]}-{name}.json"
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)
    print(f"\nwritten: {path}")
