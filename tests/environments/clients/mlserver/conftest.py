"""What MLServer itself is warned of is not for us to mend."""


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "ignore::pydantic.warnings.PydanticDeprecatedSince20")
