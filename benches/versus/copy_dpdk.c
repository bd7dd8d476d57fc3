/* Their half of versus/copy: DPDK's dma_skeleton, and libc's memcpy and memset.
 * `theirs EAL.. -- submit SECONDS` or `theirs memory JOB BYTES SECONDS`. It prints what copy.rs prints, measured in the same places. */
#define ALLOW_EXPERIMENTAL_API
#define _GNU_SOURCE
#include <rte_cycles.h>
#include <rte_dmadev.h>
#include <rte_eal.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define BATCH 32
#define BYTES 64
#define ENTRIES 256
#define KEPT 1000000

static uint64_t figures[KEPT], copies;
static double times[KEPT];
static unsigned kept;
static char *memory;
static uint16_t last;

static int by_cycles(const void *one, const void *two) {
	uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)two;
	return (a > b) - (a < b);
}

static int by_time(const void *one, const void *two) {
	double a = *(const double *)one, b = *(const double *)two;
	return (a > b) - (a < b);
}

static double now(void) {
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

static void *huge_pages(size_t bytes) {
	size_t page = 2 << 20;
	bytes = (bytes + page - 1) / page * page;
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB | (21 << MAP_HUGE_SHIFT) | MAP_POPULATE, -1, 0);
	return at == MAP_FAILED ? NULL : at;
}

/* Callgrind counts in here. So it does in `measured_poll`, and in our half in functions of the same names. */
__attribute__((noinline)) static int measured_submit(void) {
	for (int at = 0; at < BATCH; at++)
		if (rte_dma_copy(0, 0, (rte_iova_t)memory + at * BYTES, (rte_iova_t)memory + (BATCH + at) * BYTES, BYTES, 0) < 0)
			return -1;
	return rte_dma_submit(0, 0);
}

__attribute__((noinline)) static unsigned measured_poll(unsigned room) {
	bool error = false;
	return rte_dma_completed(0, 0, room, &last, &error);
}

/* The thread counts a copy just before it hands it back; it may run on this core, so this one yields. */
static void engine_works(void) {
	struct rte_dma_stats stats;
	do {
		sched_yield();
		rte_dma_stats_get(0, 0, &stats);
	} while (stats.completed < copies);
	sched_yield();
}

/* One burst; gives the cycles of calls that did something. */
static uint64_t burst(void) {
	uint64_t start = rte_rdtsc();
	if (measured_submit() < 0)
		exit(1);
	uint64_t spent = rte_rdtsc() - start;
	copies += BATCH;
	engine_works();
	for (unsigned back = 0; back < BATCH;) {
		start = rte_rdtsc();
		unsigned more = measured_poll(BATCH - back);
		if (more > 0)
			spent += rte_rdtsc() - start;
		back += more;
	}
	return spent;
}

static void run_submit(double seconds) {
	double end = now() + seconds;
	for (kept = 0; now() < end && kept < KEPT;)
		figures[kept++] = burst();
}

static int submit(double seconds) {
	struct rte_dma_conf device = {.nb_vchans = 1};
	struct rte_dma_vchan_conf channel = {.direction = RTE_DMA_DIR_MEM_TO_MEM, .nb_desc = ENTRIES};
	memory = huge_pages(BATCH * BYTES * 2);
	if (memory == NULL)
		memory = aligned_alloc(4096, BATCH * BYTES * 2); /* under valgrind */
	for (int at = 0; at < BATCH * BYTES; at++)
		memory[at] = at * 7 + 1;
	if (rte_dma_configure(0, &device) != 0 || rte_dma_vchan_setup(0, 0, &channel) != 0 || rte_dma_start(0) != 0)
		return 1;
	run_submit(0.2);
	run_submit(seconds);
	if (memcmp(memory, memory + BATCH * BYTES, BATCH * BYTES) != 0)
		return 1;
	qsort(figures, kept, sizeof(figures[0]), by_cycles);
	printf("cycles=%.2f all=%lu\n", (double)figures[kept / 2] / BATCH, (unsigned long)copies);
	rte_dma_stop(0);
	rte_dma_close(0);
	return 0;
}

static int stream(const char *job, size_t bytes, double seconds) {
	char *from = huge_pages(bytes * 2), *to = from + bytes;
	if (from == NULL)
		return 1;
	memset(from, 0x33, bytes);
	for (double start = now(), end = start + seconds; kept < KEPT && (start < end || kept < 5);) {
		start = now();
		if (strcmp(job, "copy") == 0)
			memcpy(to, from, bytes);
		else
			memset(to, 0x5a, bytes);
		__asm__ volatile("" : : "r"(to) : "memory");
		times[kept++] = now() - start;
	}
	char expected = strcmp(job, "copy") == 0 ? 0x33 : 0x5a;
	if (to[0] != expected || to[bytes - 1] != expected)
		return 1;
	qsort(times, kept, sizeof(times[0]), by_time);
	printf("rate=%.4f\n", bytes / times[kept / 2] * 1e-9);
	return 0;
}

int main(int argc, char **argv) {
	if (argc == 5 && strcmp(argv[1], "memory") == 0)
		return stream(argv[2], atoll(argv[3]), atof(argv[4]));
	int used = rte_eal_init(argc, argv);
	if (used < 0 || argc - used != 3 || strcmp(argv[used + 1], "submit") != 0)
		return 2;
	int status = submit(atof(argv[used + 2]));
	fflush(stdout);
	return status;
}
