//! Receive rings: order, wrap, overrun in both ways, filters, spreading.

use super::super::others::{self, rxcsum};
use super::*;

fn post_all(rig: &Rig, queue: usize, slots: usize) {
    (0..slots).for_each(|slot| rig.post(queue, slot, slot));
    rig.registers.write_at(RDT, queue, slots as u32);
}

#[test]
fn rings_wrap_and_each_frame_lies_in_its_buffer() {
    let rig = Rig::honest();
    rig.enable_rx(0, 8, 0);
    post_all(&rig, 0, 7);
    let mut head = 0;
    for round in 0..40u8 {
        for at in 0..5 {
            rig.far.transmit(&frame(round * 6 + at, 60 + usize::from(at))).unwrap();
        }
        assert_eq!(rig.igb.run_until_idle(), 5);
        for at in 0..5 {
            let [info, status] = rig.rx_words(0, head);
            assert_eq!(info, 0);
            assert_eq!(status & 0x3, rx::DONE | rx::END_OF_PACKET);
            assert_eq!(length(status), 60 + at);
            assert_eq!(rig.bytes(rig.buffer(head), 60 + at), frame(round * 6 + at as u8, 60 + at));
            rig.post(0, (head + 7) % 8, (head + 7) % 8);
            head = (head + 1) % 8;
            rig.post(0, (head + 6) % 8, (head + 6) % 8);
        }
        rig.registers.write_at(RDT, 0, ((head + 7) % 8) as u32);
        assert_eq!(rig.registers.read_at(RDH, 0), head as u32);
    }
    assert_eq!((rig.registers.read(GPRC), rig.registers.read(TPR)), (200, 200));
    assert_eq!(rig.registers.read_pair(GORCL, GORCH), 40 * (5 * 64 + 10));
    assert_eq!((rig.igb.violations(), rig.igb.dma_faults()), (0, 0));
}

#[test]
fn a_queue_that_drops_counts_what_it_dropped() {
    let rig = Rig::honest();
    rig.enable_rx(0, 64, srrctl::DROP_ENABLE);
    post_all(&rig, 0, 3);
    (0..10).for_each(|at| rig.far.transmit(&frame(at, 60)).unwrap());
    assert_eq!(rig.igb.run_until_idle(), 10);
    assert_eq!((rig.registers.read_at(RQDPC, 0), rig.registers.read(MPC)), (7, 0));
    assert_eq!(rig.registers.read(ICR) & icr::RX_OVERRUN, icr::RX_OVERRUN);
    assert_eq!((rig.registers.read(GPRC), rig.registers.read(TPR)), (3, 10));
}

#[test]
fn a_queue_that_waits_blocks_until_the_packet_buffer_is_full() {
    let rig = Rig::honest();
    rig.enable_rx(0, 128, 0);
    rig.registers.write(RXPBS, 2);
    post_all(&rig, 0, 3);
    rig.registers.read(ICR);
    (0..40).for_each(|at| rig.far.transmit(&frame(at, 100)).unwrap());
    rig.igb.run_until_idle();
    let missed = rig.registers.read(MPC);
    // One chunk of 16 arrived before the ring was found empty; 13 wait of it, and 7 more fill 2 KiB.
    assert_eq!((missed, rig.registers.read(RNBC)), (40 - 3 - 20, 1));
    assert_ne!(rig.registers.read(ICR) & icr::RX_OVERRUN, 0);
    (3..40).for_each(|slot| rig.post(0, slot, slot));
    rig.registers.write_at(RDT, 0, 40);
    rig.igb.run_until_idle();
    assert_eq!(rig.registers.read(GPRC), 23);
    let marks: Vec<u8> = (0..23).map(|slot| rig.bytes(rig.buffer(slot), 100)[99]).collect();
    assert_eq!(marks, (0..23).collect::<Vec<u8>>());
    assert_eq!(rig.registers.read_at(RQDPC, 0), 0);
}

#[test]
fn long_frames_take_several_descriptors_if_there_are_enough() {
    let rig = Rig::honest();
    rig.registers.write(RLPML, 9000);
    rig.registers.write(RCTL, rig.registers.read(RCTL) | rctl::LONG_PACKETS);
    rig.enable_rx(0, 64, srrctl::DROP_ENABLE);
    post_all(&rig, 0, 3);
    rig.far.transmit(&frame(1, 2 * BUFFER_BYTES + 1)).unwrap();
    rig.far.transmit(&frame(1, 60)).unwrap();
    rig.igb.run_until_idle();
    let parts: Vec<u64> = (0..3).map(|slot| rig.rx_words(0, slot)[1]).collect();
    assert_eq!(parts.iter().map(|part| length(*part)).collect::<Vec<_>>(), [2048, 2048, 1]);
    assert_eq!(parts.iter().map(|part| part & rx::END_OF_PACKET).collect::<Vec<_>>(), [0, 0, 2]);
    assert_eq!(rig.bytes(rig.buffer(0), 4097), frame(1, 4097));
    assert_eq!(rig.registers.read_at(RQDPC, 0), 1);
}

#[test]
fn too_short_too_long_and_foreign_frames_are_counted() {
    let rig = Rig::honest();
    rig.enable_rx(0, 64, 0);
    post_all(&rig, 0, 60);
    rig.registers.write(RCTL, rctl::ENABLE | rctl::BROADCAST | rctl::STRIP_CRC);
    let to = |destination: [u8; 6], bytes| {
        let mut frame = frame(1, bytes);
        frame[..6].copy_from_slice(&destination);
        rig.far.transmit(&frame).unwrap();
    };
    [59, 60, 1514, 1515].into_iter().for_each(|bytes| to(MAC, bytes));
    [[0xff; 6], [1, 0, 0x5e, 0, 0, 1], [2; 6]].into_iter().for_each(|destination| to(destination, 60));
    rig.igb.run_until_idle();
    let read = |register| rig.registers.read(register);
    assert_eq!((read(RUC), read(ROC), read(GPRC), read(BPRC), read(TPR)), (1, 1, 3, 1, 7));
    assert_eq!(rig.igb.counters().filtered, 2);
}

