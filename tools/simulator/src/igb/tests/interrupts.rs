//! Interrupts: causes, masks, automatic clearing, throttling, one vector or several.

use super::super::others::{self, gpie};
use super::*;
use pollring::os::EventFd;
use std::os::fd::AsFd;

const NAPI: u32 = gpie::MULTIPLE_MSIX | gpie::AUTO_MASK;

/// A rig whose first three vectors arrive here. Queue 0 receives to vector 1, queue 9 sends to vector 2, other causes go to vector 0.
fn rig() -> (Rig, [EventFd; 3]) {
    let rig = Rig::honest();
    let events = [0; 3].map(|_| EventFd::new().unwrap());
    rig.device.set_interrupts(0, &events.each_ref().map(|event| event.as_fd())).unwrap();
    rig.registers.read(ICR);
    rig.registers.write(others::GPIE, NAPI);
    rig.registers.write_at(others::IVAR, 0, 0x81);
    rig.registers.write_at(others::IVAR, 1, 0x8200_0000);
    rig.registers.write(others::IVAR_MISC, 0x8000);
    rig.enable_rx(0, 64, 0);
    rig.enable_tx(9, 64);
    (rig, events)
}

fn drained(events: &[EventFd; 3]) -> [u64; 3] {
    events.each_ref().map(|event| event.drain().unwrap())
}

fn receive(rig: &Rig, slot: usize) {
    rig.post(0, slot, slot);
    rig.registers.write_at(RDT, 0, slot as u32 + 1);
    rig.far.transmit(&frame(1, 60)).unwrap();
    rig.igb.run_until_idle();
}

#[test]
fn write_backs_raise_their_vector_once_and_mask_it() {
    let (rig, events) = rig();
    for register in [others::EIMS, others::EIAC, others::EIAM] {
        rig.registers.write(register, 7);
    }
    receive(&rig, 0);
    receive(&rig, 1);
    assert_eq!((drained(&events), rig.registers.read(others::EIMS)), ([0, 1, 0], 5));
    // The second frame set the cause while it was masked.
    rig.registers.write(others::EIMS, 2);
    assert_eq!(drained(&events), [0, 1, 0]);
    rig.registers.write(others::EIMS, 2);
    assert_eq!(drained(&events), [0; 3]);
    rig.describe(9, 0, 0, &frame(2, 60), Rig::whole(60, 0));
    rig.describe(9, 1, 1, &frame(2, 60), Rig::whole(60, tx::REPORT_STATUS));
    rig.registers.write_at(TDT, 9, 1);
    rig.igb.run_until_idle();
    assert_eq!(drained(&events), [0; 3]);
    rig.registers.write_at(TDT, 9, 2);
    rig.igb.run_until_idle();
    assert_eq!((drained(&events), rig.igb.counters().interrupts), ([0, 0, 1], 3));
}

#[test]
fn a_cause_that_is_not_cleared_is_not_raised_again() {
    let (rig, events) = rig();
    rig.registers.write(others::GPIE, gpie::MULTIPLE_MSIX);
    rig.registers.write(others::EIMS, 2);
    (0..3).for_each(|slot| receive(&rig, slot));
    assert_eq!(drained(&events), [0, 1, 0]);
    assert_eq!(rig.registers.read(others::EICR) & 2, 2);
    receive(&rig, 3);
    assert_eq!(drained(&events), [0, 1, 0]);
    rig.registers.write(others::EICS, 6);
    assert_eq!(drained(&events), [0, 1, 0]);
    rig.registers.write(EIMC, 2);
    rig.registers.write(others::EICS, 2);
    assert_eq!(drained(&events), [0; 3]);
}

#[test]
fn other_causes_go_through_their_own_mask() {
    let (rig, events) = rig();
    rig.registers.write(others::EIMS, 1);
    rig.registers.write(others::EIAC, 1);
    rig.far.cut();
    rig.igb.step(1);
    assert_eq!(drained(&events), [0; 3]);
    rig.registers.write(others::IMS, icr::LINK_CHANGE);
    assert_eq!(drained(&events), [1, 0, 0]);
    assert_eq!(rig.registers.read(ICR), icr::LINK_CHANGE | others::icr::ASSERTED);
    rig.far.join();
    rig.igb.run_until_idle();
    assert_eq!(drained(&events), [1, 0, 0]);
    rig.registers.write(others::ICS, icr::LINK_CHANGE);
    assert_eq!(drained(&events), [1, 0, 0]);
    rig.registers.write(IMC, icr::LINK_CHANGE);
    rig.registers.write(others::ICS, icr::LINK_CHANGE);
    assert_eq!(drained(&events), [0; 3]);
}

#[test]
fn one_vector_serves_all_causes_when_there_are_not_several() {
    let (rig, events) = rig();
    rig.registers.write(others::GPIE, 0);
    rig.registers.write(others::IMS, others::icr::RX_WRITTEN_BACK);
    receive(&rig, 0);
    receive(&rig, 1);
    assert_eq!(drained(&events), [1, 0, 0]);
    assert_eq!(rig.registers.read(ICR), others::icr::RX_WRITTEN_BACK | others::icr::ASSERTED);
    receive(&rig, 2);
    assert_eq!(drained(&events), [1, 0, 0]);
    rig.device.set_interrupts(0, &[]).unwrap();
    rig.registers.read(ICR);
    receive(&rig, 3);
    assert_eq!(drained(&events), [0; 3]);
}

#[test]
fn an_interval_holds_a_vector_back_but_loses_none() {
    let (rig, events) = rig();
    for register in [others::EIMS, others::EIAC] {
        rig.registers.write(register, 2);
    }
    rig.registers.write_at(others::EITR, 1, 8000 << 2);
    receive(&rig, 0);
    receive(&rig, 1);
    assert_eq!(drained(&events), [0, 1, 0]);
    let held = rig.igb.held_for().unwrap();
    assert!(held.as_micros() <= 8000);
    std::thread::sleep(held + std::time::Duration::from_millis(1));
    rig.igb.step(1);
    assert_eq!((drained(&events), rig.igb.held_for()), ([0, 1, 0], None));
}
