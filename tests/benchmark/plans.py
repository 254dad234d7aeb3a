"""How long and how often each thing is measured."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Plan:
    """Times are seconds."""

    minutes: float  # about, on two quiet cores
    # Whether the figures are good enough to be held against the goals.
    goals: bool

    # Every load run, unless it has a length of its own.
    seconds: float
    warm_up: float

    # Throughput: yardsticks and coordinator take turns, so often.
    rounds: int
    pgbench_seconds: int
    pgbench_clients: tuple
    redis_seconds: float
    redis_clients: tuple
    # True: each round runs the yardsticks with every number of clients. False:
    # only the first does, and the others with the number that did best there.
    every_yardstick: bool
    sweep_in_flight: tuple  # beside 64 and 256, which the rounds measure
    sweep_passes: int

    # Latency.
    idle_rounds: int
    idle_seconds: float
    arrivals_rounds: int
    arrivals_seconds: float
    crowd: int  # Claims of one key
    crowd_rounds: int

    # Middleware and sidecar. wrk takes whole seconds.
    guard_rounds: int
    guard_seconds: int

    # What depends on the table.
    body_seconds: float
    table_rows: tuple  # ascending
    table_rounds: int
    table_warm_up: float
    reaper_rounds: int
    reaper_seconds: float
    reaper_rows_per_second: int  # so many are prepared

    # Limits.
    memory_seconds: float
    overload_rounds: int
    # Until then the queues have grown as long as deadlines allow.
    overload_warm_up: float
    overload_seconds: float


PLANS = {
    "full": Plan(
        minutes=19, goals=True, seconds=4, warm_up=0.5,
        rounds=5, pgbench_seconds=5, pgbench_clients=(16, 32, 64),
        redis_seconds=3, redis_clients=(16, 64, 256), every_yardstick=True,
        sweep_in_flight=(4, 16, 1024), sweep_passes=3,
        idle_rounds=5, idle_seconds=2, arrivals_rounds=3, arrivals_seconds=10,
        crowd=10_000, crowd_rounds=5, guard_rounds=3, guard_seconds=1,
        body_seconds=4, table_rows=(1_000_000, 10_000_000), table_rounds=5,
        table_warm_up=10, reaper_rounds=3, reaper_seconds=8,
        reaper_rows_per_second=50_000,
        memory_seconds=120, overload_rounds=3, overload_warm_up=2,
        overload_seconds=8),
    "quick": Plan(
        minutes=4.8, goals=True, seconds=2, warm_up=0.4,
        rounds=3, pgbench_seconds=3, pgbench_clients=(16, 32, 64),
        redis_seconds=1.5, redis_clients=(16, 64, 256), every_yardstick=False,
        sweep_in_flight=(16, 1024), sweep_passes=1,
        idle_rounds=3, idle_seconds=1, arrivals_rounds=1, arrivals_seconds=4,
        crowd=10_000, crowd_rounds=3, guard_rounds=1, guard_seconds=1,
        body_seconds=1.5, table_rows=(100_000, 1_000_000), table_rounds=3,
        table_warm_up=2, reaper_rounds=1, reaper_seconds=4,
        reaper_rows_per_second=50_000,
        memory_seconds=10, overload_rounds=1, overload_warm_up=1.5,
        overload_seconds=4),
    "smoke": Plan(
        minutes=0.8, goals=False, seconds=0.4, warm_up=0.1,
        rounds=1, pgbench_seconds=1, pgbench_clients=(16,),
        redis_seconds=0.2, redis_clients=(16,), every_yardstick=True,
        sweep_in_flight=(16,), sweep_passes=1,
        idle_rounds=1, idle_seconds=0.3, arrivals_rounds=1,
        arrivals_seconds=0.3,
        crowd=500, crowd_rounds=1, guard_rounds=1, guard_seconds=1,
        body_seconds=0.3, table_rows=(2_000, 20_000), table_rounds=1,
        table_warm_up=0.1, reaper_rounds=1, reaper_seconds=0.5,
        reaper_rows_per_second=80_000,
        memory_seconds=0.5, overload_rounds=1, overload_warm_up=0.5,
        overload_seconds=0.5),
}
