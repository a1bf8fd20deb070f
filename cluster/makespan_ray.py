"""Runs one makespan command in ranges over a Ray cluster and merges the results to the bytes of one run.

From a shell:

    python makespan_ray.py --units 1000 --ranges 20 --out all.csv -- forecast job.toml --quantiles-only

From a notebook:

    from makespan_ray import run
    run(["forecast", "job.toml", "--quantiles-only"], units=1000, ranges=20, out="all.csv")

The working folder goes to every node, so the scenario and the files that it names must lie in it, and so must the
program if the nodes do not have it on their PATH (`--program ./makespan`). With `--shared` nothing is sent: every node
works in the same folder, as on a file system that all of them mount.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import ray


def ranges_of(units, ranges):
    """Splits units 0..units into so many ranges, as even as they come."""
    ends = [units * part // ranges for part in range(ranges + 1)]
    return [(start, end) for start, end in zip(ends, ends[1:]) if end > start]


def run_range(program, command, start, end, threads, cwd):
    """Runs units start..end in folder `cwd` (None: where Ray put the files); returns the results file.

    A node that is lost leaves nothing behind.
    """
    with tempfile.TemporaryDirectory() as folder:
        results = pathlib.Path(folder) / "part.csv"
        line = [program, *command, "--range", f"{start}..{end}", "--results", str(results), "--threads", str(threads)]
        done = subprocess.run(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False, cwd=cwd)
        if done.returncode != 0:
            # Bad input is bad on every node: an answer, not something to try again.
            return start, end, None, done.stderr.strip()
        return start, end, results.read_bytes(), ""


def run(command, units, ranges, out, program="makespan", address=None, threads=1, retries=5, force=False, shared=False, log=print):
    """Spreads the ranges over the cluster at `address`, tries lost ones again, and writes the merged results to `out`.

    With `shared` all nodes have the working folder at the same place, and nothing is sent to them.
    """
    out = pathlib.Path(out)
    if out.exists() and not force:
        raise FileExistsError(f"{out} exists; name another file, or add --force")
    if not ray.is_initialized():
        # The cluster of the environment, or one of this machine's own.
        environment = None if shared else {"working_dir": os.getcwd()}
        ray.init(address=address, runtime_env=environment, log_to_driver=False)
    # A node that has lost its files, or has no room left, fails with an OSError: another may do.
    task = ray.remote(num_cpus=threads, max_retries=retries, retry_exceptions=[OSError])(run_range)
    cwd = os.getcwd() if shared else None
    parts = ranges_of(units, ranges)
    pending = [task.remote(program, command, start, end, threads, cwd) for start, end in parts]
    started = time.monotonic()
    finished = 0
    with tempfile.TemporaryDirectory() as folder:
        files = []
        while pending:
            ready, pending = ray.wait(pending)
            for start, end, results, error in ray.get(ready):
                if results is None:
                    for other in pending:
                        ray.cancel(other, force=True)
                    raise RuntimeError(f"units {start}..{end}: {error}")
                file = pathlib.Path(folder) / f"{start}.csv"
                file.write_bytes(results)
                files.append(str(file))
                finished += end - start
                left = (time.monotonic() - started) * (units - finished) / finished
                log(f"{finished} of {units} units, {left:.0f} s left", flush=True)
        merge = [program, "merge", *files, "--range", f"0..{units}", "--out", str(out)]
        subprocess.run(merge + (["--force"] if force else []), stdout=subprocess.DEVNULL, check=True)
    log(f"units 0..{units} are in {out}: makespan {' '.join(command)} --from {out}", flush=True)
    return out


def main():
    """The command line."""
    parser = argparse.ArgumentParser(description="Run a makespan command in ranges over a Ray cluster.")
    parser.add_argument("--units", type=int, required=True, help="units in all: replications of a forecast")
    parser.add_argument("--ranges", type=int, default=20, help="parts to cut them into (default: 20)")
    parser.add_argument("--out", required=True, help="file for the merged results")
    parser.add_argument("--program", default="makespan", help="the program on every node (default: makespan)")
    parser.add_argument("--address", help="the cluster (default: RAY_ADDRESS, or a local one)")
    parser.add_argument("--threads", type=int, default=1, help="threads of each range (default: 1)")
    parser.add_argument("--retries", type=int, default=5, help="how often a lost range is tried again (default: 5)")
    parser.add_argument("--shared", action="store_true", help="nodes share this folder: send them nothing")
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- and the command, without --range and --results")
    options = parser.parse_args()
    command = [word for place, word in enumerate(options.command) if place > 0 or word != "--"]
    if not command or options.units < 1 or options.ranges < 1:
        parser.error("give --units and --ranges of at least 1 and, after --, a command such as: forecast job.toml")
    try:
        run(
            command,
            options.units,
            options.ranges,
            options.out,
            program=options.program,
            address=options.address,
            threads=options.threads,
            retries=options.retries,
            force=options.force,
            shared=options.shared,
        )
    except (RuntimeError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
