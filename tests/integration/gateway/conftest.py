"""Has the fixtures of several tests of gateways."""

import pytest

from tests.integration.gateway.certificates import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))
