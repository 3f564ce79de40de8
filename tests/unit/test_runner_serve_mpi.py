"""The one command line that is started for another, and how mpirun is asked."""

from __future__ import annotations

import pytest

from shardwright.runner.serve.daemon_line import (
    DaemonCommand,
    LineError,
    checked,
    from_message,
    read_line,
)
from shardwright.runner.serve.mpi import (
    MPIError,
    command,
    hostfile,
    rank_of,
    read_version,
    settings,
)

# As Open MPI 4.1.4 (Debian 12) has called its agent, after the host; one entry an argument.
ORTED = [
    " orted",
    *("-mca", "ess", '"env"', "-mca", "ess_base_jobid", '"2139750400"'),
    *("-mca", "ess_base_vpid", "2", "-mca", "ess_base_num_procs", '"3"'),
    *("-mca", "orte_node_regex", '"vm,[2:10].99.0.2,[2:10].99.0.3@0(3)"'),
    *("-mca", "orte_hnp_uri"),
    '"2139750400.0;tcp://192.0.2.2:52431;tcp6://[fd00::2]:54287"',
    *("--mca", "plm_rsh_agent", '"/agent.sh"', "-mca", "plm", '"rsh"', "--tree-spawn"),
    *("-mca", "pmix", '"^s1,s2,cray,isolated"'),
]
# The same with --prefix /usr, or where mpirun was configured to.
PREFIX = (
    "          PATH=/usr/bin:$PATH ; export PATH ; LD_LIBRARY_PATH=/usr/lib:${LD_LIBRARY_PATH:-} ; "
    "export LD_LIBRARY_PATH ; DYLD_LIBRARY_PATH=/usr/lib:${DYLD_LIBRARY_PATH:-} ; export "
    "DYLD_LIBRARY_PATH ;   /usr/bin/orted"
)
PREFIXED = [PREFIX, "-mca", "ess", '"env"']
# As Open MPI 5.0.11 (the wheel on PyPI) has called it.
PRTE = (
    "PRTE_PREFIX=/opt/v5;export PRTE_PREFIX;PMIX_PREFIX=/opt/v5;export PMIX_PREFIX;"
    "LD_LIBRARY_PATH=/opt/v5/lib:/opt/v5/lib:$LD_LIBRARY_PATH;export LD_LIBRARY_PATH;"
    "DYLD_LIBRARY_PATH=/opt/v5/lib:/opt/v5/lib:$DYLD_LIBRARY_PATH;export DYLD_LIBRARY_PATH;"
    "/opt/v5/bin/prted"
)
PRTED = [
    PRTE,
    "--prtemca",
    "prte_hnp_uri",
    '"prterun-vm-5311@0.0;tcp://192.0.2.2:54935:64,24;tcp6://[fd00::2]:52177:64,24"',
]


def test_the_daemon_of_open_mpi_4_is_read_without_a_shell() -> None:
    found = read_line(ORTED)
    assert found.argv[:4] == ("orted", "-mca", "ess", "env")
    assert "2139750400.0;tcp://192.0.2.2:52431;tcp6://[fd00::2]:54287" in found.argv
    assert found.argv[-1] == "^s1,s2,cray,isolated"
    assert found.paths == ()


def test_a_prefix_becomes_search_paths() -> None:
    found = read_line(PREFIXED)
    assert found.argv == ("/usr/bin/orted", "-mca", "ess", "env")
    env = found.environment({"PATH": "/bin", "OTHER": "1"})
    assert env["PATH"] == "/usr/bin:/bin"
    assert env["LD_LIBRARY_PATH"] == "/usr/lib"
    assert env["OTHER"] == "1"


def test_the_daemon_of_open_mpi_5_is_read() -> None:
    found = read_line(PRTED)
    assert found.argv[0] == "/opt/v5/bin/prted"
    env = found.environment({"LD_LIBRARY_PATH": "/cuda"})
    assert env["LD_LIBRARY_PATH"] == "/opt/v5/lib:/opt/v5/lib:/cuda"
    assert env["PRTE_PREFIX"] == "/opt/v5"


def test_a_line_for_sh_reads_no_profile() -> None:
    line = ["( test ! -r ./.profile || . ./.profile; orted", "-mca", "ess", '"env" )']
    assert read_line(line).argv == ("orted", "-mca", "ess", "env")


def test_a_command_survives_the_channel() -> None:
    for words in (ORTED, PREFIXED, PRTED):
        found = read_line(words)
        assert from_message(found.message()) == found


