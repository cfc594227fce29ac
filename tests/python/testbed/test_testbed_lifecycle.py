"""A testbed always goes away: after its command, a failure, Ctrl-C, SIGTERM, and after its process was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from checks import assert_names, until
from testbed_lab import MLT, command, leftovers, needs_testbed, python

from mlt.testbed import BadTopologyError, Testbed, TestbedError, namespaces, state, topology

pytestmark = needs_testbed

SLEEPER = "import os, sys, time; print('pid', os.getpid(), flush=True); time.sleep(300)"


@pytest.fixture
def name() -> Iterator[str]:
    chosen = f"t{os.getpid()}-{time.monotonic_ns() % 1_000_000}"
    yield chosen
    command("down", "--name", chosen)
    assert leftovers(chosen) == []


def start(name: str, *words: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A run of sleepers on two hosts; returns it and their pids once both said so."""
    process = subprocess.Popen(
        [*MLT, "run", "--hosts", "2", "--name", name, *words, "--", *python(SLEEPER)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, [int(process.stdout.readline().split()[2]) for _ in range(2)]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_run__gives_every_host_its_place_in_the_job(name: str) -> None:
    keys = ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "MLT_INTERFACE", "GLOO_SOCKET_IFNAME"]
    code = f"import os, json; print(json.dumps([os.environ[k] for k in {keys}]))"
    done = command("run", "--hosts", "3", "--name", name, "--port", "4000", "--", *python(code))
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert [line[:4] for line in lines] == ["[0] ", "[1] ", "[2] "]
    for rank, line in enumerate(lines):
        assert json.loads(line[4:]) == [str(rank), "3", "10.77.0.1", "4000", "mlt0", "mlt0"]
    assert leftovers(name) == []


def test_run__gives_each_of_several_ranks_of_a_host_its_own_place(name: str) -> None:
    keys = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MLT_TESTBED_HOST"]
    code = f"import os, json; print(json.dumps([os.environ[k] for k in {keys}]))"
    done = command("run", "--hosts", "2", "--ranks-per-host", "3", "--name", name, "--", *python(code))
    assert done.returncode == 0, done.stderr
    places = [json.loads(line[4:]) for line in sorted(done.stdout.splitlines())]
    assert places == [[str(rank), str(rank % 3), "6", "3", f"host{rank // 3}"] for rank in range(6)]
    failing = "import os, sys; sys.exit(7 if os.environ['RANK'] == '3' else 0)"
    done = command("run", "--hosts", "2", "--ranks-per-host", "2", "--name", name, "--", *python(failing))
    assert done.returncode == 7
    assert "host1.1 (rank 3)" in done.stderr
    assert leftovers(name) == []


def test_run__streams_both_outputs_line_by_line(name: str) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); print('no newline', end='')"
    done = command("run", "--hosts", "1", "--name", name, "--", *python(code))
    assert done.stdout.splitlines() == ["[0] out", "[0] err", "[0] no newline"]


def test_run__ends_the_others_when_one_fails_and_passes_its_code_on(name: str) -> None:
    code = "import os, sys, time; os.environ['RANK'] == '1' and sys.exit(7); time.sleep(300)"
    began = time.monotonic()
    done = command("run", "--hosts", "3", "--name", name, "--grace", "0.5", "--", *python(code))
    assert done.returncode == 7
    assert_names(done.stderr, "host1 (rank 1)", "exit code 7")
    assert "host0 (rank 0) was ended" in done.stderr
    assert time.monotonic() - began < 20
    assert leftovers(name) == []


def test_run__waits_for_the_grace_before_it_ends_the_others(name: str) -> None:
    code = "import os, sys, time; os.environ['RANK'] == '1' and sys.exit(7); time.sleep(1); print('done')"
    done = command("run", "--hosts", "2", "--name", name, "--grace", "30", "--", *python(code))
    assert done.returncode == 7
    assert done.stdout == "[0] done\n"


def test_run__kills_processes_that_ignore_sigterm(name: str) -> None:
    code = (
        "import os, signal, sys, time; os.environ['RANK'] == '1' and sys.exit(7); "
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
    )
    done = command("run", "--hosts", "2", "--name", name, "--grace", "0", "--", *python(code))
    assert done.returncode == 7
    assert leftovers(name) == []


def test_run__reports_a_command_that_does_not_exist(name: str) -> None:
    done = command("run", "--hosts", "2", "--name", name, "--grace", "0", "--", "no-such-program")
    assert done.returncode == 127
    assert "no-such-program" in done.stderr
    assert leftovers(name) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_run__cleans_up_after_a_signal(name: str, number: signal.Signals) -> None:
    process, pids = start(name)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number, err
    assert "testbed is removed" in err
    assert leftovers(name) == []
    assert not any(is_alive(pid) for pid in pids)


