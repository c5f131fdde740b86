"""Passwords and keys are never shown, and are no flags."""

from pathlib import Path

import pytest

from streaming.config.explain import render_toml
from streaming.config.secrets import is_harmless_option
from streaming.config.settings import gateway_settings, load_settings
from tests.unit.streaming.config.test_settings import complaints

SECRETS = """
[kafka]
ssl_key_password = "hunter2"
sasl_password = "hunter2"
[kafka.options]
"sasl.jaas.config" = "hunter2"
"ssl.key.password" = "hunter2"
"ssl.key.passphrase" = "hunter2"
"basic.auth.user.info" = "ann:hunter2"
"schema.registry.url" = "https://ann:hunter2@registry"
[engine.spark]
"spark.hadoop.fs.s3a.secret.key" = "hunter2"
"spark.hadoop.fs.s3a.encryption.key" = "hunter2"
"spark.hadoop.fs.azure.sas.container.account" = "hunter2"
"spark.hadoop.google.cloud.auth.service.account.private.key" = "hunter2"
"spark.driver.extraJavaOptions" = "-Dkey=hunter2"
"spark.executor.memory" = "4g"
[bridge]
password = "hunter2"
"""


def test_secrets_are_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "my.toml"
    file.write_text(SECRETS)
    settings = load_settings(file)
    assert settings.kafka.sasl_password == "hunter2"
    assert "hunter2" not in repr(settings) + render_toml(settings)
    assert '"spark.executor.memory" = "4g"' in render_toml(settings), "what is known to be harmless is shown"
    assert "hunter2" not in repr(gateway_settings(settings)) + repr(settings.kafka)
    assert "hunter2" not in "".join(complaints('gateway.credentials={"ann": ["hunter2"]}'))
    monkeypatch.setenv("INFLIGHT__KAFKA__OPTIONS", '{"ssl.key.password": {"hunter2": 1}}')
    assert "hunter2" not in "".join(complaints())


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("kafka.sasl_password=hunter2", "set the environment variable INFLIGHT__KAFKA__SASL_PASSWORD, or write it in a conf"),
        ("bridge.password=hunter2", "set the environment variable INFLIGHT__BRIDGE__PASSWORD"),
        ("kafka.options.ssl.key.password=hunter2", "flags of a process: write it in a configuration file"),
        ('kafka.options."ssl.key.password"=hunter2', "flags of a process: write it in a configuration file"),
        ("kafka.options.ssl.key.passphrase=hunter2", "flags of a process"),
        ("kafka.options.basic.auth.user.info=ann:hunter2", "flags of a process"),
        ("kafka.options.an.option.of.tomorrow=hunter2", "flags of a process"),
        ("engine.spark.spark.hadoop.fs.azure.sas.container.account=hunter2", "flags of a process"),
        ("engine.spark.spark.hadoop.fs.s3a.encryption.key=hunter2", "flags of a process"),
        ('kafka.options={"sasl.jaas.config": "hunter2"}', "flags of a process"),
        ('kafka.options={"an.option.of.tomorrow": "hunter2"}', "flags of a process"),
        ('kafka={"sasl_password": "hunter2"}', "flags of a process"),
    ],
)
def test_a_secret_is_no_flag(override: str, words: str) -> None:
    [problem] = complaints(override)
    assert words in problem
    assert "hunter2" not in problem


@pytest.mark.parametrize(
    ("name", "is_harmless"),
    [
        ("spark.sql.session.timeZone", True),
        ("spark.sql.catalog.mine.url", False),
        ("spark.kubernetes.driver.pod.name", True),
        ("spark.kubernetes.driverEnv.ANYTHING", False),
        ("spark.kubernetes.authenticate.oauthToken", False),
        ("spark.executor.memory", True),
        ("spark.executor.extraJavaOptions", False),
        ("spark.hadoop.fs.s3a.endpoint", True),
        ("spark.hadoop.fs.s3a.access.key", False),
        ("request.timeout.ms", True),
        ("client.id", True),
        ("ssl.ca.location", True),
        ("ssl.ca.pem", False),
        ("schema.registry.url", False),
    ],
)
def test_only_options_that_are_known_to_be_harmless_are_shown(name: str, is_harmless: bool) -> None:
    assert is_harmless_option(name) is is_harmless


def test_what_is_named_like_a_secret_may_be_a_flag(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hunter2\n")
    overrides = [f"kafka.sasl_password_file={tmp_path}/password", "gateway.login.password_cache_ms=5", "kafka.sasl_password="]
    overrides += ["engine.spark.spark.hadoop.fs.s3a.aws.credentials.provider=com.example.Provider"]
    overrides += ["kafka.options.an.option.of.tomorrow=17", "kafka.options.client.rack=a", "engine.spark.spark.of.tomorrow=true"]
    settings = load_settings(overrides=overrides)
    assert settings.kafka.password == "hunter2"
    assert "hunter2" not in repr(settings) + render_toml(settings)
    assert "com.example.Provider" in render_toml(settings)
