//! Random look-ups in a large table on huge pages against the same on 4 KiB pages: what the TLB costs.
//!
//! Reserve pages first (`pollring hugepages reserve 128`); without them both rows are small pages and the names say so.

#![allow(clippy::panic, reason = "a bench that cannot start must stop")]

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use pollring_hugepages::{Backing, Table};
use std::hint::black_box;

/// 128 MiB of words: far more than a TLB of 4 KiB pages covers.
const WORDS: usize = 16 << 20;

fn look_up(words: &[u64], mut at: usize) -> u64 {
    let mut sum = 0;
    for _ in 0..1000 {
        at = at.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        sum += words[(at >> 20) % WORDS];
    }
    sum
}

fn tables(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("1000 random look-ups in 128 MiB");
    let huge = Table::filled(WORDS, 1u64).unwrap_or_else(|error| panic!("{error}"));
    let name = if huge.backing() == Backing::Huge {
        "Table on huge pages"
    } else {
        "Table, no huge pages free: 4 KiB"
    };
    group.bench_function(name, |bencher| {
        bencher.iter_batched(cycles, |start| look_up(black_box(&huge), start), BatchSize::SmallInput);
    });
    let small = vec![1u64; WORDS];
    group.bench_function("Vec on 4 KiB pages", |bencher| {
        bencher.iter_batched(cycles, |start| look_up(black_box(&small), start), BatchSize::SmallInput);
    });
    group.finish();
}

fn cycles() -> usize {
    pollring_benches::cycles() as usize
}

criterion_group!(benches, tables);
criterion_main!(benches);
