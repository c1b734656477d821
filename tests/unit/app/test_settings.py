import pytest

from nakadi.app.broker import open_broker
from nakadi.app.settings import Settings
from nakadi.model.outcomes import BadSetting


def test_nothing_set_is_the_defaults():
    """An empty environment gives the defaults."""
    assert Settings.from_env({}) == Settings()


def test_each_kind_of_setting_is_read():
    """Strings, numbers, lists and pairs are read from their variables; other variables are not read."""
    settings = Settings.from_env(
        {
            "NAKADI_REGISTRY": "sqlite:///x.db",
            "NAKADI_MAX_PARTITIONS": "32",
            "NAKADI_AUTH_REALMS": "/people, /services",
            "NAKADI_DEFAULT_ADMIN": "user=ann,team=ops",
            "NAKADI_HASH_ORDERS": "2=1:0, 3=0:2:1",
            "NAKADI_UNKNOWN": "x",
            "PATH": "/bin",
        }
    )

    assert settings.registry == "sqlite:///x.db"
    assert settings.max_partitions == 32
    assert settings.auth_realms == ("/people", "/services")
    assert settings.default_admin == (("user", "ann"), ("team", "ops"))
    assert settings.hash_orders == ((2, (1, 0)), (3, (0, 2, 1)))


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("NAKADI_MAX_PARTITIONS", "many"),
        ("NAKADI_DEFAULT_ADMIN", "ann"),
        ("NAKADI_AUTH_ATTRIBUTES", "user="),
        ("NAKADI_HASH_ORDERS", "3=0:1:3"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(variable, value):
    """A value that cannot be read prevents the start, and the message names the variable."""
    with pytest.raises(BadSetting, match=variable):
        Settings.from_env({variable: value})


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"auth": "basic"}, "NAKADI_AUTH"), ({"auth": "jwt"}, "NAKADI_AUTH_JWKS")],
)
def test_authentication_is_complete_or_off(settings, named):
    """An unknown authentication mode, or a mode without keys, prevents the start. (R41)"""
    with pytest.raises(BadSetting, match=named):
        open_broker(Settings(**settings))


@pytest.mark.parametrize("auth", ["jwt", "gateway"])
def test_with_tokens_an_administrator_has_to_be_named(auth):
    """With authentication, there is no default administrator, because a client's token could have that name; a setting
    names the first administrator.
    """
    assert Settings(auth=auth).default_admins == ()
    assert Settings(auth=auth, default_admin=(("user", "ann"),)).default_admins == (("user", "ann"),)


def test_without_tokens_the_default_administrator_is_shown():
    """Without authentication, every client may do everything, and the lists of the broker's administrators contain the
    default administrator. (R219)
    """
    assert Settings().default_admins == (("service", "nakadi_admin"),)