@pytest.mark.parametrize(
    "line",
    [
        "",
        "bash -c orted",
        "sh",
        "/evil orted",
        "orted; rm -rf /",
        "orted && id",
        "orted | tee x",
        "orted > /etc/passwd",
        "orted & id",
        "(orted)",
        "LD_PRELOAD=/x.so ; export LD_PRELOAD ; orted",
        "PATH=$(id) ; orted",
        "PATH=`id` ; orted",
        "export LD_PRELOAD ; orted",
        "id ; orted",
        'orted "unfinished',
        "orted \x1b[31m",
        "xorted",
        "orted-wrapper",
        "orted " + "x " * 600,
        "orted " + "x" * 40_000,
    ],
)
def test_everything_else_is_refused(line: str) -> None:
    with pytest.raises(LineError):
        read_line([line])


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"argv": "orted"},
        {"argv": [1]},
        {"argv": []},
        {"argv": ["id"]},
        {"argv": ["orted"], "paths": {"PATH": "x"}},
        {"argv": ["orted"], "paths": [["PATH"]]},
        {"argv": ["orted"], "paths": [["LD_PRELOAD", "/x.so"]]},
        {"argv": ["orted"], "paths": [["PATH", "$(id)"]]},
        {"argv": ["orted", "a\nb"]},
    ],
)
def test_the_other_side_refuses_it_again(message: dict[str, object]) -> None:
    with pytest.raises(LineError):
        from_message(message)


def test_a_quoted_semicolon_is_part_of_an_argument() -> None:
    assert checked(DaemonCommand(("orted", "a;b"))).argv == ("orted", "a;b")


@pytest.mark.parametrize(
    ("output", "text", "major", "daemon"),
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to http://…", "4.1.4", 4, "orted"),
        ("mpirun (Open MPI) 4.1.9a1\n", "4.1.9", 4, "orted"),
        ("mpirun (Open MPI) 5.0.11\n", "5.0.11", 5, "prted"),
    ],
)
def test_versions_of_open_mpi(output: str, text: str, major: int, daemon: str) -> None:
    found = read_version(output)
    assert (found.text, found.major, found.daemon) == (text, major, daemon)


@pytest.mark.parametrize(
    "output", ["HYDRA build details:\n    Version: 4.0", "", "mpirun (Open MPI) 3.1.6"]
)
def test_other_launchers_are_refused_by_name(output: str) -> None:
    with pytest.raises(MPIError, match="Open MPI"):
        read_version(output)


def test_ranks_fill_stages_one_after_the_other() -> None:
    assert hostfile(["10.0.0.1", "10.0.0.2"], 8) == "10.0.0.1 slots=8\n10.0.0.2 slots=8\n"
    words = command("/run/hosts", "/run/rank", world_size=16, tensor=8, as_root=False)
    assert words[words.index("-np") + 1] == "16"
    assert words[words.index("--map-by") + 1] == "ppr:8:node"
    assert words[-1] == "/run/rank"
    assert "--allow-run-as-root" not in words
    assert "--allow-run-as-root" in command("h", "r", world_size=2, tensor=1, as_root=True)


def test_each_version_gets_its_own_names() -> None:
    four = settings(read_version("mpirun (Open MPI) 4.1.4"), "/agent", "eth0", {})
    assert four["OMPI_MCA_plm_rsh_agent"] == "/agent"
    assert four["OMPI_MCA_oob_tcp_if_include"] == "eth0"
    five = settings(read_version("mpirun (Open MPI) 5.0.11"), "/agent", "eth0", {})
    assert five["PRTE_MCA_plm_ssh_agent"] == "/agent"
    assert five["PRTE_MCA_prte_if_include"] == "eth0"
    assert "OMPI_MCA_plm_rsh_agent" not in five


@pytest.mark.parametrize("name", ["OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude"])
def test_what_the_pod_sets_stays(name: str) -> None:
    found = settings(read_version("mpirun (Open MPI) 4.1.4"), "/a", "eth0", {name: "net1"})
    assert "OMPI_MCA_btl_tcp_if_include" not in found
    assert found["OMPI_MCA_oob_tcp_if_include"] == "eth0"


def test_without_a_known_interface_open_mpi_chooses() -> None:
    found = settings(read_version("mpirun (Open MPI) 4.1.4"), "/a", "", {})
    assert not [name for name in found if "_if_" in name]


def test_a_rank_knows_its_place() -> None:
    env = {
        "OMPI_COMM_WORLD_RANK": "5",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "8",
    }
    assert rank_of(env) == (5, 1, 8)
    with pytest.raises(MPIError, match="OMPI_COMM_WORLD_SIZE"):
        rank_of({name: value for name, value in env.items() if not name.endswith("SIZE")})