#[test]
fn the_crc_is_kept_when_it_is_not_stripped() {
    let rig = Rig::honest();
    rig.registers.write(RCTL, rig.registers.read(RCTL) & !rctl::STRIP_CRC);
    rig.enable_rx(0, 64, 0);
    post_all(&rig, 0, 1);
    rig.far.transmit(&frame(1, 60)).unwrap();
    rig.igb.run_until_idle();
    assert_eq!(length(rig.rx_words(0, 0)[1]), 64);
    assert_eq!(rig.registers.read_pair(GORCL, GORCH), 64);
    assert_ne!(rig.bytes(rig.buffer(0) + 60, 4), [0; 4]);
}

#[test]
fn rss_spreads_flows_over_rings() {
    let rig = Rig::honest();
    for queue in 0..4 {
        rig.enable_rx(queue, 512, srrctl::DROP_ENABLE);
        (0..500).for_each(|slot| rig.post(queue, slot, queue * 300 + slot % 300));
        rig.registers.write_at(RDT, queue, 500);
    }
    (0..10).for_each(|at| rig.registers.write_at(RSSRK, at, 0x6d5a_6d5a));
    (0..32).for_each(|at| rig.registers.write_at(RETA, at, 0x0302_0100));
    rig.registers.write(MRQC, mrqc::RSS | mrqc::HASH_UDP_IPV4);
    rig.registers.write(RXCSUM, rxcsum::HASH);
    let shape = crate::traffic::Shape::Udp4;
    let config =
        crate::traffic::TrafficConfig { streams: 64, shape, ..crate::traffic::TrafficConfig::new(1) };
    crate::traffic::Generator::new(config).send(&rig.far, 640);
    rig.igb.run_until_idle();
    let heads: Vec<u32> = (0..4).map(|queue| rig.registers.read_at(RDH, queue)).collect();
    assert_eq!(heads.iter().sum::<u32>(), 640);
    assert!(heads.iter().all(|head| *head >= 40 && head % 10 == 0), "{heads:?}");
    assert_ne!(rig.rx_words(1, 0)[0] >> 32, 0);
}

#[test]
fn a_queue_that_is_off_drops_and_counts() {
    let rig = Rig::honest();
    rig.far.transmit(&frame(1, 60)).unwrap();
    rig.igb.run_until_idle();
    assert_eq!(rig.registers.read_at(RQDPC, 0), 1);
}

#[test]
fn frames_stay_on_the_wire_until_the_receiver_is_on() {
    let rig = Rig::honest();
    rig.registers.write(RCTL, 0);
    rig.far.transmit(&frame(1, 60)).unwrap();
    assert_eq!((rig.igb.run_until_idle(), rig.registers.read(TPR)), (0, 0));
    rig.registers.write(RCTL, rctl::ENABLE | rctl::UNICAST_PROMISCUOUS);
    assert_eq!((rig.igb.run_until_idle(), rig.registers.read(TPR)), (1, 1));
}

#[test]
fn wrong_formats_and_faults_are_counted() {
    let rig = Rig::honest();
    rig.enable_rx(0, 64, 0);
    rig.write_words(rig.rx_ring(0), [0xdead_0000, 1]);
    rig.registers.write_at(RDT, 0, 1);
    rig.far.transmit(&frame(1, 60)).unwrap();
    rig.igb.run_until_idle();
    assert_eq!(rig.igb.violation_counts(), [(Violation::PostedAsDone, 1)]);
    assert_eq!((rig.igb.dma_faults(), rig.iommu.faults().0), (1, 1));
    assert_ne!(rig.rx_words(0, 0)[1] & rx::DONE, 0);
    rig.registers.write_at(RXDCTL, 1, 0);
    rig.registers.write_at(RDLEN, 1, 128);
    rig.registers.write_at(RXDCTL, 1, dctl::ENABLE);
    assert!(rig.igb.violation_counts().contains(&(Violation::ReceiveFormat, 1)));
}

#[test]
fn tags_are_stripped_when_asked_and_stand_in_the_descriptor() {
    let rig = Rig::honest();
    rig.enable_rx(0, 64, 0);
    post_all(&rig, 0, 2);
    let mut tagged = frame(7, 80);
    tagged[12..18].copy_from_slice(&[0x81, 0, 0x21, 0x23, 0x88, 0xb5]);
    rig.far.transmit(&tagged).unwrap();
    rig.igb.run_until_idle();
    rig.registers.write(CTRL, ctrl::SET_LINK_UP | others::ctrl::VLAN_MODE);
    rig.far.transmit(&tagged).unwrap();
    rig.igb.run_until_idle();
    let words = [0, 1].map(|slot| rig.rx_words(0, slot)[1]);
    assert_eq!(words.map(|word| word >> rx::VLAN_SHIFT), [0, 0x2123]);
    assert_eq!(words.map(|word| word >> rx::LENGTH_SHIFT & 0xffff), [80, 76]);
    assert_eq!(words[1] & 8, 8);
    assert_eq!(rig.bytes(rig.buffer(1), 14), [&tagged[..12], &[0x88, 0xb5]].concat());
}
