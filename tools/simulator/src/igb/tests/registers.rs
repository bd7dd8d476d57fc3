//! Registers: access rules, reset values, gates, tails as words, latching, older places.

use super::super::others;
use super::*;

#[test]
fn accesses_follow_the_table() {
    let rig = Rig::closed(|_| {});
    // Their writes do more, or less; each is tested elsewhere.
    let special =
        ["CTRL", "MDIC", "EECD", "EERD", "RXDCTL", "TXDCTL", "RDH", "TDH", "SWSM", "IMS", "EIMS", "MBVFICR"];
    let all = REGISTERS.iter().chain(others::REGISTERS);
    for register in all.filter(|register| !special.contains(&register.name)) {
        for at in [0, register.count - 1] {
            let before = rig.registers.read_at(*register, at);
            rig.registers.write_at(*register, at, 0x1234_5670);
            let after = rig.registers.read_at(*register, at);
            match register.access {
                Access::ReadWrite => assert_eq!(after, 0x1234_5670, "{}", register.name),
                Access::WriteOnly | Access::ReadClears => assert_eq!(after, 0, "{}", register.name),
                _ => assert_eq!(after, before, "{}", register.name),
            }
        }
    }
    let unknown = [0x5b78, 0xc034, 0x1_fffc];
    for offset in unknown {
        rig.registers.write32(offset, 7);
        assert_eq!(rig.registers.read32(offset), 0);
    }
    assert_eq!(rig.igb.unknown_registers(), unknown.map(|offset| (offset, 2)));
}

#[test]
fn a_reset_ends_after_a_look_and_restores_the_reset_values() {
    let rig = Rig::honest();
    rig.enable_rx(3, 64, 0);
    rig.registers.write_at(RDT, 3, 5);
    rig.registers.write_at(RAL, 0, 0);
    rig.registers.write(CTRL, ctrl::RESET);
    assert_ne!(rig.registers.read(CTRL) & ctrl::RESET, 0);
    assert_eq!(rig.registers.read(CTRL), ctrl::FULL_DUPLEX);
    assert_ne!(rig.registers.read(STATUS) & status::RESET_DONE, 0);
    assert_eq!(rig.registers.read_at(RAL, 0).to_le_bytes(), MAC[..4]);
    assert_eq!(rig.registers.read_at(RAH, 0), rah::VALID | 0x0302);
    assert_eq!((rig.registers.read(RCTL), rig.registers.read(RXPBS)), (0, 64));
    assert_eq!((rig.registers.read_at(RDT, 3), rig.registers.read_at(RDLEN, 3)), (0, 0));
    assert_eq!(rig.registers.read_at(RXDCTL, 3) & dctl::ENABLE, 0);
    assert_ne!(rig.registers.read_at(RXDCTL, 0) & dctl::ENABLE, 0);
}

#[test]
fn the_gates_of_config_space_hold() {
    let rig = Rig::closed(|_| {});
    assert_eq!(rig.device.id(), (0x8086, 0x10c9));
    assert!(!rig.device.dma_enabled());
    rig.bring_link_up();
    rig.enable_tx(0, 64);
    rig.registers.write(TCTL, tctl::ENABLE);
    rig.describe(0, 0, 0, &frame(1, 60), Rig::whole(60, tx::REPORT_STATUS));
    rig.registers.write_at(TDT, 0, 1);
    assert_eq!((rig.igb.run_until_idle(), rig.registers.read_at(TDH, 0)), (0, 0));
    rig.device.start_dma().unwrap();
    rig.registers.write(CTRL, ctrl::SET_LINK_UP | ctrl::MASTER_DISABLE);
    assert_eq!(rig.registers.read(STATUS) & status::MASTER_ENABLED, 0);
    assert_eq!(rig.igb.run_until_idle(), 0);
    rig.registers.write(CTRL, ctrl::SET_LINK_UP);
    assert_ne!(rig.registers.read(STATUS) & status::MASTER_ENABLED, 0);
    assert_eq!(rig.igb.run_until_idle(), 1);
    assert_eq!(rig.sent(), [frame(1, 60)]);
}

