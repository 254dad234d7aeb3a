"""What a run measured, as rows, as a table, as a file and as plots."""

import os
import statistics

from processes import BenchmarkError


class Row:
    """One line of the report. `goal` is ">= 2.0", "<= 0.2", or None."""

    def __init__(self, name, value, unit, goal=None):
        self.name = name
        self.value = value
        self.unit = unit
        self.goal = goal

    def reached(self):
        if self.goal is None:
            return "-"
        relation, bound = self.goal.split()
        ok = (self.value >= float(bound) if relation == ">="
              else self.value <= float(bound))
        return "yes" if ok else "no"

    def cells(self):
        if isinstance(self.value, int):
            return [self.name, str(self.value), self.unit, self.goal or "-",
                    self.reached()]
        digits = 3 if abs(self.value) < 10 else 1
        digits = 0 if abs(self.value) >= 1000 else digits
        return [self.name, f"{self.value:.{digits}f}", self.unit,
                self.goal or "-", self.reached()]


def print_table(rows):
    cells = [["name", "value", "unit", "goal", "reached"]]
    cells += [row.cells() for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(5)]
    for line in cells:
        print(f"{line[0]:<{widths[0]}}  {line[1]:>{widths[1]}}  "
              f"{line[2]:<{widths[2]}}  {line[3]:<{widths[3]}}  {line[4]}")


def write_tsv(rows, path):
    with open(path, "w", encoding="utf-8") as file:
        for row in rows:
            file.write("\t".join(row.cells()) + "\n")


def check_tsv(path):
    """Raises unless the file is what scripts may rely on."""
    names = set()
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    for line in lines:
        cells = line.split("\t")
        if len(cells) != 5 or not cells[0] or cells[0] in names:
            raise BenchmarkError(f"a line of {path} is malformed: {line}")
        names.add(cells[0])
        float(cells[1])
        if (cells[3] == "-") != (cells[4] == "-"):
            raise BenchmarkError(f"a goal without a verdict: {line}")
        if cells[4] not in ("yes", "no", "-"):
            raise BenchmarkError(f"neither yes nor no: {line}")
    if not names:
        raise BenchmarkError(f"{path} is empty")


def _median(runs, value):
    return statistics.median(value(run) for run in runs)


def _ratio(rounds, over, under):
    """Median of the ratios of each round: what the machine's speed does
    between two rounds cancels out."""
    if not all(under(r) > 0 for r in rounds):
        raise BenchmarkError("a run was too short to be measured")
    return statistics.median(over(r) / under(r) for r in rounds)


def best_clients(rounds):
    """The number of pgbench clients that did best over all rounds."""
    return max(rounds[0]["pgbench"], key=lambda clients: _median(
        rounds, lambda r: r["pgbench"][clients]["pairs_per_second"]))


def _server_per_call(run):
    return run["cpu_us_per_call"]["server"]


def _ratio_rows(rounds, best):
    def pgbench(r):
        return r["pgbench"][best]["pairs_per_second"]

    def pgbench_cpu(r):
        return r["pgbench"][best]["cpu_us_per_pair"]["database"]

    def pairs(n):
        return lambda r: r["pairs"][n]["pairs_per_second"]

    def server(n):
        return lambda r: _server_per_call(r["pairs"][n])

    def echo(n):
        return lambda r: _server_per_call(r["echo"][n])

    def database(n):
        return lambda r: r["pairs"][n]["cpu_us_per_pair"]["database"]

    return [
        Row("unary_pairs_vs_pgbench", _ratio(rounds, pairs(256), pgbench),
            "ratio", ">= 2.0"),
        Row("unary_pairs_vs_pgbench_at_64", _ratio(rounds, pairs(64), pgbench),
            "ratio", ">= 1.6"),
        Row("server_cpu_per_call_vs_echo",
            _ratio(rounds, server(256), echo(256)), "ratio", "<= 1.2"),
        Row("server_cpu_per_call_vs_echo_at_64",
            _ratio(rounds, server(64), echo(64)), "ratio"),
        Row("pg_cpu_per_pair_vs_pgbench",
            _ratio(rounds, database(256), pgbench_cpu), "ratio", "<= 0.2"),
        Row("pg_cpu_per_pair_vs_pgbench_at_64",
            _ratio(rounds, database(64), pgbench_cpu), "ratio"),
    ]


