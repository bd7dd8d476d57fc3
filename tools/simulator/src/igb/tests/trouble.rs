//! Unplugging, defects and lies.

use super::*;

#[test]
fn an_unplugged_device_is_gone_until_it_is_replugged() {
    let rig = Rig::honest();
    rig.enable_rx(0, 64, 0);
    rig.igb.unplug();
    assert_eq!(rig.registers.read(RXPBS), u32::MAX);
    assert_eq!(rig.registers.health(), Health::Gone);
    rig.far.transmit(&frame(1, 60)).unwrap();
    rig.registers.write_at(RDT, 0, 1);
    assert_eq!(rig.igb.run_until_idle(), 0);
    rig.igb.replug();
    let bus = pollring::bus::simulated::backend(rig.igb.clone(), rig.iommu.clone());
    assert_eq!((bus.config_read32(0), bus.config_read32(4)), (0x10c9_8086, 1 << 20));
}

#[test]
fn it_vanishes_after_the_given_number_of_accesses() {
    let rig = Rig::closed(|_| {});
    rig.igb.fail_after(3);
    assert_eq!(rig.registers.read(RXPBS), 64);
    rig.registers.write(RXPBS, 3);
    assert_eq!(rig.registers.read(RXPBS), 3);
    assert_eq!(rig.registers.read(RXPBS), u32::MAX);
    assert_eq!(rig.registers.health(), Health::Gone);
}

#[test]
fn defects_show_where_they_are() {
    for defect in Defect::ALL {
        let rig = Rig::closed(|_| {});
        rig.igb.stick(defect);
        let shows = |rig: &Rig| {
            let registers = &rig.registers;
            registers.write(CTRL, ctrl::RESET);
            let reset = (0..10).all(|_| registers.read(CTRL) & ctrl::RESET != 0);
            let address = registers.read_at(RAH, 0) & rah::VALID == 0;
            registers.write(CTRL, ctrl::MASTER_DISABLE);
            let master = registers.read(STATUS) & status::MASTER_ENABLED != 0;
            registers.write(EERD, eerd::START);
            let nvm = (0..10).all(|_| registers.read(EERD) & eerd::DONE == 0);
            rig.enable_rx(1, 64, 0);
            rig.enable_tx(1, 64);
            let queue = |control| registers.read_at(control, 1) & dctl::ENABLE == 0;
            rig.bring_link_up();
            let phy = (0..10).all(|_| registers.read(MDIC) & mdic::READY == 0);
            let link = registers.read(STATUS) & status::LINK_UP == 0;
            [reset, master, address, nvm, phy, link, queue(RXDCTL), queue(TXDCTL)]
        };
        assert_eq!(shows(&rig), Defect::ALL.map(|other| other == defect), "{defect:?}");
        rig.igb.heal(defect);
        assert_eq!(shows(&rig), [false; 8], "{defect:?}");
    }
}

fn lie(seed: u64) -> (Rig, Vec<(Lie, u64)>) {
    let rig = Rig::new(|config| config.lies = Some(Lies { seed, per_mille: 500 }));
    rig.enable_rx(0, 64, srrctl::DROP_ENABLE);
    rig.enable_tx(0, 64);
    let (mut rx_tail, mut tx_tail) = (0, 0);
    for _ in 0..500 {
        for _ in 0..4 {
            rig.post(0, rx_tail, rx_tail);
            rx_tail = (rx_tail + 1) % 64;
            let command = Rig::whole(60, tx::REPORT_STATUS);
            rig.describe(0, tx_tail, 100, &frame(1, 60), command);
            tx_tail = (tx_tail + 1) % 64;
            rig.far.transmit(&frame(1, 60)).unwrap();
        }
        rig.registers.doorbell(RDT.at(0)).ring(rx_tail as u32);
        rig.registers.doorbell(TDT.at(0)).ring(tx_tail as u32);
        rig.igb.step(16);
        rig.registers.read_at(RDH, 0);
        rig.sent();
    }
    rig.igb.run_until_idle();
    let told = rig.igb.lies_told();
    (rig, told)
}

#[test]
fn every_lie_is_told_and_stays_behind_the_iommu() {
    let (rig, told) = lie(1);
    assert!(told.iter().all(|(_, count)| *count > 10), "{told:?}");
    let strays = told.iter().find(|(lie, _)| *lie == Lie::StrayWrite).unwrap().1;
    assert!(rig.igb.dma_faults() >= strays);
    assert_eq!(rig.igb.dma_faults(), rig.iommu.faults().0);
    assert_eq!(rig.device.status().health(), Health::Running);
}

#[test]
fn lies_repeat_with_their_seed() {
    assert_eq!(lie(2).1, lie(2).1);
    assert_ne!(lie(2).1, lie(3).1);
}
