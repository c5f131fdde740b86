"""The manifests of conf/kubernetes: valid by Kubernetes' own schemas, fitting together, with a configuration that Inflight takes.

There is no Kubernetes here: that it runs them is not tested.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import trustme
import yaml
from typer.testing import CliRunner

from inflight.cli.app import app
from streaming.config.settings import ENVIRONMENT_PREFIX, Settings, load_settings

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "conf" / "kubernetes"
OBJECTS: list[dict[str, Any]] = [
    found for path in sorted(FOLDER.glob("*.yaml")) for found in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
NAMED = {(found["kind"], found["metadata"]["name"]): found for found in OBJECTS}
CONFIGURATION = NAMED["ConfigMap", "inflight"]["data"]
EXECUTOR = yaml.safe_load(CONFIGURATION["executor.yaml"])
CA_FILE = tomllib.loads(CONFIGURATION["inflight.toml"])["kafka"]["ssl_cafile"]
MOUNTED = "/etc/inflight/config/"
VERSIONS = ("1.30", "1.37")
"""The oldest and the newest Kubernetes that the files are validated for."""

PODS = {found["metadata"]["name"]: found["spec"]["template"] for found in OBJECTS if "template" in found.get("spec", {})}
PROCESSES = {name: pod["spec"]["containers"][0] for name, pod in PODS.items()}


def environment(container: dict[str, Any]) -> Iterator[str]:
    return (entry["name"] for entry in container.get("env", ()) if entry["name"].startswith(ENVIRONMENT_PREFIX))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration of every process, with authorities that are there, and a value for each variable."""
    authorities = tmp_path / "ca.crt"
    trustme.CA().cert_pem.write_to_path(str(authorities))
    written = tmp_path / "inflight.toml"
    written.write_text(CONFIGURATION["inflight.toml"].replace(CA_FILE, str(authorities)), encoding="utf-8")
    for container in PROCESSES.values():
        for name in environment(container):
            monkeypatch.setenv(name, "given")
    return written


@pytest.fixture
def settings(file: Path) -> Settings:
    return load_settings(file)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("found", [*OBJECTS, EXECUTOR], ids=lambda found: f"{found['kind']}-{found['metadata'].get('name')}")
def test_every_object_is_one_by_the_schema(found: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(found, version, strict=True)


def test_a_misspelt_key_would_be_found() -> None:
    deployment = NAMED["Deployment", "inflight-engine"]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**deployment, "spec": {**deployment["spec"], "replica": 1}}, VERSIONS[-1], strict=True)


def test_no_object_is_there_twice_and_all_are_in_one_namespace() -> None:
    assert len(NAMED) == len(OBJECTS)
    assert {found["metadata"]["namespace"] for found in OBJECTS} == {"inflight"}
    assert set(PROCESSES) == {"inflight-engine", "inflight-gateway", "inflight-topics"}


@pytest.mark.parametrize("name", PROCESSES)
def test_each_pod_runs_a_command_and_logs_in_to_kafka(name: str, settings: Settings) -> None:
    container = PROCESSES[name]
    command, *options = container["args"]
    assert name == f"inflight-{command}"
    assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0
    assert options[:2] == ["--config", f"{MOUNTED}inflight.toml"]
    assert "INFLIGHT__KAFKA__SASL_PASSWORD" in environment(container)
    given = {entry["name"] for entry in container["env"]}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(options))) <= given
    assert settings.kafka.sasl_password == "given"


def test_the_engine_takes_what_it_is_given_on_the_command_line(file: Path) -> None:
    flag, override = PROCESSES["inflight-engine"]["args"][3:]
    assert flag == "--set"
    spark = load_settings(file, [override.replace("$(POD_NAME)", "engine-7f")]).engine.spark
    assert spark["spark.kubernetes.driver.pod.name"] == "engine-7f"


@pytest.mark.parametrize("pod", [*PODS.values(), EXECUTOR], ids=[*PODS, "executor"])
def test_every_mounted_volume_and_file_is_there(pod: dict[str, Any]) -> None:
    (container,) = pod["spec"]["containers"]
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts.keys() == volumes.keys()
    for volume in volumes.values():
        if "persistentVolumeClaim" in volume:
            assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in NAMED
        if "configMap" in volume:
            assert ("ConfigMap", volume["configMap"]["name"]) in NAMED
    assert pod["spec"]["securityContext"]["runAsUser"] == user_of_the_image()


def user_of_the_image() -> int:
    return int(re.findall(r"^USER (\d+)$", (ROOT / "conf" / "Dockerfile").read_text(), flags=re.MULTILINE)[0])


def test_files_of_the_configuration_are_mounted_where_they_are_read(settings: Settings) -> None:
    (listener,) = settings.listeners
    read = {
        "inflight-gateway": [listener.tls_certfile, listener.tls_keyfile, settings.gateway.login.password_file],
        "inflight-engine": [settings.engine.spark["spark.kubernetes.executor.podTemplateFile"], str(settings.engine.data_dir)],
    }
    for name, container in {**PROCESSES, "executor": EXECUTOR["spec"]["containers"][0]}.items():
        mounted = [mount["mountPath"] for mount in container["volumeMounts"]]
        for file in (*read.get(name, ()), CA_FILE):
            assert any(Path(file).is_relative_to(path) for path in mounted), f"{file} in {name}"
    assert str(settings.engine.data_dir) in [mount["mountPath"] for mount in EXECUTOR["spec"]["containers"][0]["volumeMounts"]]


