"""How long a command takes to answer, beside a bare interpreter in the same run.

    python benchmarks/startup.py

Goals on 2 cores: `dse --help` and one `dse point` within 0.3 s, `dse recommend` of three devices within 3 s.
"""

import statistics
import subprocess
import sys
import time

RUNS = 11
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "dse --help": ["-m", "dse", "--help"],
    "dse point": ["-m", "dse", "point", "--device", "a100-80gb", "--model", "llama2-7b", "--quantizer", "kivi"],
    "dse point, 32K out": [
        "-m",
        "dse",
        "point",
        "--device",
        "a100-80gb",
        "--model",
        "llama2-7b",
        "--quantizer",
        "sinkq:group=32",
        "--output",
        "32768",
    ],
    "dse recommend": [
        *("-m", "dse", "recommend", "--model", "qwen3-32b", "--devices", "h100,b200,l40s", "--rate", "20"),
        *("--input", "4k", "--output", "500", "--ttft", "1s", "--tpot", "30ms"),
    ],
}


def main() -> None:
    """Print the median of each command and its ratio to the bare interpreter; commands take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(RUNS):
        for name, args in COMMANDS.items():
            begin = time.perf_counter()
            subprocess.run([sys.executable, *args], check=True, stdout=subprocess.DEVNULL)
            seconds[name].append(time.perf_counter() - begin)
    bare = statistics.median(seconds["python -c pass"])
    for name, values in seconds.items():
        median = statistics.median(values)
        print(f"{name:<20}{median:8.3f} s{median / bare:8.1f} x")


if __name__ == "__main__":
    main()
