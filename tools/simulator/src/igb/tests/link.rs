//! The link: what it needs, what a cut does.

use super::*;

fn is_up(rig: &Rig) -> bool {
    rig.registers.read(STATUS) & status::LINK_UP != 0
}

#[test]
fn it_needs_mac_phy_and_wire() {
    let rig = Rig::closed(|_| {});
    rig.write_phy(mdic::BMCR, mdic::BMCR_AUTONEG | mdic::BMCR_RESTART_AUTONEG);
    (0..3).for_each(|_| assert_eq!(rig.igb.step(1), 0));
    rig.registers.write(CTRL, ctrl::SET_LINK_UP);
    assert!(!is_up(&rig));
    rig.igb.run_until_idle();
    let value = rig.registers.read(STATUS);
    assert_eq!(value & 0xc3, status::LINK_UP | status::FULL_DUPLEX | 2 << status::SPEED_SHIFT);
    assert_eq!(rig.registers.read(ICR), icr::LINK_CHANGE);
    assert_eq!(rig.registers.read(ICR), 0);
    rig.registers.write(CTRL, 0);
    assert!(!is_up(&rig));
}

#[test]
fn a_cut_takes_it_down_and_holds_frames_on_both_sides() {
    let rig = Rig::honest();
    rig.registers.read(ICR);
    rig.enable_rx(0, 64, 0);
    rig.enable_tx(0, 64);
    rig.post(0, 0, 0);
    rig.registers.write_at(RDT, 0, 1);
    rig.far.transmit(&frame(1, 60)).unwrap();
    rig.far.cut();
    rig.describe(0, 0, 1, &frame(2, 60), Rig::whole(60, 0));
    rig.registers.write_at(TDT, 0, 1);
    assert_eq!(rig.igb.run_until_idle(), 0);
    assert!(!is_up(&rig));
    assert_eq!(rig.registers.read(ICR), icr::LINK_CHANGE);
    rig.far.join();
    rig.igb.step(1);
    assert!(!is_up(&rig));
    assert_eq!(rig.igb.run_until_idle(), 2);
    assert!(is_up(&rig));
    assert_eq!(rig.sent(), [frame(2, 60)]);
    assert_eq!(rig.bytes(rig.buffer(0), 60), frame(1, 60));
}

#[test]
fn frames_that_the_wire_did_not_take_go_first_later() {
    let (near, far) = crate::wire::pair(crate::wire::WireConfig { capacity_frames: 3 });
    let rig = Rig::new(|config| config.wire = near);
    rig.enable_tx(0, 64);
    for slot in 0..8 {
        rig.describe(0, slot, slot, &frame(slot as u8, 60), Rig::whole(60, 0));
    }
    rig.registers.write_at(TDT, 0, 8);
    let mut marks = Vec::new();
    for _ in 0..4 {
        rig.igb.run_until_idle();
        far.receive_batch(2, |slot| marks.push(slot[20]));
    }
    assert_eq!(marks, [0, 1, 2, 3, 4, 5, 6, 7]);
}
