"""The bill of materials: the packages that a user gets, and every jar once, with its hash."""

import hashlib
import json
import zipfile
from pathlib import Path

from inflight.local.jars import PinnedJar, read_pinned
from inflight.local.sbom import chosen_lines, main, pinned_component, product_packages, shipped_component, with_jars

ROOT = Path(__file__).parents[4]
REQUIREMENTS = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines(keepends=True)


def jar_with(path: Path, **files: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def test_packages_of_this_repository_alone_are_left_out() -> None:
    packages = product_packages()
    assert {"confluent-kafka", "pyspark", "py4j", "duckdb", "opentelemetry-sdk", "starlette", "markupsafe"} <= packages
    assert packages.isdisjoint({"inflight", "pytest", "mypy", "ruff", "hypothesis", "bandit"})
    assert {"pyspark", "duckdb"}.isdisjoint(product_packages(extras=()))


def test_each_chosen_package_has_its_pin_and_all_its_hashes() -> None:
    lines = ["# head\n", "a==1 \\\n", "    --hash=sha256:1\n", "b==2 \\\n", "    --hash=sha256:2 \\\n", "    --hash=sha256:3\n"]
    assert list(chosen_lines(lines, {"b"})) == lines[3:]
    whole = list(chosen_lines(REQUIREMENTS, product_packages()))
    assert sum("==" in line for line in whole) == len(product_packages())
    assert sum("--hash=" in line for line in whole) > len(product_packages())


def test_a_pinned_jar_has_the_name_and_the_hash_of_the_list() -> None:
    component = pinned_component(PinnedJar("kafka", "org.apache.kafka", "kafka-clients", "4.2.0", "ab" * 32))
    assert component["purl"] == "pkg:maven/org.apache.kafka/kafka-clients@4.2.0"
    assert component["hashes"] == [{"alg": "SHA-256", "content": "ab" * 32}]


def test_a_jar_of_pyspark_is_named_by_what_is_in_it(tmp_path: Path) -> None:
    inside = "groupId=org.example\nartifactId=thing\nversion=1.5\n"
    path = jar_with(tmp_path / "thing-1.5.jar", **{"META-INF/maven/org.example/thing/pom.properties": inside})
    component = shipped_component(path)
    assert component["purl"] == "pkg:maven/org.example/thing@1.5"
    assert component["hashes"][0]["content"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_what_a_jar_has_swallowed_does_not_name_it(tmp_path: Path) -> None:
    inside = "groupId=org.other\nartifactId=swallowed\nversion=9\n"
    path = jar_with(tmp_path / "thing_2.13-1.5.jar", **{"META-INF/maven/org.other/swallowed/pom.properties": inside})
    assert shipped_component(path)["purl"] == "pkg:generic/thing_2.13@1.5"


def test_every_jar_is_in_the_bill_once(tmp_path: Path) -> None:
    source, target = tmp_path / "packages.json", tmp_path / "all.json"
    package = {"type": "library", "bom-ref": "requirements-L1", "name": "a", "version": "1"}
    source.write_text(json.dumps({"bomFormat": "CycloneDX", "components": [package]}))
    main(["jars", str(source), str(target)])
    bill = json.loads(target.read_text())
    references = [one["bom-ref"] for one in bill["components"]]
    assert len(set(references)) == len(references)
    pinned = {jar.sha256 for jar in read_pinned(ROOT / "conf" / "jars.txt")}
    hashes = {one["hashes"][0]["content"] for one in bill["components"] if "hashes" in one}
    assert pinned <= hashes
    assert len(hashes) > len(pinned) + 200
    assert package in bill["components"]


def test_a_jar_on_both_class_paths_is_one_component() -> None:
    jar = pinned_component(PinnedJar("kafka", "g", "n", "1", "ab" * 32))
    assert with_jars({"components": []}, [jar, dict(jar)])["components"] == [jar]
