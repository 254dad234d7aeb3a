"""What a run measured, as pictures."""

import os

import matplotlib

from report import median

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402


def write(throughput, tables, folder):
    """Returns the paths of the pictures; what failed has none."""
    paths = []
    for name, draw, measured in (("load.png", _draw_load, throughput),
                                 ("cpu.png", _draw_cpu, throughput),
                                 ("table_size.png", _draw_table_size, tables)):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            os.remove(path)
        figure = draw(measured)
        if figure is None:
            continue
        figure.tight_layout()
        figure.savefig(path, dpi=120)
        pyplot.close(figure)
        paths.append(path)
    return paths


def _draw_load(throughput):
    sweep = throughput.sweep
    counts = sorted(sweep)
    figure, (rate, latency) = pyplot.subplots(1, 2, figsize=(11, 4.5))
    rate.plot(counts, [median(sweep[n], lambda r: r["pairs_per_second"])
                       for n in counts], marker="o", label="Claim + Finalize")
    rate.axhline(median(throughput.rounds, lambda r: throughput.yardstick(r)[
        "pairs_per_second"]), linestyle="--", color="gray",
        label=f"pgbench, {throughput.pgbench_clients} clients")
    rate.set_title("Throughput")
    rate.set_ylabel("pairs per second")
    rate.set_ylim(bottom=0)
    for call, color in (("claim", "C0"), ("finalize", "C1")):
        for quantile, style in (("p99", "-"), ("p50", ":")):
            latency.plot(counts, [
                median(sweep[n], lambda r: r[call + "_ms"][quantile])
                for n in counts], style, color=color, marker="o",
                label=f"{call.capitalize()}, {quantile}")
    latency.set_title("Latency")
    latency.set_ylabel("latency, ms")
    latency.set_yscale("log", base=2)
    latency.yaxis.set_major_formatter("{x:g}")
    for axes in (rate, latency):
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(n) for n in counts])
        axes.minorticks_off()
        axes.set_xlabel("calls in flight")
        axes.grid(alpha=0.3)
        axes.legend()
    return figure


def _draw_cpu(throughput):
    rounds = throughput.rounds
    bars = {f"pgbench\n{throughput.pgbench_clients} clients":
            [throughput.yardstick(r)["cpu_us_per_pair"] for r in rounds]}
    for name, label in (("pairs_64", "unary\n64 in flight"),
                        ("pairs_256", "unary\n256 in flight"),
                        ("grpc_client", "C++ client,\nunary, 256"),
                        ("bulk", "C++ client,\nbulk, 1,024"),
                        ("echo_256", "echo\n256 in flight")):
        bars[label] = [r[name]["cpu_us_per_pair"] for r in rounds]
    figure, axes = pyplot.subplots(figsize=(9, 4.5))
    bottom = [0.0] * len(bars)
    for part in ("client", "server", "database"):
        # A call's cost is half of this pair's, for each of its two calls.
        heights = [median(costs, lambda c: c.get(part, 0) / 2)
                   for costs in bars.values()]
        axes.bar(list(bars), heights, 0.6, bottom=bottom, label=part)
        bottom = [low + height for low, height in zip(bottom, heights)]
    axes.set_title("Cost of a call (half of a Claim with its Finalize)")
    axes.set_xlabel("who asks, calls in flight")
    axes.set_ylabel("CPU time per call, us")
    axes.legend()
    axes.grid(axis="y", alpha=0.3)
    return figure


def _draw_table_size(tables):
    counts = sorted(tables.sizes)
    if not counts:
        return None
    figure, axes = pyplot.subplots(figsize=(6.5, 4.5))
    for name, style, label in (("big", "-", "so many records"),
                               ("empty", "--", "empty, in the same rounds")):
        axes.plot(counts, [median(tables.sizes[n], lambda r: r[name][
            "pairs_per_second"]) for n in counts], style, marker="o",
            label=label)
    axes.set_title("Throughput against table size, 256 in flight")
    axes.set_xscale("log")
    axes.set_xticks(counts, [f"{n:,}" for n in counts])
    axes.minorticks_off()
    axes.set_xlabel("records in the table before the run")
    axes.set_ylabel("pairs per second")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure
