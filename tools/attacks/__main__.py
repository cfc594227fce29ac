"""Attack a running job from a separate namespace, and write the results to docs/results/attacks.md.

    python tools/attacks                        # every attack, 5 s each; needs root
    python tools/attacks --only pour,icmp --seconds 2 --json FILE

Four hosts on one switch: host0 and host1 run a job of all-reduces with known results (victim.py), host2 attacks
(attacker.py), and host3 is a bystander. The same attack aimed at host3 costs this host the same packets and CPU, so a
step under attack is compared with a step during that one. In an attack on the start, rank 1 starts a second late. Exits
with 1 if an attacker was admitted, anything about the job leaked, a result was wrong, the job ended, a rank was locked
out, or an attack did not reach its aim and so proved nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from mlt._shared.units import TIME
from mlt.job.configuration import JobConfig
from mlt.testbed import Testbed

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RATE = "1gbit"
RENDEZVOUS = 29_501
LATE_SECONDS = 1.0
# Recording time of a running job: it includes the job's start and hundreds of its datagrams.
RECORD_SECONDS = 0.5
# Name parts of counters that stay constant on an idle network.
TELLING = (
    "drop_",
    "control_",
    "rendezvous_",
    "wrong_state_",
    "stale_",
    "duplicate_",
    "icmp",
    "path_mtu",
    "udp_send_too_large",
)
RUNNING = (
    "ask-control", "join-with-a-guess", "replay-streams", "replay-datagrams", "forge-datagrams", "flood-1472",
    "flood-16", "hold", "churn", "pour", "icmp", "resets",
)  # fmt: skip
# Counters that must have increased by the end of an attack, to prove that it reached its aim. Of rank 0, or of its
# host's kernel ("kernel_"), by at least the given number per try.
AIMS: dict[tuple[str, str], dict[str, float]] = {
    ("running", "ask-control"): {"control_unproved": 0, "control_other_version": 0, "control_malformed": 0},
    ("running", "join-with-a-guess"): {"control_unproved": 0},
    ("running", "replay-streams"): {"control_unproved": 0},
    ("running", "replay-datagrams"): {"stale_packets": 0},
    ("running", "forge-datagrams"): {"drop_bad_cookie": 0},
    ("running", "flood-1472"): {"drop_bad_cookie": 0, "drop_bad_version": 0},
    ("running", "flood-16"): {"drop_bad_cookie": 0, "drop_bad_version": 0},
    ("running", "hold"): {"control_too_many_pending": 0},
    ("running", "churn"): {"control_unidentified": 0},
    ("running", "pour"): {"control_unproved": 0, "control_other_version": 0, "control_drains_cut": 0},
    ("running", "icmp"): {"kernel_icmp_errors": 1},
    ("running", "resets"): {"kernel_tcp_segments": 0.5},
    ("at the start", "ask-rendezvous"): {"rendezvous_unproved": 0, "rendezvous_other_version": 0},
    ("at the start", "bad-lines"): {"rendezvous_malformed": 0, "rendezvous_oversized": 0},
    ("at the start", "hold"): {"rendezvous_too_many_pending": 0},
    ("at the start", "join-with-a-guess"): {"rendezvous_unproved": 0},
    ("at the start", "replay-streams"): {"rendezvous_unproved": 0},
}
# Names here, and in /proc/net/snmp.
KERNEL = {"kernel_icmp_errors": ("Icmp", "InDestUnreachs"), "kernel_tcp_segments": ("Tcp", "InSegs")}
# Clients with the secret at rank 0's rendezvous, and the seconds that each needs from its opening to its proof.
SLOW_RANKS, SLOW_SECONDS = 5, 0.3
RECORDED = ("replay-streams", "replay-datagrams", "forge-datagrams")
AT_START = ("ask-rendezvous", "bad-lines", "hold", "join-with-a-guess", "replay-streams")


@dataclass
class Result:
    """Outcome of one attack. Times in seconds; ``moved``: counters that rose more than in the quiet time before."""

    name: str
    when: str
    what: str = ""
    tried: int = 0
    faults: list[str] = field(default_factory=list)
    quiet: tuple[float, float] | None = None
    under: tuple[float, float] | None = None
    beside: tuple[float, float] | None = None
    up_seconds: float | None = None
    moved: dict[str, int] = field(default_factory=dict)
    reached: dict[str, int] = field(default_factory=dict)
    slow_admitted: int | None = None


class Job:
    """Two ranks of victim.py on host0 and host1."""

    def __init__(self, bed: Testbed, folder: Path) -> None:
        self.bed, self.folder = bed, folder
        self.name = f"job-{secrets.token_hex(6)}"
        self.secret = secrets.token_hex(32)
        self.stop, self.out = folder / f"{self.name}.stop", folder / f"{self.name}.json"
        self.ranks: list[subprocess.Popen[str]] = []

    def start(self, rank: int) -> None:
        """Rank 0 first: the attacker poses as the other one."""
        env = {
            "MLT_JOB": self.name,
            "MLT_JOB_SECRET": self.secret,
            "WORLD_SIZE": "2",
            "MLT_RENDEZVOUS_PORT": str(RENDEZVOUS),
        }
        words = [sys.executable, str(HERE / "victim.py"), "--stop", str(self.stop), "--out", str(self.out)]
        self.ranks.append(
            self.bed.popen(f"host{rank}", words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )

    def wait_up(self) -> None:
        """Wait until every rank has reported "up"; raises RuntimeError with its output otherwise."""
        for rank in self.ranks:
            assert rank.stdout is not None
            said = []
            while (line := rank.stdout.readline()) != "up\n":
                said.append(line)
                if not line:
                    raise RuntimeError("the job did not come up: " + "".join(said)[-600:].strip())

    def end(self) -> dict[str, Any]:
        """Stop after the current step; returns rank 0's document, or ``{"ended": why}`` if the job had ended."""
        self.stop.touch()
        texts = []
        for rank in self.ranks:
            try:
                texts.append(rank.communicate(timeout=30)[0])
            except subprocess.TimeoutExpired:
                rank.kill()
                texts.append(rank.communicate()[0] + "\ndid not stop within 30 s")
        if any(rank.returncode for rank in self.ranks) or not self.out.exists():
            return {"ended": " | ".join(text.strip()[-300:] for text in texts)}
        return dict(json.loads(self.out.read_text()))

    def target(self, address: str, recorded: Path) -> dict[str, Any]:
        """The attacker's input file; ``address`` is rank 0's, or the bystander's with the same ports."""
        return {
            "address": address,
            "victim": self.bed.address("host0"),
            "peer": self.bed.address("host1"),
            "rendezvous": RENDEZVOUS,
            "tcp": listening(self.bed, "host0", "t"),
            "udp": listening(self.bed, "host0", "u"),
            "size": 2,
            "job": self.name,
            "recorded": str(recorded),
        }

    def leaks(self, answers: list[bytes]) -> list[str]:
        """Information about the job in the replies to an attacker."""
        config = JobConfig.resolve(
            rank=0, world_size=2, job=self.name, master_addr="127.0.0.1", rendezvous_port=1, environ={}
        )
        job_id = config.job_id.to_bytes(8, "little")
        everything = b"\n".join(answers)
        known = {"the job's name": self.name.encode(), "the secret": self.secret.encode(), "the job id": job_id}
        found = [f"learned {what}" for what, text in known.items() if text in everything]
        return found + (["joined the job"] if b"JOINED" in everything else [])


