"""``mlt launch``: all ranks of a job on this host, with a secret that no other user sees."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from checks import assert_names, until
from launch_jobs import KILL_SERVICE
from rank_jobs import outputs_of

import mlt.cli
from mlt._shared.ports import free_port_pair

pytest.importorskip("mlt._core")
MLT = [sys.executable, "-m", "mlt.cli.main", "launch"]
README = Path(__file__).parents[3] / "README.md"
EXAMPLES = README.with_name("examples")
SUM = """
import os, numpy as np, mlt
with mlt.Context() as context:
    assert len(os.environ["MLT_JOB_SECRET"]) == 64 and context.config.secret is not None
    tensor = np.full(1000, context.rank + 1.0, np.float32)
    context.all_reduce(tensor, op=mlt.Reduction.SUM)
    print("sum", tensor[0], os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"], flush=True)
"""
PUSH = """
import numpy as np, mlt
with mlt.Context() as context:
    tensor = np.full(1000, context.rank + 1.0, np.float32)
    mlt.PushPull(context).push_pull(tensor, key=1, average=False).wait(30)
    print("pulled", tensor[0], flush=True)
"""


def launch(*words: str, seconds: float = 60, **environ: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MLT_")}
    return subprocess.run([*MLT, *words], env={**inherited, **environ}, capture_output=True, text=True, timeout=seconds)


def test_launch__ranks_form_a_job_with_a_secret_of_its_own() -> None:
    done = launch("-n", "3", "--", sys.executable, "-c", SUM)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] sum 6.0 {rank} 3" for rank in range(3)]


def test_launch__runs_the_example_of_collectives() -> None:
    done = launch("-n", "4", sys.executable, str(EXAMPLES / "collectives.py"))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}] rank {rank} of 4: every collective is right" for rank in range(4)
    ]


def test_launch__runs_the_example_of_many_messages() -> None:
    done = launch("-n", "2", sys.executable, str(EXAMPLES / "many_messages.py"))
    assert done.returncode == 0, done.stderr
    lines = [line.split(":")[0] for line in done.stdout.splitlines()]
    assert lines == ["[1] one_by_one", "[1] in_lists"]


def test_launch__runs_the_example_of_the_readme(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    (program,) = (block for block in blocks if "mlt.Context()" in block)
    (tmp_path / "two.py").write_text(program, encoding="utf-8")
    done = launch("-n", "2", sys.executable, str(tmp_path / "two.py"))
    assert (done.returncode, done.stdout) == (0, "[1] complete 0.0 []\n"), done.stderr
    assert "`complete 0.0 []`" in README.read_text(encoding="utf-8")


def test_launch__runs_the_example_of_critical_segments() -> None:
    # Few rounds: the figures of docs/priorities.md are of more.
    code = f"import sys; sys.path.insert(0, {str(EXAMPLES)!r})\n"
    code += "import critical_segments as one; one.ROUNDS = 7; one.main()"
    done = launch("-n", "2", sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if " p99 " in line]
    assert len(rows) == 6
    assert all(row.startswith("[1] ") and row.endswith("lost 0.00%") for row in rows), done.stdout


def test_launch__keeps_the_secret_that_is_set(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("f" * 40)
    file.chmod(0o600)
    program = "import os; print(os.environ.get('MLT_JOB_SECRET'), os.environ['MLT_JOB_SECRET_FILE'] != '')"
    done = launch("-n", "1", sys.executable, "-c", program, MLT_JOB_SECRET_FILE=str(file))
    assert done.stdout == "[0] None True\n"


def test_launch__starts_the_services_too() -> None:
    done = launch("-n", "2", "-s", "1", sys.executable, "-c", PUSH)
    assert done.returncode == 0, done.stderr + done.stdout
    assert sorted(done.stdout.splitlines()) == ["[0] pulled 3.0", "[1] pulled 3.0"]


def test_launch__services_that_no_worker_joins_are_ended_and_told() -> None:
    began = time.monotonic()
    done = launch("-n", "2", "-s", "2", "--grace", "0.5", "true")
    assert time.monotonic() - began < 30  # a service alone waits for 60 s
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert len(lines) == 2, done.stderr
    for line, name in zip(lines, ("service 0 (rank 2)", "service 1 (rank 3)"), strict=True):
        assert_names(line, name, "every worker", "mlt.Context()", "init_process_group", "--services")


def test_launch__a_rank_that_fails_ends_all_and_is_named_with_its_code() -> None:
    program = "import os, sys, time; rank = int(os.environ['RANK']); rank == 1 and sys.exit(7); time.sleep(60)"
    began = time.monotonic()
    done = launch("-n", "3", "--grace", "0.2", sys.executable, "-c", program)
    assert time.monotonic() - began < 20
    assert done.returncode == 7
    assert_names(done.stderr, "rank 1", "exit code 7")
    for rank in (0, 2):
        assert f"rank {rank} was ended" in done.stderr


FIRST = """
import os, sys, time, mlt, numpy as np
with mlt.Context() as context:
    if context.rank == 1:
        {failure}
    try:
        context.all_reduce(np.ones(1000, np.float32))
    except mlt.MltError:
        {others}
"""


@pytest.mark.parametrize(
    ("failure", "others", "status"),
    [
        ("sys.exit(7)", "raise", 7),
        ("time.sleep(0.3); raise ValueError", "os._exit(3)", 1),  # a traceback takes longer than that
        ("os._exit(9)", "sys.exit(3)", 9),
        ("os.kill(os.getpid(), 9)", "sys.exit(3)", 137),
        ("sys.exit(0)", "sys.exit(3)", 3),
    ],
)
def test_launch__the_status_is_that_of_the_rank_that_failed_first(failure: str, others: str, status: int) -> None:
    done = launch("-n", "3", sys.executable, "-c", FIRST.format(failure=failure, others=others))
    assert done.returncode == status, done.stderr
    if status != 3:
        assert "rank 1" in done.stderr


def test_launch__the_status_of_a_rank_that_fails_after_others_ended_well() -> None:
    program = "import os, sys, time; os.environ['RANK'] == '0' and sys.exit(0); time.sleep(0.5); sys.exit(5)"
    assert launch("-n", "2", sys.executable, "-c", program).returncode == 5


def test_launch__says_at_once_which_rank_failed() -> None:
    program = "import os, sys, time; os.environ['RANK'] == '1' and sys.exit(3); time.sleep(60)"
    words = [*MLT, "-n", "2", "--grace", "50", sys.executable, "-c", program]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        assert process.poll() is None
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert_names(line, "rank 1 ended with exit code 3", "the others have 50 s to end")


def test_launch__names_who_still_runs_after_another_has_ended_and_is_stopped() -> None:
    program = "import os, signal; os.environ['RANK'] == '1' and os.kill(os.getpid(), signal.SIGSTOP)"
    words = [*MLT, "-n", "3", "--grace", "60", sys.executable, "-c", program]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        began = time.monotonic()
        line = process.stderr.readline()
        assert time.monotonic() - began < 20
        assert_names(line, "still waiting for rank 1; rank 1 is stopped", "kill -CONT")
        os.kill(int(re.findall(r"-CONT (\d+)", line)[0]), signal.SIGCONT)
        _, rest = process.communicate(timeout=30)
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert (process.returncode, rest) == (0, "")


def test_launch__ends_a_stopped_rank_once_the_others_have_succeeded_and_fails() -> None:
    program = "import os, signal; os.environ['RANK'] == '1' and os.kill(os.getpid(), signal.SIGSTOP)"
    done = launch("-n", "3", "--grace", "500ms", sys.executable, "-c", program)
    assert done.returncode == 128 + signal.SIGTERM
    assert_names(done.stderr, "rank 1 is stopped", "else it is ended in 500 ms", "rank 1 was stopped by a signal")


STOPPING = """
import os, signal, numpy as np, mlt
from checks import strike
with mlt.Context() as context:
    mlt.PushPull(context).push_pull(np.ones(1000, np.float32), key=1).wait(50)
    {then}
"""


@pytest.mark.parametrize(
    ("words", "then", "who"),
    [
        (("-s", "1", "--max-dead-workers", "1"), "context.rank == 1 and os.kill(os.getpid(), 19)", "rank 1"),
        (("-s", "2", "--max-dead-services", "1"), "context.rank == 0 and kill_service(strike)", "service"),
    ],
)
def test_launch__a_stopped_process_whose_death_the_bounds_allow_is_ended_and_does_not_count(
    words: tuple[str, ...], then: str, who: str
) -> None:
    program = KILL_SERVICE + STOPPING.format(then=then)
    tests = str(Path(__file__).parents[1])
    done = launch("-n", "3", *words, sys.executable, "-c", program, seconds=120, PYTHONPATH=tests)
    assert done.returncode == 0, done.stderr + done.stdout
    (line,) = [one for one in done.stderr.splitlines() if " was stopped by a signal" in one]
    assert_names(line, who, "SIGSTOP", "was ended, as the bounds of dead processes allow")
    assert "had not all joined" not in done.stderr


@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
def test_launch__output_that_cannot_be_written_ends_the_job(redirection: str) -> None:
    words = " ".join(MLT)
    command = f"{words} -n 2 sh -c 'seq 1 100000' {redirection}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "standard output cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_launch__names_the_signal_that_killed_a_rank() -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    done = launch("-n", "1", sys.executable, "-c", program)
    assert done.returncode == 137
    assert "rank 0 ended with exit code 137: killed by SIGKILL" in done.stderr
    assert "out of memory" in done.stderr


def test_launch__a_signal_ends_every_rank(tmp_path: Path) -> None:
    program = (
        "import os, sys, time; open(sys.argv[1] + os.environ['RANK'], 'w').write(str(os.getpid())); time.sleep(60)"
    )
    process = subprocess.Popen([*MLT, "-n", "2", sys.executable, "-c", program, f"{tmp_path}/"], stderr=subprocess.PIPE)
    files = [tmp_path / "0", tmp_path / "1"]
    until(lambda: all(file.exists() and file.read_text() for file in files))
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 143
    assert b"interrupted" in errors
    for file in files:
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)


def test_launch__shows_the_secret_on_no_command_line() -> None:
    program = (
        "import os, pathlib, subprocess\n"
        "secret = os.environ['MLT_JOB_SECRET']\n"
        "lines = [path.read_bytes() for path in pathlib.Path('/proc').glob('[0-9]*/cmdline')]\n"
        "print('seen' if any(secret.encode() in line for line in lines) else 'hidden')"
    )
    done = launch("-n", "1", "--", sys.executable, "-c", program)
    assert done.stdout == "[0] hidden\n"
    assert "MLT_JOB_SECRET" not in done.stderr


def test_launch__a_program_that_is_not_there() -> None:
    done = launch("no-such-program-of-anybody")
    assert done.returncode == 127
    assert "'no-such-program-of-anybody'" in done.stderr


def test_launch__a_script_in_place_of_its_interpreter(tmp_path: Path) -> None:
    done = launch("-n", "2", "two.py")
    assert done.returncode == 127
    assert "write python two.py" in done.stderr
    (tmp_path / "two").touch()
    done = subprocess.run(
        [sys.executable, "-m", "mlt", "launch", "two"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 127
    assert "write ./two" in done.stderr
    script = tmp_path / "two.py"
    script.write_text("import sys\n")
    script.chmod(0o755)
    done = launch("-n", "2", str(script))
    assert done.returncode == 126
    assert f"write python {script}" in done.stderr


def test_launch__a_program_that_cannot_be_executed_is_named_and_no_secret_shown(tmp_path: Path) -> None:
    program = tmp_path / "no-interpreter"
    program.write_text("neither a binary nor a script\n")
    program.chmod(0o755)
    # Without setpriv on the path, which would execute it instead; and with tracebacks as typer before 0.23 shows them.
    older = (
        "import typer, sys; old = typer.Typer.__init__\n"
        "def init(self, **more): more.setdefault('pretty_exceptions_show_locals', True); old(self, **more)\n"
        "typer.Typer.__init__ = init\n"
        "from mlt.cli.main import main\n"
        "sys.argv = ['mlt', 'launch', '-n', '2', sys.argv[1]]; main()"
    )
    secret = "a secret that nobody may see"
    environ = {**os.environ, "PATH": str(tmp_path), "MLT_JOB_SECRET": secret}
    done = subprocess.run(
        [sys.executable, "-c", older, str(program)], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 126
    assert_names(done.stderr, "rank 0", f"'{program}'", "Exec format error", "#!")
    assert secret not in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_apps__show_no_locals_in_tracebacks() -> None:
    """Typer before 0.23 shows them by default, and the job secret is among them."""
    seen = 0
    for module in pkgutil.iter_modules(mlt.cli.__path__, "mlt.cli."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, typer.Typer):
                seen += 1
                assert value.pretty_exceptions_show_locals is False, (module.name, name)
    # Apps that only exist while a command runs.
    source = "".join(path.read_text() for path in Path(mlt.cli.__path__[0]).glob("*.py"))
    assert source.count("typer.Typer(") == 0
    assert source.count("(typer.Typer)") == source.count("pretty_exceptions_show_locals=False") == 1
    assert seen > 0


def byteps_host(**changed: str) -> dict[str, str]:
    """The variables of a host of a job of BytePS; those of other launchers are empty."""
    others = dict.fromkeys(("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NVIDIA_VISIBLE_DEVICES"), "")
    return {**others, "DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "1", "DMLC_WORKER_ID": "0", **changed}


def test_launch_byteps__the_workers_of_one_host_form_a_job() -> None:
    done = launch("--byteps", sys.executable, "-c", SUM, **byteps_host(NVIDIA_VISIBLE_DEVICES="0,1,2"))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] sum 6.0 {rank} 3" for rank in range(3)]


def test_launch_byteps__two_hosts_form_a_job() -> None:
    program = (
        "import os\nfrom mlt._named import byteps\nbyteps.init()\n"
        "print(byteps.rank(), byteps.size(), os.environ['BYTEPS_LOCAL_RANK'], os.environ['BYTEPS_LOCAL_SIZE'], "
        "os.environ['DMLC_WORKER_ID'], flush=True)\nbyteps.shutdown()"
    )
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MLT_")}
    hosts = byteps_host(
        DMLC_NUM_WORKER="2",
        DMLC_PS_ROOT_URI="127.0.0.1",
        DMLC_PS_ROOT_PORT=str(free_port_pair()),
        MLT_JOB_SECRET="0123456789abcdef" * 4,
    )
    words = [*MLT, "--byteps", "-n", "2", sys.executable, "-c", program]
    processes = [
        subprocess.Popen(
            words,
            env={**inherited, **hosts, "DMLC_WORKER_ID": str(host)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for host in range(2)
    ]
    for host, output in enumerate(outputs_of(processes, 60)):
        assert sorted(output.splitlines()) == [
            f"[{2 * host + local}] {2 * host + local} 4 {local} 2 {host}" for local in range(2)
        ]


@pytest.mark.parametrize("role", ["scheduler", "server"])
@pytest.mark.parametrize("command", [(), ("no-such-program-of-anybody",)])
def test_launch_byteps__a_scheduler_or_server_is_not_needed(role: str, command: tuple[str, ...]) -> None:
    done = launch("--byteps", *command, **byteps_host(DMLC_ROLE=role))
    assert (done.returncode, done.stdout) == (0, "")
    assert_names(done.stderr, f"DMLC_ROLE is {role}", "mlt needs none", "nothing was started")


@pytest.mark.parametrize(
    ("words", "changed", "facts"),
    [
        (("--byteps", "true"), {"DMLC_ROLE": ""}, ("DMLC_ROLE is ''", "worker")),
        (("--byteps", "true"), {"DMLC_WORKER_ID": ""}, ("DMLC_WORKER_ID", "is not set")),
        (("--byteps", "true"), {"DMLC_NUM_WORKER": "2"}, ("DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT", "are not set")),
        (("--byteps", "-s", "1", "true"), {}, ("--services", "leave it out")),
        (("--byteps",), {}, ("COMMAND is missing",)),
    ],
)
def test_launch_byteps__what_is_missing_or_wrong_is_named(
    words: tuple[str, ...], changed: dict[str, str], facts: tuple[str, ...]
) -> None:
    done = launch(*words, **byteps_host(**changed))
    assert (done.returncode, done.stdout) == (2, "")
    assert_names(done.stderr, *facts)
