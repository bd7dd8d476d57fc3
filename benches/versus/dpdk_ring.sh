#!/usr/bin/env bash
# DPDK's own ring and mempool tests (dpdk-test), a line a figure on standard output: `name=value`, the median
# of RUNS, and `name_min=value`, their least: on a busy machine only the least means something, and two cores need
# two idle ones. `# ` lines give every sample and the conditions. Cycles are cycles of the TSC.
#
#   benches/versus/dpdk_ring.sh [--ring | --mempool] [RUNS]      both tests, 5 runs unless told
#
# ring_spsc_burst32_cycles           one core: enqueue and then dequeue one bulk of 32 pointers, per pair of calls
# ring_spsc_two_cores_burst32_cycles two cores, one enqueues, one dequeues: time between two bulks of 32
# mempool_keepK_constC_cycles        one core, with cache: one get and one put of an object, in bulks of 32,
#                                    K objects held between the gets and the puts, C=1: 32 known to the compiler
#
# Memory is malloc's (--no-huge), so no huge page is reserved. dpdk-test dies of SIGPIPE as soon as the last
# wanted line was read, and by timeout after 60 s. Exit status: 0 done, 1 no figures, 2 a package is missing.
set -uo pipefail

kind=all
case ${1-} in --ring | --mempool) kind=${1#--} && shift ;; esac
runs=${1:-5}
[[ $runs =~ ^[1-9][0-9]*$ ]] || { sed -n '2,8p' "$0" >&2; exit 2; }
command -v dpdk-test >/dev/null || { echo "dpdk-test is missing: install the package dpdk (apt-get install dpdk)" >&2; exit 2; }
command -v cc >/dev/null || { echo "cc is missing: install the package gcc (apt-get install gcc)" >&2; exit 2; }
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cores=0
(($(nproc) > 1)) && cores=0,1

# mempool_perf_autotest spends 5 s on each of 720 cases and cannot be told to do less. It takes the length of a
# second from rte_get_tsc_hz(), so a preloaded one that returns 1/SHORTEN of the truth shortens every case to 5 s /
# SHORTEN; its "per second" then means per 1/SHORTEN s. The loops that are timed stay DPDK's, unchanged. A case
# ends on a whole loop of 65536 objects, which adds up to 0.6 % to the rate at 10 ms.
cat >"$work/shim.c" <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void line_buffered(void) { setvbuf(stdout, NULL, _IOLBF, 0); }
uint64_t rte_get_tsc_hz(void) {
    static uint64_t hz;
    if (!hz) {
        hz = ((uint64_t (*)(void))dlsym(RTLD_NEXT, "rte_get_tsc_hz"))();
        if (hz) fprintf(stderr, "tsc_hz %lu\n", (unsigned long)hz);
    }
    return hz / strtoul(getenv("SHORTEN"), NULL, 10);
}
C
cc -O1 -shared -fPIC -o "$work/shim.so" "$work/shim.c" -ldl || exit 1

# dpdk_test TEST SHORTEN CORES: the test's output, tsc_hz included.
dpdk_test() {
    DPDK_TEST=$1 SHORTEN=$2 LD_PRELOAD=$work/shim.so timeout -k 2 60 \
        dpdk-test --no-huge --no-shconf --no-pci --no-telemetry -m 512 -l "$3" </dev/null 2>&1
}

# Lines as of DPDK 22.11: "legacy APIs: SP/SC: bulk (size: 32): 73.37" once for one core and once more below
# "### Testing using two physical cores ###". The first is cycles per pair of calls up to 22.11 and per element in
# later releases (then it is below the figure for size 8). The second adds up what one element costs each core, and
# both cores work for the same time: half of it, times 32, is the time between two bulks.
ring() {
    dpdk_test ring_perf_autotest 1 "$cores" | awk '
        /^### Testing using two (physical cores|hyperthreads)/ { two = 1 }
        /^### Testing using all worker/ { exit }
        /^legacy APIs: SP\/SC: bulk \(size: 8\): / && !two { eight = $NF }
        /^legacy APIs: SP\/SC: bulk \(size: 32\): / && !two {
            print "ring_spsc_burst32_cycles", $NF * ($NF > eight ? 1 : 32) }
        /^legacy APIs: SP\/SC: bulk \(size: 32\): / && two {
            print "ring_spsc_two_cores_burst32_cycles", $NF * 16; exit }'
}

# "mempool_autotest cache=512 cores=1 n_get_bulk=32 n_put_bulk=32 n_keep=32 constant_n=0 rate_persec=18808832"
mempool() {
    dpdk_test mempool_perf_autotest 500 0 | awk -F'[ =]' '
        /^tsc_hz / { hz = $2 }
        /cache=512 cores=1 n_get_bulk=32 n_put_bulk=32 / && hz {
            printf "mempool_keep%s_const%s_cycles %.3f\n", $11, $13, hz / ($15 * 500) }
        /cache=512 cores=1 n_get_bulk=32 n_put_bulk=32 n_keep=512 constant_n=1/ { exit }'
}

for ((run = 0; run < runs; run++)); do
    [[ $kind == mempool ]] || ring
    [[ $kind == ring ]] || mempool
done >"$work/samples"
[[ -s $work/samples ]] || { echo "dpdk-test printed no known line: run it by hand, DPDK_TEST=ring_perf_autotest" >&2; exit 1; }
sort -k1,1 -k2,2n "$work/samples" | awk '
    function flush() {
        if (!n) return
        print "# " name ":" all
        printf "%s=%.2f\n%s_min=%.2f\n", name, (value[int((n + 1) / 2)] + value[int(n / 2) + 1]) / 2, name, value[1]
    }
    $1 != name { flush(); name = $1; n = 0; all = "" }
    { value[++n] = $2; all = all " " $2 }
    END { flush() }'
echo "# conditions: $(dpkg-query -W -f '${Package} ${Version}' dpdk 2>/dev/null || echo 'dpdk of unknown version'), cores $cores," \
    "$(awk -F': ' '/model name/ { print $2; exit }' /proc/cpuinfo), load $(cut -d' ' -f1 /proc/loadavg), memory from malloc"
