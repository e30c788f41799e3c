"""Filter of warnings about MLServer's own code."""


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "ignore::pydantic.warnings.PydanticDeprecatedSince20")
