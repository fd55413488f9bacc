"""How long 10⁸ images take on 64 GPUs: measured costs of rows and steps, and a simulation of what is sent.

    python benchmarks/scaling_plan.py --inducing 3000 --times-as-fast 40
    python benchmarks/scaling_plan.py --measured results/processes_cuda.json

A step of K processes takes the seconds of its share of the batch, those of what every process does by itself
(matrices of inducing points), and those of sums over processes. The first two are measured, in
results/processes.json; other numbers of inducing points, draws and pixels follow from the measured exponents,
and at most from those of large sizes, where matrices of inducing points grow by their cube.
`--times-as-fast` says how much faster another device is than the one that was measured.

Sums are simulated message by message: each process sends a part of its vector to every other one, which adds
them up, and then its part of the sum to all. A link carries one message at a time, links within a node and
between nodes have the given rates and latencies, and processes begin when their share is done, a little
apart. The simulation is compared with what the rates alone give. Writes results/scaling_plan.json.
"""

import heapq
import json
import math
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from orbitwise.experiments.records import command_line, write_record

NUMBER = 8
SPREAD = 0.03
"""The standard deviation of the logarithm of seconds that processes take for equal shares."""


def exchange(begins, size, network):
    """When each process has the sum of vectors of so many bytes, where they begin at these times.

    First everyone sends a part of its vector to everyone else, then everyone sends its part of the sum.
    """
    for _ in range(2):
        begins = everyone_to_everyone(begins, size / len(begins), network)
    return begins


def everyone_to_everyone(begins, size, network):
    """When each process has received a message of so many bytes from each other one."""
    count, per_node = len(begins), network["gpus"]
    sends, receives = [list(begins), list(begins)]
    has_all = list(begins)
    queue = [(begins[rank], rank, 1) for rank in range(count)]
    heapq.heapify(queue)
    while queue:
        _, source, offset = heapq.heappop(queue)
        target = (source + offset) % count
        kind = "within" if source // per_node == target // per_node else "between"
        start = max(sends[source], receives[target])
        end = start + size / network[f"{kind}_bytes_a_second"]
        sends[source] = receives[target] = end
        has_all[target] = max(has_all[target], end + network[f"{kind}_latency"])
        if offset + 1 < count:
            heapq.heappush(queue, (end, source, offset + 1))
    return has_all


def formula(count, size, network):
    """The seconds of such a sum by the rates alone: two rounds, in which most messages leave the node."""
    inside = min(network["gpus"], count) - 1
    part = size / count
    within = inside * part / network["within_bytes_a_second"]
    between = (count - 1 - inside) * part / network["between_bytes_a_second"]
    return 2 * (within + between)


LARGEST = {"row": {"inducing": 1, "draws": 1, "side": 2}, "fixed": {"inducing": 3, "draws": 0, "side": 2}}
"""The exponents of costs at sizes so large that nothing else counts."""


def costs(measured, wanted, times_as_fast, at_most=False):
    """The seconds of a row, and those of a step without rows, at the sizes that are wanted.

    They grow by the measured exponents; with `at_most`, by the largest where these are larger.
    """
    sizes, one = measured["sizes"], measured["processes"]["1"]
    found = []
    for part in ("row", "fixed"):
        exponents = one[f"{part}_exponents"]
        if at_most:
            exponents = {n: max(each, LARGEST[part][n]) for n, each in exponents.items()}
        factors = [(wanted[n] / sizes[n]) ** exponents[n] for n in wanted]
        found.append(one[f"{part}_seconds"] * math.prod(factors) / times_as_fast)
    return found


