#!/usr/bin/env bash
# 1,000 replications in 20 ranges on Ray: on one node that is sent the files, on a cluster of three nodes (separate
# processes on loopback) that share the folder, and there again with a node killed on the way. All must give the bytes of
# the single run. Skipped where Ray is not installed.
#
# Nodes that are sent files keep them in a folder by the name of their host, so three on one host would share a copy
# and take it from each other: the three share the folder openly.
#
#   cluster/test_ray.sh target/release/makespan
set -euo pipefail
program=$(realpath "${1:?the program, as in target/release/makespan}")
driver=$(realpath "$(dirname "$0")/makespan_ray.py")
job=$(realpath "$(dirname "$0")/../tests/jobs/h200.toml")
python=${PYTHON:-python3}
if ! "$python" -c 'import ray' 2>/dev/null; then
    echo "skipped: Ray is not installed (pip install ray)"
    exit 0
fi

folder=$(mktemp -d)
export RAY_TMPDIR="$folder/ray" RAY_USAGE_STATS_ENABLED=0 RAY_DISABLE_IMPORT_WARNING=1
# Lost nodes are noticed within seconds rather than a minute.
export RAY_raylet_start_wait_time_s=300
export RAY_health_check_initial_delay_ms=1000 RAY_health_check_period_ms=500 RAY_health_check_failure_threshold=4
mkdir -p "$RAY_TMPDIR"
pids=()
finish() {
    kill -9 "${pids[@]}" 2>/dev/null || true
    # What the nodes started names their folder; other clusters of the machine are let be.
    pkill -9 -f "$folder/ray" || true
    rm -rf "$folder"
}
trap finish EXIT

mkdir "$folder/work" && cd "$folder/work"
cp "$program" makespan
cp "$job" job.toml
./makespan forecast job.toml --quantiles-only --json --replications 1000 --results single.csv >single.json

ray() { "$python" -m ray.scripts.scripts "$@"; }
port=$((20000 + RANDOM % 10000))
node() { ray start --block --disable-usage-stats --num-cpus=1 --object-store-memory=100000000 "$@" >>"$folder/ray.log" 2>&1 & pids+=($!); }
node --head --port="$port" --include-dashboard=false
export RAY_ADDRESS="127.0.0.1:$port"
nodes() { "$python" -c 'import ray; ray.init(log_to_driver=False, logging_level="error"); print(sum(n["Alive"] for n in ray.nodes()))' 2>/dev/null | tail -1; }
# A cluster that does not come up says nothing about the program.
await_nodes() {
    for _ in $(seq 40); do
        [ "$(nodes)" = "$1" ] && return
        sleep 2
    done
    cat "$folder/ray.log"
    echo "skipped: Ray did not start $1 of its nodes here"
    exit 0
}
spread() { "$python" "$driver" --program ./makespan --units 1000 --ranges 20 --out "$@" -- forecast job.toml --quantiles-only; }
await_nodes 1
spread sent.csv
cmp single.csv sent.csv
echo "1,000 replications in 20 ranges on one node that was sent the files: the bytes of the single run"

# One after another: nodes that start at once on one host may choose the same port.
node --address="127.0.0.1:$port"
await_nodes 2
node --address="127.0.0.1:$port"
await_nodes 3
spread undisturbed.csv --shared
cmp single.csv undisturbed.csv
echo "1,000 replications in 20 ranges on three nodes: the bytes of the single run"

spread killed.csv --shared >progress.log 2>&1 &
running=$!
# The last node goes, with everything on it, once a quarter of the work is done.
for _ in $(seq 600); do
    [ "$(grep -c ' units, ' progress.log)" -ge 5 ] && break
    sleep 0.1
done
kill -0 "$running" 2>/dev/null || { echo "ended before a node could be killed"; cat progress.log; exit 1; }
victim=${pids[2]}
pkill -9 -P "$victim" || true
kill -9 "$victim"
wait "$running" || { cat progress.log; exit 1; }
cmp single.csv killed.csv
./makespan forecast job.toml --quantiles-only --json --range 0..1000 --from killed.csv >merged.json
cmp single.json merged.json
echo "one node killed on the way: the bytes of the single run again"
