//! Times of the pieces of the data path, by criterion. The devices are simulated, so a figure is the CPU's share only.

#![allow(clippy::panic, reason = "a bench that cannot start must stop")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use pollring::buffer::{Burst, Caches, Pool, PoolConfig, ToDevice, frame_channel};
use pollring::hugepages::Pages;
use pollring::ring::spsc;
use std::hint::black_box;

fn pool(frames: usize) -> Pool<ToDevice> {
    let pages = Pages::Small4K { reason: "a bench without set-up".into() };
    Pool::new(&PoolConfig { pages, ..PoolConfig::new("bench", frames) }, &[])
        .unwrap_or_else(|error| panic!("{error}"))
}

fn rings(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ring");
    group.throughput(Throughput::Elements(32));
    let (mut producer, mut consumer) = spsc::channel::<u64>(4096);
    let (items, mut out) = ([7; 32], [0; 32]);
    group.bench_function("spsc, 32 words in and out", |bencher| {
        bencher.iter(|| producer.enqueue(black_box(&items)) + consumer.dequeue(black_box(&mut out)));
    });
    let (pool, mut caches, mut burst) = (pool(1024), Caches::new("bench"), Burst::new());
    let (mut sender, mut receiver) = frame_channel(1024);
    caches.take_into(&pool, &mut burst, 32);
    group.bench_function("frames, a burst of 32 in and out", |bencher| {
        bencher.iter(|| sender.send(black_box(&mut burst)) + receiver.receive(black_box(&mut burst)));
    });
    group.finish();
}

fn pools(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pool");
    group.throughput(Throughput::Elements(32));
    let (pool, mut caches, mut burst) = (pool(8192), Caches::new("bench"), Burst::new());
    group.bench_function("take and put 32 frames", |bencher| {
        bencher.iter(|| {
            caches.take_into(&pool, black_box(&mut burst), 32);
            caches.put_all(black_box(&mut burst));
        });
    });
    group.finish();
}

criterion_group!(benches, rings, pools);
criterion_main!(benches);
