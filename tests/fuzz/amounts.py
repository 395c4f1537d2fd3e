"""How many inputs are tried: some in `make test`, many more in the tests that are marked slow."""

from hypothesis import HealthCheck, settings

FEW, MANY = 40, 1500
CHECKS: list[HealthCheck] = [*HealthCheck]  # pyright: ignore[reportAssignmentType]


def examples(count: int) -> settings:
    return settings(max_examples=count, deadline=None, database=None, suppress_health_check=CHECKS, derandomize=True)