def listening(bed: Testbed, host: str, kind: str) -> list[int]:
    """The listening ports of a host (``kind`` "t" TCP, "u" UDP), as found by a port scan."""
    lines = bed.exec(host, ["ss", f"-H{kind}ln"]).stdout.splitlines()
    return sorted({int(line.split()[3].rpartition(":")[2]) for line in lines})


def kernel_counters(bed: Testbed, host: str) -> dict[str, int]:
    """The counters of ``KERNEL``, of the network stack of ``host``."""
    lines = [line.split() for line in bed.exec(host, ["cat", "/proc/net/snmp"]).stdout.splitlines()]
    tables = {
        names[0].rstrip(":"): dict(zip(names, values, strict=True))
        for names, values in zip(lines[::2], lines[1::2], strict=True)
    }
    return {name: int(tables[table][row]) for name, (table, row) in KERNEL.items()}


def reach(result: Result, rises: dict[str, int]) -> None:
    """Note what the attack reached; what it aims at and did not reach is a fault."""
    for name, share in AIMS[result.when, result.name].items():
        result.reached[name] = rises.get(name, 0)
        if result.reached[name] <= share * result.tried:
            result.faults.append(f"it did not reach its aim: {name} rose by {result.reached[name]}")


def attack(bed: Testbed, name: str, target: dict[str, Any], seconds: float, folder: Path) -> dict[str, Any]:
    """Run one attack to its end; raises RuntimeError if the attacker itself failed."""
    path = folder / "target.json"
    path.write_text(json.dumps(target))
    words = [sys.executable, str(HERE / "attacker.py"), name, str(path), str(seconds)]
    done = bed.exec("host2", words, timeout=seconds + 60)
    if done.returncode != 0:
        raise RuntimeError(f"the attack {name} itself failed: {done.stderr.strip()[-500:]}")
    report = dict(json.loads(done.stdout))
    report["answers"] = [bytes.fromhex(one) for one in report["answers"]]
    return report


