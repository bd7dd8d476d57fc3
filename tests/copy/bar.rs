//! Results in another device's memory: a BAR in the table of the engine's space.

use crate::rig::Rig;
use pollring::buffer::Shared;
use pollring::bus::simulated::{self, SimulatedIommu, SoftwareDevice};
use pollring::bus::{BusError, Device, RegisterFile};
use pollring::copy::*;
use pollring::hugepages::{Region, RegionConfig};
use pollring::iova::Direction;
use pollring_simulator::ioat::{Copies, Ioat};
use pollring_tests::small_pages;
use std::sync::Arc;

const BYTES: usize = 64 << 10;

/// A device with memory behind BAR 2 and nothing else.
struct Accelerator(Arc<Region>);

impl SoftwareDevice for Accelerator {
    fn config_read32(&self, offset: u16) -> u32 {
        if offset == 0 { 0x1110_1af4 } else { 0 }
    }
    fn config_write32(&self, _: u16, _: u32) {}
    fn bar(&self, _: u8) -> Option<(Arc<dyn RegisterFile>, usize)> {
        None
    }
    fn memory(&self, bar: u8) -> Option<Arc<Region>> {
        (bar == 2).then(|| self.0.clone())
    }
    fn reset(&self) {}
    fn attach(&self, _: Arc<SimulatedIommu>) {}
}

/// The device, and its memory as it sees it itself.
fn accelerator() -> (Device, Shared) {
    let config = RegionConfig { name: "accelerator".into(), bytes: BYTES, pages: small_pages(), node: None };
    let region = Arc::new(Region::allocate(&config).unwrap());
    let backend = simulated::backend(Arc::new(Accelerator(region.clone())), Arc::default());
    (Device::open("sim:accelerator", backend).unwrap(), Shared::local(region))
}

fn content(memory: &Shared, offset: usize, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    memory.copy_out(offset, &mut data).unwrap();
    data
}

#[test]
fn an_engine_writes_into_and_reads_from_another_devices_memory() {
    let mut rig = Rig::ioat(Copies::True, None);
    let (mut device, inside) = accelerator();
    let bar = device.memory(2).unwrap();
    assert!(matches!(device.memory(2), Err(BusError::Taken { .. })));
    let before = rig.space.mappings();
    let target = Shared::mapped_bar(Arc::new(rig.space.map_bar(&bar, Direction::Both).unwrap()));
    assert_eq!((target.bytes(), rig.space.mappings()), (BYTES, before + 1));

    rig.write(0, b"into the accelerator");
    let there = Operation::copy(rig.part(0, 20), target.slice(BYTES - 20, 20).unwrap(), 0);
    assert_eq!(rig.run(there), Status::Done);
    assert_eq!(content(&inside, BYTES - 20, 20), b"into the accelerator");
    inside.copy_in(100, b"and back").unwrap();
    assert_eq!(rig.run(Operation::copy(target.slice(100, 8).unwrap(), rig.part(4096, 8), 1)), Status::Done);
    assert_eq!(rig.read(4096, 8), b"and back");
    assert_eq!(content(&target, 100, 8), b"and back", "the CPU's own way");

    drop(target);
    assert_eq!(rig.space.mappings(), before, "an operation came back, so nobody holds the mapping");
}

#[test]
fn an_operation_in_flight_keeps_the_mapping_and_a_direction_holds() {
    let mut rig = Rig::ioat(Copies::True, None);
    let (mut device, inside) = accelerator();
    let bar = device.memory(2).unwrap();
    let before = rig.space.mappings();
    let target = Shared::mapped_bar(Arc::new(rig.space.map_bar(&bar, Direction::ToDevice).unwrap()));
    rig.submit(Operation::copy(rig.part(0, 64), target.slice(0, 64).unwrap(), 0));
    drop((target, bar, device));
    assert_eq!(rig.space.mappings(), before + 1);
    rig.channel.flush();
    assert_eq!(rig.wait(1), [(0, Status::WriteFault)], "devices only read it");
    assert_eq!((rig.space.mappings(), content(&inside, 0, 64)), (before, vec![0; 64]));
}

#[test]
fn the_cpu_writes_into_a_bar_that_no_device_reaches() {
    let mut rig = Rig::memcpy();
    let (mut device, inside) = accelerator();
    let target = Shared::bar(device.memory(2).unwrap());
    rig.write(0, b"by the CPU");
    assert_eq!(rig.run(Operation::copy(rig.part(0, 10), target.slice(7, 10).unwrap(), 0)), Status::Done);
    assert_eq!(content(&inside, 7, 10), b"by the CPU");
    let mut engine = Rig::ioat(Copies::True, None);
    let rejected =
        engine.channel.submit(Operation::copy(engine.part(0, 10), target.slice(7, 10).unwrap(), 0));
    assert_eq!(rejected.unwrap_err().reason, Reason::NotMapped);
}

#[test]
fn registers_are_no_memory() {
    let ioat = Ioat::new(Copies::True, None);
    let mut device = Device::open("sim:ioat", simulated::backend(ioat, Arc::default())).unwrap();
    let error = device.memory(0).err().unwrap().to_string();
    assert!(error.contains("holds registers"), "{error}");
}
