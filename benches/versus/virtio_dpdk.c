/* DPDK's half of versus/virtio: one net_virtio_user port at a vhost-user backend, one job, for some seconds.
 * Arguments behind the EAL's `--`: JOB BYTES SECONDS. It prints what virtio.rs prints, counted in the same places. */
#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH 32
#define BURST 64
#define ROUND 128
#define STRIDE 256

static struct rte_mempool *pool;
static struct rte_mbuf *frames[BURST];
static unsigned count, bytes;
static uint64_t moved, spent, offered;

static void fill(void) {
	struct rte_mbuf *fresh[BATCH];
	unsigned wanted = BATCH > count ? BATCH - count : 0;
	if (wanted == 0 || rte_pktmbuf_alloc_bulk(pool, fresh, wanted) != 0)
		return;
	for (unsigned at = 0; at < wanted; at++) {
		fresh[at]->data_len = bytes;
		fresh[at]->pkt_len = bytes;
		frames[count++] = fresh[at];
	}
}

__attribute__((noinline)) static unsigned measured_send(unsigned offer) { return rte_eth_tx_burst(0, 0, frames, offer); }

__attribute__((noinline)) static unsigned measured_receive(unsigned from) {
	return rte_eth_rx_burst(0, 0, frames + from, BURST - from);
}

static unsigned send_all(void) {
	unsigned sent = measured_send(count);
	count -= sent;
	memmove(frames, frames + sent, count * sizeof(frames[0]));
	return sent;
}

static void transmit(void) {
	fill();
	uint64_t start = rte_rdtsc();
	unsigned sent = measured_send(count);
	uint64_t took = rte_rdtsc() - start;
	count -= sent;
	memmove(frames, frames + sent, count * sizeof(frames[0]));
	offered += BATCH;
	if (sent > 0) {
		moved += sent;
		spent += took;
	}
}

static void receive(void) {
	uint64_t start = rte_rdtsc();
	unsigned received = measured_receive(0);
	uint64_t took = rte_rdtsc() - start;
	if (received > 0) {
		moved += received;
		spent += took;
		rte_pktmbuf_free_bulk(frames, received);
	}
}

static void forward(void) {
	uint64_t start = rte_rdtsc();
	unsigned received = measured_receive(count);
	unsigned all = count + received;
	unsigned sent = all ? measured_send(all) : 0;
	uint64_t took = rte_rdtsc() - start;
	count = all - sent;
	memmove(frames, frames + sent, count * sizeof(frames[0]));
	if (received > 0) {
		moved += sent;
		spent += took;
		offered += all;
	}
}

static double run(const char *job, double seconds) {
	uint64_t start = rte_rdtsc(), limit = seconds * rte_get_tsc_hz();
	moved = spent = offered = 0;
	while (rte_rdtsc() - start < limit) {
		for (int turn = 0; turn < STRIDE; turn++) {
			if (strcmp(job, "tx") == 0)
				transmit();
			else if (strcmp(job, "rx") == 0)
				receive();
			else
				forward();
		}
	}
	return (double)(rte_rdtsc() - start) / rte_get_tsc_hz();
}

int main(int argc, char **argv) {
	int used = rte_eal_init(argc, argv);
	if (used < 0 || argc - used != 4)
		return 2;
	argv += used;
	const char *job = argv[1];
	bytes = atoi(argv[2]);
	pool = rte_pktmbuf_pool_create("frames", 16383, 512, 0, RTE_MBUF_DEFAULT_BUF_SIZE, 0);
	struct rte_eth_conf conf = {0};
	if (pool == NULL || rte_eth_dev_configure(0, 1, 1, &conf) != 0 || rte_eth_rx_queue_setup(0, 0, 256, 0, NULL, pool) != 0 ||
	    rte_eth_tx_queue_setup(0, 0, 256, 0, NULL) != 0 || rte_eth_dev_start(0) != 0)
		return 1;
	if (strcmp(job, "loop") == 0)
		for (int at = 0; at < ROUND / BATCH; at++) {
			fill();
			while (count > 0)
				send_all();
		}
	run(job, 0.3);
	uint64_t warm = moved;
	double seconds = run(job, atof(argv[3]));
	double refused = offered ? 1 - (double)moved / offered : 0;
	printf("rate=%.0f cycles=%.1f refused=%.3f all=%lu\n", moved / seconds, (double)spent / (moved ? moved : 1), refused > 0 ? refused : 0,
	       (unsigned long)(warm + moved));
	fflush(stdout);
	rte_eth_dev_stop(0);
	rte_eth_dev_close(0);
	return 0;
}