def _absolute_rows(rounds, best):
    rows = []
    for n in (256, 64):
        runs = [r["pairs"][n] for r in rounds]
        echoes = [r["echo"][n] for r in rounds]
        rows += [
            Row(f"unary_pairs_at_{n}",
                _median(runs, lambda r: r["pairs_per_second"]), "pairs/s"),
            Row(f"claim_p50_at_{n}",
                _median(runs, lambda r: r["claim_ms"]["p50"]), "ms"),
            Row(f"claim_p99_at_{n}",
                _median(runs, lambda r: r["claim_ms"]["p99"]), "ms"),
            Row(f"finalize_p50_at_{n}",
                _median(runs, lambda r: r["finalize_ms"]["p50"]), "ms"),
            Row(f"finalize_p99_at_{n}",
                _median(runs, lambda r: r["finalize_ms"]["p99"]), "ms"),
            Row(f"server_cpu_per_call_at_{n}", _median(runs, _server_per_call),
                "us"),
            Row(f"pg_cpu_per_pair_at_{n}", _median(
                runs, lambda r: r["cpu_us_per_pair"]["database"]), "us"),
            Row(f"client_cpu_per_pair_at_{n}", _median(
                runs, lambda r: r["cpu_us_per_pair"]["client"]), "us"),
            Row(f"echo_calls_at_{n}",
                _median(echoes, lambda r: r["calls_per_second"]), "calls/s"),
            Row(f"echo_cpu_per_call_at_{n}", _median(echoes, _server_per_call),
                "us"),
        ]
    yardstick = [r["pgbench"][best] for r in rounds]
    rows += [
        Row("pgbench_clients", best, "clients"),
        Row("pgbench_pairs", _median(
            yardstick, lambda r: r["pairs_per_second"]), "pairs/s"),
        Row("pgbench_pg_cpu_per_pair", _median(
            yardstick, lambda r: r["cpu_us_per_pair"]["database"]), "us"),
        Row("pgbench_client_cpu_per_pair", _median(
            yardstick, lambda r: r["cpu_us_per_pair"]["client"]), "us"),
    ]
    return rows


def other_cpu_percent(rounds):
    """Median part of the machine that other processes had."""
    return 100 * statistics.median(
        run["other_share"] for r in rounds for kind in r.values()
        for run in kind.values())


def make_rows(rounds):
    """`rounds` has, for each round, {"pgbench": {clients: run}, "pairs":
    {in_flight: run}, "echo": {in_flight: run}}."""
    best = best_clients(rounds)
    rows = _ratio_rows(rounds, best) + _absolute_rows(rounds, best)
    rows.append(Row("other_cpu", other_cpu_percent(rounds), "%"))
    return rows


def _plot_load(pyplot, rounds, sweep, path):
    counts = sorted(sweep)
    figure, (rate, latency) = pyplot.subplots(1, 2, figsize=(11, 4.5))
    rate.plot(counts, [_median(sweep[n], lambda r: r["pairs_per_second"])
                       for n in counts], marker="o", label="Claim + Finalize")
    best = best_clients(rounds)
    rate.axhline(_median([r["pgbench"][best] for r in rounds],
                         lambda r: r["pairs_per_second"]),
                 linestyle="--", color="gray",
                 label=f"pgbench, {best} clients")
    rate.set_ylabel("pairs/s")
    rate.set_ylim(bottom=0)
    rate.legend()
    for call in ("claim", "finalize"):
        latency.plot(counts, [_median(sweep[n],
                                      lambda r: r[call + "_ms"]["p99"])
                              for n in counts], marker="o",
                     label=call.capitalize())
    latency.set_ylabel("p99, ms")
    latency.set_yscale("log", base=2)
    latency.yaxis.set_major_formatter("{x:g}")
    latency.legend()
    for axes in (rate, latency):
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(n) for n in counts])
        axes.set_xlabel("calls in flight")
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def _plot_cpu(pyplot, rounds, path):
    best = best_clients(rounds)
    bars = {f"pgbench\n{best} clients": [r["pgbench"][best] for r in rounds]}
    for n in (64, 256):
        bars[f"unary\n{n} in flight"] = [r["pairs"][n] for r in rounds]
    figure, axes = pyplot.subplots(figsize=(6.5, 4.5))
    bottom = [0.0] * len(bars)
    for part in ("client", "server", "database"):
        heights = [_median(runs, lambda r: r["cpu_us_per_pair"].get(part, 0))
                   for runs in bars.values()]
        axes.bar(list(bars), heights, 0.6, bottom=bottom, label=part)
        bottom = [low + height for low, height in zip(bottom, heights)]
    axes.set_ylabel("CPU per pair, us")
    axes.legend()
    axes.grid(axis="y", alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def write_plots(rounds, sweep, folder):
    """`sweep`: {in_flight: [run, ...]}. Returns the paths of the plots."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    paths = [os.path.join(folder, "load.png"), os.path.join(folder, "cpu.png")]
    _plot_load(pyplot, rounds, sweep, paths[0])
    _plot_cpu(pyplot, rounds, paths[1])
    return paths