def test_run__ends_when_its_output_is_closed(name: str) -> None:
    line = " ".join([*MLT, "run", "--hosts", "2", "--name", name, "--", "yes"])
    done = subprocess.run(
        ["bash", "-c", f"{line} | head -n 3; echo ${{PIPESTATUS[0]}}"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "141", done.stderr
    assert leftovers(name) == []


def test_run__ends_processes_that_left_its_process_group(name: str) -> None:
    code = (
        "import subprocess, sys; p = subprocess.Popen(['sleep', '300'], start_new_session=True); "
        "print('pid', p.pid, flush=True)"
    )
    done = command("run", "--hosts", "1", "--name", name, "--", *python(code))
    assert done.returncode == 0, done.stderr
    assert not is_alive(int(done.stdout.split()[2]))
    assert leftovers(name) == []


def test_end_processes__waits_for_processes_that_have_left_the_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = "signal.signal(15, lambda *_: (time.sleep(0.3), sys.exit()))"
    slow = f"import signal, sys, time\n{handler}\nprint(flush=True)\ntime.sleep(30)"
    with subprocess.Popen(python(slow), stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        listed = [[child.pid], []]
        monkeypatch.setattr(namespaces, "processes", lambda _: listed.pop(0))
        assert namespaces.end_processes([], grace=2) == 1
        assert state.start_time(child.pid) is None


def test_run__killed__leaves_nothing_that_the_next_command_does_not_remove(name: str) -> None:
    process, pids = start(name)
    with state.locked():  # so that no command of another test is the next
        process.kill()
        process.communicate(timeout=30)
        # The commands die with it at once; the namespaces are found by the next command.
        until(lambda: not any(is_alive(pid) for pid in pids))
        assert leftovers(name)
    done = command("run", "--hosts", "1", "--name", f"{name}-next", "--", "true")
    assert done.returncode == 0, done.stderr
    assert leftovers(name) == []


def test_down__removes_the_rest_of_a_killed_run(name: str) -> None:
    process, _ = start(name)
    process.kill()
    process.communicate(timeout=30)
    done = command("down", "--name", name)
    # A command of another test may have been the next.
    assert f"removed {name}" in done.stdout or "no testbed named" in done.stderr
    assert leftovers(name) == []


def test_up__stays_until_down_and_its_name_is_taken_meanwhile(name: str) -> None:
    assert command("up", "--name", name, "--hosts", "2").returncode == 0
    again = command("up", "--name", name, "--hosts", "2")
    assert again.returncode == 1
    assert_names(again.stderr, f"'{name}'", "already")
    assert leftovers(name)
    code = "import os; raise SystemExit(int(os.environ['RANK']))"
    done = command("exec", "--name", name, "host1", "--", *python(code))
    assert done.returncode == 1
    wrong = command("exec", "--name", name, "host5", "--", "true")
    assert wrong.returncode == 2
    assert_names(wrong.stderr, "'host5'", "host0, host1")
    assert command("down", "--name", name).returncode == 0
    assert leftovers(name) == []
    gone = command("down", "--name", name)
    assert gone.returncode == 1
    assert "no testbed named" in gone.stderr


def test_up__that_fails_half_way_leaves_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlt.testbed import tc

    def refuse(*_: object) -> None:
        raise TestbedError("tc says no")

    monkeypatch.setattr(tc, "batch", refuse)
    with pytest.raises(TestbedError, match="tc says no"):
        Testbed(hosts=2, name=name).up()
    assert leftovers(name) == []


def test_context_manager__removes_it_after_an_exception(name: str) -> None:
    bed = Testbed(hosts=1, name=name)

    def body() -> None:
        with bed:
            assert bed.exec("host0", python("print(1)")).stdout == "1\n"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        body()
    assert leftovers(name) == []
    with pytest.raises(TestbedError, match="is not up"):
        bed.counters()
    with pytest.raises(BadTopologyError):
        bed.address("host9")


def test_testbeds__of_two_names_are_apart(name: str) -> None:
    with Testbed(hosts=1, name=name), Testbed(hosts=1, name=f"{name}-b", loss="5%") as other:
        assert command("set", "--name", name, "--loss", "7%").returncode == 0
        assert Testbed.attach(name).topology.loss == 0.07
        assert other.link_counters()[0].loss == 0.05


def test_commands__of_a_testbed_whose_namespace_is_gone_say_so(name: str) -> None:
    assert command("up", "--name", name, "--hosts", "2").returncode == 0
    namespaces.remove(namespaces.path_of(name, "host0"))
    # Its links went with it: the switch has no port to set.
    for words, facts in (
        (("exec", "--name", name, "host0", "--", "true"), (f"mlt-{name}-host0", "No such file", "mlt testbed down")),
        (("set", "host0", "--name", name, "--break"), (f"mlt-{name}-switch", "No such device")),
    ):
        done = command(*words)
        assert done.returncode == 1, done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert_names(done.stderr, *facts)


def test_inside__names_the_namespace_that_the_kernel_refuses_something_in(name: str) -> None:
    path = namespaces.path_of(name, "host0")

    def delete_nothing() -> None:
        from pyroute2 import IPRoute

        with IPRoute() as ip:
            ip.link("del", index=999)

    with Testbed(topology.make({"hosts": 1}), name=name), pytest.raises(TestbedError) as error:
        namespaces.inside(path, delete_nothing)
    assert_names(str(error.value), f"mlt-{name}-host0", "No such device")