def percentiles(steps: list[list[float]], began: float, ended: float) -> tuple[float, float] | None:
    """(p50, p99) of the steps that began in the interval; None if it has none."""
    inside = sorted(seconds for at, seconds in steps if began <= at < ended)
    if not inside:
        return None
    return statistics.median(inside), inside[min(len(inside) - 1, int(len(inside) * 0.99))]


def at(counters: list[tuple[float, dict[str, int]]], moment: float) -> dict[str, int]:
    """The newest counters of before ``moment``."""
    return max((one for one in counters if one[0] <= moment), default=counters[0], key=lambda one: one[0])[1]


def rises(counters: list[tuple[float, dict[str, int]]], began: float, ended: float) -> dict[str, int]:
    """By how much each counter rose."""
    start, end = at(counters, began), at(counters, ended)
    return {name: end[name] - start.get(name, 0) for name in end}


def moved(counters: list[tuple[float, dict[str, int]]], quiet: float, began: float, ended: float) -> dict[str, int]:
    """Error counters that rose between ``began`` and ``ended`` by more than in the same time before."""

    before, start = at(counters, quiet), at(counters, began)
    rise = {name: count for name, count in rises(counters, began, ended).items() if name.startswith(TELLING)}
    calm = {name: start[name] - before.get(name, 0) for name in start}
    return {name: count for name, count in rise.items() if count > 2 * calm.get(name, 0)}


