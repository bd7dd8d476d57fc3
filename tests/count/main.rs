//! The program that `tests/count/gate` runs under callgrind: frames go through the four operations, in bursts of 32, on a stepwise
//! device in memory. Only what [`measured_turn`] does is counted.
//!
//! `pollring-count BURSTS` prints frames, doorbells, descriptor lines and packet lines. Packet memory is forbidden to the CPU
//! all the while, so a touch of a packet line ends the program: the count of 0 is not a claim.

use pollring::buffer::{Burst, Caches};
use pollring::bus::simulated::SoftwareDevice;
use pollring::port::{Queues, RxQueue, TxQueue};
use pollring_drivers::nic::igb::regs::{RDT, TDT};
use pollring_tests::{Random, Side, mac};

const BURST: usize = 32;
/// Descriptors of 16 bytes in a line of 64.
const PER_LINE: u32 = 4;
const ENTRIES: u32 = 512;

fn main() {
    let bursts: usize = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(2000);
    let mut side = Side::new(0, |_| {});
    let (mut rx, mut tx) = side.start(ENTRIES as usize);
    let (mut caches, mut burst, mut random) = (Caches::new("count"), Burst::new(), Random(1));
    if let Err(error) = side.pool.region().forbid_cpu() {
        eprintln!("pollring-count: forbid access to packet memory: {error}");
        std::process::exit(1);
    }
    let frames: Vec<Vec<u8>> = (0..BURST).map(|_| random.frame(mac(0))).collect();
    // Two rounds before the count, so that rings and caches are in their steady state.
    let (mut forwarded, mut lines, mut received) = (0, 0, 0);
    for round in 0..bursts + 2 {
        frames.iter().for_each(|frame| side.send_in(frame));
        side.device.step(BURST);
        if round < 2 {
            warm_turn(&mut *rx, &mut *tx, &mut burst, &mut caches);
        } else {
            let before = tails(&side);
            let frames = measured_turn(&mut *rx, &mut *tx, &mut burst, &mut caches);
            let after = tails(&side);
            // Written to post, read for the done bits, written to send, and one read a block to reclaim.
            lines += lines_between(before.0, after.0) + lines_between(received, received + frames as u32);
            lines += lines_between(before.1, after.1) + 1;
            received += frames as u32;
            forwarded += frames;
        }
        side.device.step(BURST);
        while side.take_out().is_some() {}
    }
    let counted = side.port.statistics();
    let doorbells = counted.rx.doorbells + counted.tx.doorbells;
    println!("frames {forwarded}");
    println!("doorbells_per_32_frames {:.2}", doorbells as f64 * BURST as f64 / counted.tx.frames as f64);
    println!("descriptor_lines_per_frame {:.2}", f64::from(lines) / forwarded as f64);
    println!("packet_lines_per_frame 0");
    let stopped = side.port.stop(Queues { rx: vec![rx], tx: vec![tx] });
    assert!(stopped.is_ok() && forwarded == bursts * BURST, "{forwarded} frames, {stopped:?}");
}

/// The tail registers of the first queue pair.
fn tails(side: &Side) -> (u32, u32) {
    let registers = side.device.bar(0).map(|(registers, _)| registers);
    let read = |offset| registers.as_ref().map_or(0, |registers| registers.read32(offset));
    (read(RDT.at(0)), read(TDT.at(0)))
}

/// Cache lines of descriptors from one slot up to another.
fn lines_between(first: u32, end: u32) -> u32 {
    let count = end.wrapping_sub(first) % ENTRIES;
    if count == 0 { 0 } else { (first % PER_LINE + count).div_ceil(PER_LINE) }
}

/// One turn of a forwarder. Its name is what callgrind looks for.
#[inline(never)]
fn measured_turn(
    rx: &mut dyn RxQueue,
    tx: &mut dyn TxQueue,
    burst: &mut Burst,
    caches: &mut Caches,
) -> usize {
    rx.refill(caches);
    let received = rx.receive(burst);
    tx.send(burst, caches);
    tx.reclaim(caches);
    received
}

/// The same, not counted.
#[inline(never)]
fn warm_turn(rx: &mut dyn RxQueue, tx: &mut dyn TxQueue, burst: &mut Burst, caches: &mut Caches) {
    rx.refill(caches);
    rx.receive(burst);
    tx.send(burst, caches);
    tx.reclaim(caches);
}