def plan(row, fixed, wanted, images, epochs, batch_per_gpu, network, repeats=20, seed=0):
    """Steps, seconds and shares of time for several numbers of processes."""
    outputs, inducing = 10, wanted["inducing"]
    learned = inducing * wanted["side"] ** 2
    random = np.random.default_rng(seed)
    records = []
    for count in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        batch = batch_per_gpu * count
        # the sums of q, of gradients, and of what is remembered of every row
        sent = NUMBER * (inducing**2 + inducing * outputs + learned)
        remembered = NUMBER * batch * (1 + outputs)
        seconds, waits = [], []
        for _ in range(repeats if count > 1 else 1):
            share = batch_per_gpu * row + fixed
            begins = share * np.exp(SPREAD * random.normal(size=count)) if count > 1 else np.array([share])
            ends = begins
            if count > 1:
                ends = np.array(exchange(list(begins), sent, network))
                ends = np.array(everyone_to_everyone(list(ends), remembered / count, network))
            seconds.append(float(ends.max()))
            waits.append(float(ends.max() - begins.mean()))
        step = float(np.mean(seconds))
        steps = math.ceil(epochs * images / batch)
        records.append(
            {
                "processes": count,
                "batch": batch,
                "steps": steps,
                "step_seconds": step,
                "rows_a_second": batch / step,
                "efficiency": batch / step / count / (batch_per_gpu / (batch_per_gpu * row + fixed)),
                "sent_and_waited_share": float(np.mean(waits)) / step,
                "sum_seconds_by_rates": formula(count, sent, network) if count > 1 else 0.0,
                "sum_seconds_simulated": sum_alone(count, sent, network),
                "bytes_a_step": sent + remembered,
                "hours": steps * step / 3_600,
                "memory_of_rows_gib": images * NUMBER * (1 + outputs) / 2**30,
            }
        )
    return records


def sum_alone(count, size, network):
    """The simulated seconds of one sum if all processes begin at once."""
    return max(exchange([0.0] * count, size, network)) if count > 1 else 0.0


def main():
    parser = command_line(__doc__, "results/scaling_plan.json")
    parser.add_argument("--measured", type=Path, default=Path("results/processes.json"))
    parser.add_argument("--inducing", type=int, help="other than those that were measured")
    parser.add_argument("--draws", type=int)
    parser.add_argument("--side", type=int, help="pixels of a side of the images")
    parser.add_argument("--times-as-fast", type=float, default=1.0, help="than what was measured")
    parser.add_argument("--images", type=float, default=1e8)
    parser.add_argument("--epochs", type=float, default=1.0, help="how often every image is seen")
    parser.add_argument("--batch-per-gpu", type=int, default=256)
    parser.add_argument("--gpus", type=int, default=8, help="of a node")
    parser.add_argument("--within", type=float, default=200e9, help="bytes a second of a link within a node")
    parser.add_argument("--between", type=float, default=40e9, help="bytes a second of a link between nodes")
    arguments = parser.parse_args()
    measured = json.loads(arguments.measured.read_text())
    network = {
        "gpus": arguments.gpus,
        "within_bytes_a_second": arguments.within,
        "between_bytes_a_second": arguments.between,
        "within_latency": 5e-6,
        "between_latency": 15e-6,
    }
    given = {name: getattr(arguments, name) for name in ("inducing", "draws", "side")}
    wanted = {name: value or measured["sizes"][name] for name, value in given.items()}
    amount = (arguments.images, arguments.epochs, arguments.batch_per_gpu)
    plans = {}
    for name, at_most in (("by_measured_exponents", False), ("at_most", True)):
        row, fixed = costs(measured, wanted, arguments.times_as_fast, at_most)
        records = plan(row, fixed, wanted, *amount, network)
        plans[name] = {"row_seconds": row, "fixed_seconds": fixed, "records": records}
    record = {
        "measured": str(arguments.measured),
        "measured_sizes": measured["sizes"],
        "exponents": {n: measured["processes"]["1"][f"{n}_exponents"] for n in ("row", "fixed")},
        "sizes": wanted,
        "times_as_fast": arguments.times_as_fast,
        **dict(zip(("images", "epochs", "batch_per_gpu"), amount, strict=True)),
        "network": network,
        **plans,
    }
    write_record(record, arguments.out)
    for name, found in plans.items():
        show(f"{arguments.images:.0e} images, {arguments.epochs:g} times, {wanted}, {name}", found["records"])


def show(title, records):
    """Print a plan as a table."""
    table = Table(title=title)
    headings = ("processes", "batch", "steps", "step, s", "efficiency", "sent, waited", "MB a step", "hours")
    for heading in headings:
        table.add_column(heading, justify="right")
    for each in records:
        table.add_row(
            str(each["processes"]),
            f"{each['batch']:,}",
            f"{each['steps']:,}",
            f"{each['step_seconds']:.3f}",
            f"{each['efficiency']:.0%}",
            f"{each['sent_and_waited_share']:.1%}",
            f"{each['bytes_a_step'] / 1e6:.1f}",
            f"{each['hours']:.2f}",
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