@contextlib.contextmanager
def recording(bed: Testbed, out: Path) -> Iterator[None]:
    """Record host1's traffic to ``out``, until RECORD_SECONDS after the block."""
    words = [sys.executable, str(HERE / "recorder.py"), "mlt0", str(out)]
    recorder = bed.popen("host1", words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert recorder.stdin is not None
    assert recorder.stdout is not None
    try:
        recorder.stdout.readline()
        yield
        time.sleep(RECORD_SECONDS)
        recorder.stdin.close()
        if recorder.wait(timeout=30) != 0:
            raise RuntimeError("the recorder failed; its error is above")
    finally:
        recorder.kill()
        recorder.wait()


def attack_running(bed: Testbed, name: str, seconds: float, folder: Path) -> Result:
    """A job of its own: idle network, attack, idle network with an attack on a bystander, ``seconds`` each."""
    print(f"attacks: {name}", file=sys.stderr, flush=True)
    job, recorded = Job(bed, folder), folder / "recorded.json"
    with recording(bed, recorded) if name in RECORDED else contextlib.nullcontext():
        job.start(0)
        job.start(1)
        job.wait_up()
    quiet = time.monotonic()
    time.sleep(seconds)
    kernel = kernel_counters(bed, "host0")
    began = time.monotonic()
    report = attack(bed, name, job.target(bed.address("host0"), recorded), seconds, folder)
    ended = time.monotonic()
    kernel = {key: value - kernel[key] for key, value in kernel_counters(bed, "host0").items()}
    time.sleep(0.5)
    control = time.monotonic()
    attack(bed, name, job.target(bed.address("host3"), recorded), seconds, folder)
    last = time.monotonic()
    result = Result(name, "running", report["what"], report["tried"], job.leaks(report["answers"]))
    record = job.end()
    if "ended" in record:
        result.faults.append(f"the job ended: {record['ended']}")
        return result
    steps, counters = record["steps"], record["counters"]
    result.quiet, result.under = percentiles(steps, quiet, began), percentiles(steps, began, ended)
    result.beside = percentiles(steps, control, last)
    result.moved = moved(counters, quiet, began, ended)
    reach(result, {**rises(counters, began, control), **kernel})
    result.moved |= {key: rise for key, rise in result.reached.items() if key in KERNEL}
    if result.under is None:
        result.faults.append("no step was finished")
    if record["wrong"]:
        result.faults.append(f"{record['wrong']} steps had a wrong result")
    return result


def attack_start(bed: Testbed, name: str | None, seconds: float, folder: Path) -> Result:
    """A job that starts during an attack: rank 1 starts a second after the attack. ``name`` None: no attack."""
    print(f"attacks: {name or 'nothing'}, at the start", file=sys.stderr, flush=True)
    job, recorded = Job(bed, folder), folder / "recorded.json"
    job.start(0)
    until = time.monotonic() + 20
    while RENDEZVOUS not in listening(bed, "host0", "t") and time.monotonic() < until:
        time.sleep(0.05)
    report: dict[str, Any] = {"what": "", "tried": 0, "answers": []}
    target = folder / "target.json"
    target.write_text(json.dumps(job.target(bed.address("host0"), recorded)))
    running = None
    if name is not None:
        words = [sys.executable, str(HERE / "attacker.py"), name, str(target), str(seconds + 2 * LATE_SECONDS)]
        running = bed.popen("host2", words, stdout=subprocess.PIPE, text=True)
    time.sleep(LATE_SECONDS)
    result = Result(name or "none", "at the start")
    if name in (None, "hold"):
        result.slow_admitted = slow_ranks(bed, job)
        if result.slow_admitted < SLOW_RANKS:
            result.faults.append(f"kept out {SLOW_RANKS - result.slow_admitted} of {SLOW_RANKS} slow ranks")
    began = time.monotonic()
    job.start(1)
    try:
        job.wait_up()
        result.up_seconds = time.monotonic() - began
    except RuntimeError as error:
        result.faults.append(str(error))
    if running is not None:
        report = json.loads(running.communicate(timeout=seconds + 60)[0])
        report["answers"] = [bytes.fromhex(one) for one in report["answers"]]
    result.what, result.tried = report["what"], report["tried"]
    result.faults += job.leaks(report["answers"])
    time.sleep(0.5)  # the counters are written every quarter of a second
    record = job.end()
    if "ended" in record:
        result.faults.append(f"the job ended: {record['ended']}")
    elif record["wrong"]:
        result.faults.append(f"{record['wrong']} steps had a wrong result")
    else:
        result.moved = {
            key: count for key, count in record["counters"][-1][1].items() if count and key.startswith(TELLING)
        }
        if name is not None:
            reach(result, record["counters"][-1][1])
    return result


def slow_ranks(bed: Testbed, job: Job) -> int:
    """Number of slow clients with the secret, connecting from host1, that rank 0 admits."""
    words = [sys.executable, str(HERE / "slow_ranks.py"), bed.address("host0"), str(RENDEZVOUS)]
    done = bed.exec(
        "host1", [*words, str(SLOW_RANKS), str(SLOW_SECONDS)], timeout=60, env={"MLT_JOB_SECRET": job.secret}
    )
    if done.returncode != 0:
        raise RuntimeError(f"the slow ranks failed: {done.stderr.strip()[-500:]}")
    return int(json.loads(done.stdout))


# Reporting


def milliseconds(pair: tuple[float, float] | None) -> str:
    return "-" if pair is None else f"{pair[0] * 1e3:.1f} / {pair[1] * 1e3:.1f}"


def table(results: list[Result], seconds: float) -> str:
    when = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    lines = [
        "# Attacks on a job, and what came of them",
        "",
        f"Made by `make attacks` on {when}: {os.cpu_count()} shared cores, all hosts on this one machine, links of",
        f"{RATE}, {seconds:g} s for each attack. The attacker has a host of its own on the job's switch and knows",
        "every address and port. For replays and forgeries it has a recording of the job. It has no secret. The job",
        "is an all-reduce of 256 KiB between two ranks with a pause of 2 ms; every result is checked. Step times",
        "are p50 / p99 in ms: *quiet*, before the attack; *attacked*; and *beside*, while the same packets go to a",
        "host that is not in the job: the cost of the attack to this machine and its switch, whatever its target.",
        "An attack fails if what it aims at did not count it. *kernel*: counters of the attacked host's network stack.",
        "",
        "## Against a running job",
        "",
        "| attack | times | got in, learned or broke | quiet | attacked | beside | counters that moved |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in results:
        if one.when == "running":
            lines.append(
                f"| `{one.name}` | {one.tried:,} | {'; '.join(one.faults) or 'nothing'} | {milliseconds(one.quiet)} "
                f"| {milliseconds(one.under)} | {milliseconds(one.beside)} | {counters_text(one)} |"
            )
    lines += [
        "",
        "## While the job forms",
        "",
        "Rank 1 comes a second or two after the attack began; *up* is from its start until both are connected.",
        f"*Slow*: of {SLOW_RANKS} clients with the secret on rank 1's host that need {SLOW_SECONDS:g} s from opening",
        "to proof, as behind a slow link (the testbed's links have no delay), how many rank 0 admitted.",
        "",
        "| attack | times | got in, learned or broke | up | slow | counters of rank 0 |",
        "|---|---|---|---|---|---|",
    ]
    for one in results:
        if one.when != "running":
            up = "-" if one.up_seconds is None else f"{one.up_seconds:.2f} s"
            faults = "; ".join(one.faults) or "nothing"
            slow = "-" if one.slow_admitted is None else f"{one.slow_admitted} of {SLOW_RANKS}"
            lines.append(f"| `{one.name}` | {one.tried:,} | {faults} | {up} | {slow} | {counters_text(one)} |")
    lines += ["", "## What each does", ""]
    lines += [f"- `{name}`: {what}" for name, what in {one.name: one.what for one in results if one.what}.items()]
    return "\n".join(lines) + "\n"


def counters_text(result: Result) -> str:
    largest = sorted(result.moved.items(), key=lambda item: (item[0] not in result.reached, -item[1]))[:5]
    return ", ".join(f"`{name}` {count:,}" for name, count in largest) or "none"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", help="names of attacks, separated by commas (default: all)")
    parser.add_argument("--seconds", type=TIME.read, default=5.0, help="duration of each attack (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs" / "results" / "attacks.md", help="Markdown report to write"
    )
    parser.add_argument("--json", type=Path, help="JSON report to write instead")
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else sorted({*RUNNING, *AT_START})
    unknown = set(chosen) - {*RUNNING, *AT_START}
    if unknown:
        parser.error(
            f"no such attack: {', '.join(sorted(unknown))}; there are {', '.join(sorted({*RUNNING, *AT_START}))}"
        )
    with tempfile.TemporaryDirectory() as folder, Testbed(hosts=4, rate=RATE) as bed:
        where = Path(folder)
        results = [attack_running(bed, name, options.seconds, where) for name in RUNNING if name in chosen]
        results.append(attack_start(bed, None, options.seconds, where))
        results += [attack_start(bed, name, options.seconds, where) for name in AT_START if name in chosen]
    if options.json:
        options.json.write_text(json.dumps([vars(one) for one in results], indent=1))
    else:
        options.out.write_text(table(results, options.seconds))
        print(f"written to {options.out}")
    bad = [f"{one.name} ({one.when}): {fault}" for one in results for fault in one.faults]
    print(
        "\n".join(bad) or "attacks: each reached its aim; nothing got in, nothing leaked, every result was right",
        file=sys.stderr,
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
