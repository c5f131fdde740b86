"""Provides a container engine with our image and the images of the files of Compose; fails where no container can be run."""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.containers.receiving_device import ReceivingDevice
from tests.support.containers.composition import Composition, compose_command
from tests.support.containers.container_engine import ROOT, CannotRunContainers, ContainerEngine, container_engine
from tests.support.containers.images import OURS, Images, base_image, images_of, stand_in_of

_BUILT_WITHIN_S = 1_800.0
_LAYERS_OF_THE_BUILD = "inflight-build:kept"
"""Names the first stages of the build, or they are deleted with the unnamed images."""
ONE_MACHINE = ROOT / "docker-compose.yml"
CLUSTER = ROOT / "conf" / "cluster" / "docker-compose.yml"


@dataclass(frozen=True)
class Prepared:
    """An engine that has the images.

    Attributes:
        missing: Images that can neither be pulled nor built.
        report: Shows a line beside the results of the tests.
    """

    engine: ContainerEngine
    missing: frozenset[str]
    report: Callable[[str], None]


@pytest.fixture(scope="session")
def prepared(request: pytest.FixtureRequest) -> Iterator[Prepared]:
    """Builds our image as docker-compose.yml says, and has the others. Fails with what to do where that is impossible."""
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    began_s = time.monotonic()

    def report(text: str) -> None:
        if reporter is None or capture is None:
            return
        with capture.global_and_fixture_disabled():
            reporter.write_line(f"[{time.monotonic() - began_s:5.0f} s] {text}")

    directory = Path(os.environ.get("INFLIGHT_CONTAINERS", ROOT / ".cache" / "containers"))
    try:
        with container_engine(directory) as engine:
            report("a dockerd of its own runs" if engine.is_own else "the container engine of this machine answers")
            images = Images(engine, os.environ.get("INFLIGHT_IMAGE_BASE") or base_image())
            images.provide_base()
            report(f"{images.base}: {kind(images, images.base)}")
            named = {*images_of(ONE_MACHINE).values(), *images_of(CLUSTER).values()} - {OURS}
            on_ours = {image for image in named if stand_in_of(image) == "kafka"}
            with ThreadPoolExecutor(1) as beside:
                others = beside.submit(images.provide, named - on_ours)
                build_ours(engine, images.base)
                missing = others.result() | images.provide(on_ours)
            size = int(engine.docker("image", "inspect", "--format", "{{.Size}}", OURS))
            report(f"{OURS} is built: {size / 1e9:.2f} GB")
            for image in sorted(named):
                report(f"{image}: {'not started' if image in missing else kind(images, image)}")
            yield Prepared(engine, frozenset(missing), report)
            return
    except CannotRunContainers as error:
        why = str(error)
    pytest.fail(why, pytrace=False)


def build_ours(engine: ContainerEngine, base: str) -> None:
    """Builds as docker-compose.yml says, and keeps the layers for the next run."""
    java = os.environ.get("INFLIGHT_IMAGE_JAVA")
    arguments = ("--build-arg", f"BASE={base}", *(("--build-arg", f"JAVA={java}") if java else ()))
    build = (*compose_command(engine), "--file", str(ONE_MACHINE), "build", *arguments, "engine")
    engine.run(*build, within_s=_BUILT_WITHIN_S)
    keep = ("--file", "conf/Dockerfile", "--target", "build", "--tag", _LAYERS_OF_THE_BUILD)
    engine.docker("build", *keep, *arguments, ".", within_s=_BUILT_WITHIN_S)


def kind(images: Images, image: str) -> str:
    return "stand-in" if image in images.stand_ins else "pulled"


@pytest.fixture(scope="module")
def composition(prepared: Prepared, request: pytest.FixtureRequest) -> Iterator[Composition]:
    """Starts every service of the file of the module, COMPOSE, whose image can be had; ends them all."""
    file: Path = request.module.COMPOSE
    found = Composition(prepared.engine, file, f"inflight-test-{file.parent.name if file == CLUSTER else 'one'}")
    found.down()  # what a killed run has left behind
    try:
        prepared.report(f"{file.relative_to(ROOT)}: up")
        found.up(*(service for service, image in images_of(file).items() if image not in prepared.missing))
        yield found
    finally:
        found.down()


@pytest.fixture(scope="module")
def device(composition: Composition, prepared: Prepared) -> Iterator[ReceivingDevice]:
    """A device that stays connected to the published port, and a backend that sends to it."""
    with ReceivingDevice("in-a-container", composition, "127.0.0.1:29092") as found:
        prepared.report("the device is connected")
        seconds = found.gets_a_message()
        prepared.report(f"its first message has arrived, and the receipt, after {seconds:.1f} s")
        yield found
