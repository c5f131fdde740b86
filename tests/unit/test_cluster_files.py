"""The files of conf/cluster fit together: what they name exists, and their configuration is one that Inflight takes.

This is a dry run: no container is started (`make lint-containers`). tests/integration/containers starts them with
`make test-containers`; tests/integration/engine/test_three_brokers.py runs the processes of conf/cluster without containers.
"""

import ipaddress
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from inflight.cli.app import app
from inflight.local.set_up import packages_of
from streaming.config.settings import Settings, load_settings
from streaming.topics import planned_topics

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "conf" / "cluster"
COMPOSE = yaml.safe_load((FOLDER / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
BROKERS = [name for name in SERVICES if name.startswith("kafka-")]
GATEWAYS = [name for name in SERVICES if name.startswith("gateway-")]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "inflight:dev" and "entrypoint" not in service}


def settings_of(name: str) -> Settings:
    """Returns the settings of the service."""
    command = OURS[name]["command"]
    assert command[1:3] == ["--config", "/etc/inflight.toml"]
    assert set(command[3::2]) <= {"--set"}
    return load_settings(FOLDER / "inflight.toml", command[4::2])


def mounts() -> Iterator[tuple[str, str]]:
    """Source and path of each volume of each service."""
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source, target, *_ = volume.split(":")
            yield source, target


def test_the_cluster_has_the_documented_services() -> None:
    assert (len(BROKERS), len(GATEWAYS)) == (3, 2)
    others = {"topics", "spark-master", "spark-worker-1", "spark-worker-2", "engine", "balancer", "prometheus", "grafana"}
    assert SERVICES.keys() - {*BROKERS, *GATEWAYS} == others
    assert OURS.keys() == {"topics", "engine", *GATEWAYS}


def test_every_volume_is_declared_and_every_mounted_file_is_there() -> None:
    named = {source for source, _ in mounts() if not source.startswith(".")}
    assert named == set(COMPOSE["volumes"])
    assert [source for source, _ in mounts() if source.startswith(".") and not (FOLDER / source).exists()] == []
    build = OURS["engine"]["build"]
    assert ((FOLDER / build["context"]) / build["dockerfile"]).is_file()


def test_who_is_waited_for_exists_and_can_say_when_it_is_healthy() -> None:
    for service in SERVICES.values():
        needed = service.get("depends_on", {})
        assert set(needed) <= SERVICES.keys()
        for name in needed:
            healthy = isinstance(needed, dict) and needed[name]["condition"] == "service_healthy"
            assert "healthcheck" in SERVICES[name] or not healthy


def test_only_this_machine_reaches_it_and_no_port_is_published_twice() -> None:
    published = [port.rpartition(":")[0] for service in SERVICES.values() for port in service.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert len(set(published)) == len(published)


def test_the_brokers_vote_for_each_other_and_replicate() -> None:
    environments = {name: SERVICES[name]["environment"] for name in BROKERS}
    voters = ",".join(f"{environment['KAFKA_NODE_ID']}@{name}:9093" for name, environment in environments.items())
    for name, environment in environments.items():
        host_port = SERVICES[name]["ports"][0].split(":")[1]
        assert environment["KAFKA_CONTROLLER_QUORUM_VOTERS"] == voters
        assert environment["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://{name}:9092,HOST://127.0.0.1:{host_port}"
        assert (environment["KAFKA_DEFAULT_REPLICATION_FACTOR"], environment["KAFKA_MIN_INSYNC_REPLICAS"]) == (3, 2)
        assert (environment["KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR"], environment["KAFKA_TRANSACTION_STATE_LOG_MIN_ISR"]) == (
            3,
            2,
        )
    assert len({environment["KAFKA_NODE_ID"] for environment in environments.values()}) == 3


@pytest.mark.parametrize("name", OURS)
def test_each_process_has_a_valid_command_and_configuration(name: str) -> None:
    command = OURS[name]["command"][0]
    assert command == name.partition("-")[0]
    assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0
    assert "environment" not in OURS[name], "everything is in the file"
    settings = settings_of(name)
    assert settings.kafka.bootstrap_servers == ",".join(f"{broker}:9092" for broker in BROKERS)
    for plan in planned_topics(settings):
        assert (plan.replication_factor, plan.configs["min.insync.replicas"]) == (3, "2")


def test_engine_and_workers_share_the_checkpoint_and_the_image() -> None:
    settings = settings_of("engine")
    shared = f"engine:{settings.engine.data_dir}"
    for name in ("engine", "spark-worker-1", "spark-worker-2"):
        assert shared in SERVICES[name]["volumes"]
        assert SERVICES[name]["image"] == SERVICES["engine"]["image"]
    master = SERVICES["spark-master"]["command"]
    assert settings.engine.master == f"spark://spark-master:{master[master.index('--port') + 1]}"
    for worker in ("spark-worker-1", "spark-worker-2"):
        assert SERVICES[worker]["command"][-1] == settings.engine.master
    assert settings.engine.spark["spark.driver.host"] == SERVICES["engine"]["hostname"]


def test_the_gateways_believe_the_balancer_and_keep_their_names() -> None:
    balancer = SERVICES["balancer"]["networks"]["default"]["ipv4_address"]
    (network,) = COMPOSE["networks"]["default"]["ipam"]["config"]
    assert ipaddress.ip_address(balancer) in ipaddress.ip_network(network["subnet"])
    assert ipaddress.ip_address(balancer) not in ipaddress.ip_network(network["ip_range"]), "Docker gives these to others"
    for name in GATEWAYS:
        settings = settings_of(name)
        (listener,) = settings.listeners
        assert listener.proxies == (balancer,)
        assert settings.gateway.group_instance_id == name


def test_the_balancer_asks_who_is_ready_and_waits_for_silent_devices() -> None:
    text = (FOLDER / "haproxy.cfg").read_text(encoding="utf-8")
    settings = settings_of(GATEWAYS[0])
    (listener,) = settings.listeners
    servers = re.findall(r"^ +server (\S+) (\S+):(\d+)$", text, flags=re.MULTILINE)
    assert servers == [(name, name, str(listener.port)) for name in GATEWAYS]
    assert "httpchk GET /readyz" in text
    (options,) = re.findall(r"default-server (.+)", text)
    assert f"check port {settings.metrics.gateway_port} " in options
    assert " send-proxy-v2 " in options
    for side in ("client", "server"):
        (hours,) = re.findall(rf"timeout {side} (\d+)h", text)
        assert int(hours) * 3_600_000 > 1_500 * settings.limits.max_keep_alive_s


def test_prometheus_looks_where_the_processes_serve_their_numbers() -> None:
    configuration = yaml.safe_load((FOLDER / "prometheus.yml").read_text(encoding="utf-8"))
    alone = yaml.safe_load((ROOT / "conf" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    jobs = {job["job_name"]: job["static_configs"][0]["targets"] for job in configuration["scrape_configs"]}
    metrics = settings_of("engine").metrics
    assert jobs == {
        "inflight-engine": [f"engine:{metrics.engine_port}"],
        "inflight-gateway": [f"{name}:{metrics.gateway_port}" for name in GATEWAYS],
    }
    assert jobs.keys() == {job["job_name"] for job in alone["scrape_configs"]}, "the alerts go by these names"
    assert metrics.host == "0.0.0.0"
    assert set(configuration["rule_files"]) <= {target for _, target in mounts()}


def test_the_image_gets_all_that_its_build_needs_and_that_is_there() -> None:
    copied = copied_into_the_image()
    assert [source for source in copied if not (ROOT / source).exists()] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {
        *wheel["packages"],
        *wheel.get("force-include", {}),
        project["project"]["readme"],
        *project["project"]["license-files"],
    }
    assert {Path(path).parts[0] for path in needed} <= set(copied)


def copied_into_the_image() -> list[str]:
    """Returns the files and folders of the repository that conf/Dockerfile copies."""
    lines = (ROOT / "conf" / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copies = [line for line in lines if line.startswith("COPY ") and "--from=" not in line]
    return [source for line in copies for source in line.split()[1:-1]]


def test_the_build_gets_what_the_image_copies_and_nothing_else() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in ignored
    sent = {line[1:] for line in ignored if line.startswith("!")}
    assert sent == {Path(source).parts[0] for source in copied_into_the_image()}


def pins(name: str) -> dict[str, str]:
    """Returns each package of a requirements file with its version and hashes."""
    packages = packages_of((ROOT / name).read_text(encoding="utf-8"))
    return {package.partition("==")[0]: package for package in packages}


def test_the_image_has_the_packages_that_are_tested_without_the_tools() -> None:
    tested, image, build = pins("requirements.txt"), pins("requirements-image.txt"), pins("requirements-build.txt")
    assert image.items() <= tested.items(), "make requirements"
    assert "hatchling" in build
    assert all("--hash=" in package for package in (*image.values(), *build.values()))
    assert image.keys() & {"ruff", "mypy", "pytest", "hypothesis", "matplotlib", "hatchling"} == set()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = {re.split(r"[=<>\[]", line)[0] for line in (*project["dependencies"], *extras["engine"], *extras["tracing"])}
    assert wanted <= image.keys()


def test_the_services_for_one_machine_have_valid_commands() -> None:
    """docker-compose.yml, which `make test-containers` starts."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    ours = {name: service["command"] for name, service in services.items() if service["image"] == "inflight:dev"}
    assert ours.keys() == {"topics", "engine", "standby", "gateway"}
    for command in ours.values():
        shown = CliRunner().invoke(app, [command[0], "--help"])
        assert shown.exit_code == 0
        assert all(option in shown.output for option in command[1:])
