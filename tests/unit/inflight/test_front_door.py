"""inflight: what a backend imports from the package itself."""

import pytest

import inflight


def test_a_mistyped_name_names_the_right_one() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'Prodcer': did you mean 'Producer'\?"):
        _ = inflight.Prodcer
    with pytest.raises(AttributeError, match=r"no attribute 'Xyz'$"):
        _ = inflight.Xyz


def test_the_package_lists_what_can_be_imported_from_it() -> None:
    listed = [name for name in dir(inflight) if not name.startswith("__")]
    assert {"Producer", "AsyncProducer", "Presence", "Uplink", "Receipts", "SendFailed", "Outcome"} <= set(listed)
    assert all(getattr(inflight, name) is not None for name in listed)
    assert "__version__" in dir(inflight)
    assert not {"import_module", "Any", "Final"} & set(listed)
