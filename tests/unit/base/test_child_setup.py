"""What the processes of stages call first."""

from headrace.base.child_setup import add_setup, list_setups, remove_setup


def test_a_setup_is_listed_until_it_is_removed() -> None:
    """Removing one that is not there does nothing."""
    before = list_setups()
    add_setup(dict)
    assert list_setups() == (*before, dict)
    remove_setup(dict)
    remove_setup(dict)
    assert list_setups() == before