def test_the_secrets_are_those_that_the_page_makes() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.yaml"))
    used = set(re.findall(r"secretName: ([\w-]+)", text)) | set(re.findall(r"secretKeyRef: { name: ([\w-]+)", text))
    page = (ROOT / "docs" / "operate" / "kubernetes.md").read_text(encoding="utf-8")
    assert used == set(re.findall(r"^kubectl -n inflight create secret (?:generic|tls) ([\w-]+)", page, flags=re.MULTILINE))


def test_services_and_budgets_choose_the_pods_and_their_ports(settings: Settings) -> None:
    labels = {name: pod["metadata"]["labels"] for name, pod in PODS.items()}
    for found in OBJECTS:
        if found["kind"] in ("Service", "PodDisruptionBudget", "Deployment", "StatefulSet"):
            selector = found["spec"]["selector"].get("matchLabels", found["spec"]["selector"])
            (chosen,) = [name for name, those in labels.items() if selector.items() <= those.items()]
            ports = {port["name"]: port["containerPort"] for port in PROCESSES[chosen]["ports"]}
            for port in found["spec"].get("ports", ()):
                assert ports[port["name"]] == port["port"]
                assert port.get("targetPort", port["name"]) == port["name"]
    ports = {name: {port["name"]: port["containerPort"] for port in pod.get("ports", ())} for name, pod in PROCESSES.items()}
    spark = settings.engine.spark
    assert ports["inflight-engine"] == {
        "driver": spark["spark.driver.port"],
        "blocks": spark["spark.driver.blockManager.port"],
        "metrics": settings.metrics.engine_port,
    }
    (listener,) = settings.listeners
    assert ports["inflight-gateway"] == {"mqtts": listener.port, "metrics": settings.metrics.gateway_port}
    assert spark["spark.driver.host"] == "inflight-engine.inflight.svc"
    assert NAMED["StatefulSet", "inflight-gateway"]["spec"]["serviceName"] == "inflight-gateway"


def test_probes_ask_the_port_of_the_metrics_for_what_it_answers() -> None:
    for name in ("inflight-engine", "inflight-gateway"):
        probes = {key: probe["httpGet"] for key, probe in PROCESSES[name].items() if key.endswith("Probe")}
        assert {probe["port"] for probe in probes.values()} == {"metrics"}
        assert probes["livenessProbe"]["path"] == "/healthz"
        assert {probe["path"] for key, probe in probes.items() if key != "livenessProbe"} == {"/readyz"}


def test_there_is_time_to_stop(settings: Settings) -> None:
    assert PODS["inflight-gateway"]["spec"]["terminationGracePeriodSeconds"] * 1_000 > settings.gateway.stop_timeout_ms
    assert NAMED["Deployment", "inflight-engine"]["spec"]["strategy"] == {"type": "Recreate"}


def test_spark_may_do_nothing_in_other_namespaces() -> None:
    binding = NAMED["RoleBinding", "inflight-engine"]
    assert ("Role", binding["roleRef"]["name"]) in NAMED
    (subject,) = binding["subjects"]
    account = PODS["inflight-engine"]["spec"]["serviceAccountName"]
    assert (subject["kind"], subject["name"]) == ("ServiceAccount", account)
    assert ("ServiceAccount", account) in NAMED
    assert not any(kind.startswith("Cluster") for kind, _ in NAMED)


@pytest.mark.processes
def test_the_command_of_an_executor_hands_on_what_spark_tells_it(tmp_path: Path) -> None:
    (container,) = EXECUTOR["spec"]["containers"]
    assert container["command"][:4] == ["tini", "--", "bash", "-c"]
    for name, text in (("java", 'printf "%s\\n" "$@"'), ("python", f'exec {sys.executable} "$@"')):
        stub = tmp_path / name
        stub.write_text(f"#!/bin/bash\n{text}\n")
        stub.chmod(0o755)
    told = {
        "SPARK_JAVA_OPT_0": "-Dspark.driver.port=7078",
        "SPARK_JAVA_OPT_1": "-Dnote=a b",
        "SPARK_EXECUTOR_MEMORY": "1g",
        "SPARK_CONF_DIR": "/opt/spark/conf",
        "SPARK_DRIVER_URL": "spark://driver",
        "SPARK_EXECUTOR_ID": "7",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_APPLICATION_ID": "application",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "exec-7",
    }
    command = [*container["command"][2:], "executor"]
    told["PATH"] = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    words = subprocess.check_output(command, env={**os.environ, **told}, text=True, timeout=60).splitlines()
    assert {"-Dspark.driver.port=7078", "-Dnote=a b", "-Xmx1g"} <= set(words)
    classpath = words[words.index("-cp") + 1]
    jars = classpath.removeprefix("/opt/spark/conf:").removesuffix("/*")
    assert list(Path(jars).glob("spark-kubernetes_*.jar"))
    main = words.index("org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend")
    assert dict(zip(words[main + 1 :: 2], words[main + 2 :: 2], strict=True)) == {
        "--driver-url": "spark://driver",
        "--executor-id": "7",
        "--cores": "2",
        "--app-id": "application",
        "--hostname": "10.0.0.7",
        "--resourceProfileId": "0",
        "--podName": "exec-7",
    }
