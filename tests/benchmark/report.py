"""What a run measured, as rows, as a table and as a file."""

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


def median(runs, value):
    return statistics.median(value(run) for run in runs)


def median_ratio(rounds, over, under):
    """Median of the ratios of each round: what the machine's speed does
    between two rounds cancels out."""
    if not all(under(r) > 0 for r in rounds):
        raise BenchmarkError("a run was too short to be measured")
    return statistics.median(over(r) / under(r) for r in rounds)