#[test]
fn without_memory_space_reads_are_all_ones() {
    let rig = Rig::closed(|_| {});
    let bus = pollring::bus::simulated::backend(rig.igb.clone(), rig.iommu.clone());
    let command = bus.config_read32(4);
    bus.config_write32(4, 0);
    assert_eq!(rig.registers.read(RXPBS), u32::MAX);
    rig.registers.write(RXPBS, 1);
    bus.config_write32(4, command);
    assert_eq!(rig.registers.read(RXPBS), 64);
    assert_eq!(rig.registers.health(), Health::Open);
}

#[test]
fn tails_are_words_that_need_no_call() {
    let rig = Rig::honest();
    rig.enable_rx(2, 64, 0);
    rig.registers.doorbell(RDT.at(2)).ring(9);
    rig.registers.doorbell(TDT.at(15)).ring(3);
    assert_eq!((rig.registers.read_at(RDT, 2), rig.registers.read_at(TDT, 15)), (9, 3));
    rig.registers.write_at(RDT, 2, 11);
    assert_eq!(rig.registers.read_at(RDT, 2), 11);
    rig.registers.doorbell(RDH.at(2)).ring(4);
    assert_eq!(rig.registers.read_at(RDH, 2), 0);
}

#[test]
fn a_ring_is_latched_when_its_queue_is_enabled() {
    let rig = Rig::honest();
    rig.enable_tx(0, 64);
    rig.registers.write_at(TDBAL, 0, 0);
    rig.registers.write_at(TDLEN, 0, 0);
    rig.describe(0, 0, 0, &frame(1, 60), Rig::whole(60, 0));
    rig.registers.write_at(TDT, 0, 1);
    rig.igb.run_until_idle();
    assert_eq!((rig.sent().len(), rig.igb.violations(), rig.igb.dma_faults()), (1, 0, 0));
    rig.registers.write_at(TXDCTL, 0, 0);
    rig.registers.write_at(TXDCTL, 0, dctl::ENABLE);
    assert_eq!(rig.igb.violation_counts(), [(Violation::RingLength, 1)]);
}

#[test]
fn octets_and_counters_clear_when_they_are_read() {
    let rig = Rig::honest();
    rig.enable_tx(0, 64);
    rig.describe(0, 0, 0, &frame(1, 100), Rig::whole(100, 0));
    rig.registers.write_at(TDT, 0, 1);
    rig.igb.run_until_idle();
    assert_eq!(rig.registers.read_pair(GOTCL, GOTCH), 104);
    assert_eq!(rig.registers.read_pair(GOTCL, GOTCH), 0);
    assert_eq!((rig.registers.read(GPTC), rig.registers.read(GPTC)), (1, 0));
}

#[test]
fn the_bus_resets_the_whole_function() {
    let rig = Rig::honest();
    rig.device.reset().unwrap();
    assert!(!rig.device.dma_enabled());
    assert_eq!((rig.registers.read(RCTL), rig.registers.read(CTRL)), (0, ctrl::FULL_DUPLEX));
    rig.registers.write(CTRL, ctrl::SET_LINK_UP);
    rig.igb.run_until_idle();
    assert_eq!(rig.registers.read(STATUS) & status::LINK_UP, 0);
}

#[test]
fn older_places_lead_to_the_same_registers() {
    let rig = Rig::honest();
    rig.registers.write32(0x380c + 0x300, 7);
    rig.registers.write32(0x2800 + 0x200, 0x4000);
    assert_eq!(rig.registers.read_at(RDBAL, 2), 0x4000);
    rig.registers.doorbell(0x3818 + 0x100).ring(9);
    assert_eq!((rig.registers.read_at(TDT, 1), rig.registers.read32(0x3918)), (9, 9));
    rig.registers.write32(0xd0, 4);
    assert_eq!(rig.registers.read(others::IMS), 4);
    assert_eq!(rig.igb.unknown_registers(), [(0x3b0c, 1)]);
}

#[test]
fn the_semaphore_is_taken_by_reading_it() {
    let rig = Rig::honest();
    assert_eq!([0; 2].map(|_| rig.registers.read(others::SWSM)), [0, 1]);
    rig.registers.write(others::SWSM, 2);
    assert_eq!(rig.registers.read(others::SWSM), 2);
    rig.registers.write(EECD, 1 << 6);
    assert_eq!(rig.registers.read(EECD), 0x3c0 | 4 << 11);
    rig.registers.write(EECD, 0);
    assert_eq!(rig.registers.read(EECD), 0x300 | 4 << 11);
}
