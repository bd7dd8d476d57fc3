//! Transmit rings: order, wrap, write-backs, broken rules, faults.

use super::super::offload::bits;
use super::*;

#[test]
fn rings_wrap_and_only_asked_descriptors_are_written_back() {
    let rig = Rig::honest();
    rig.enable_tx(0, 8);
    let mut tail = 0;
    for round in 0..50u8 {
        for at in 0..7 {
            let report = if at == 6 { tx::REPORT_STATUS } else { 0 };
            rig.describe(0, tail, tail, &frame(round * 5 + at, 61), Rig::whole(61, report));
            tail = (tail + 1) % 8;
        }
        rig.registers.write_at(TDT, 0, tail as u32);
        assert_eq!(rig.igb.run_until_idle(), 7);
        assert_eq!(rig.registers.read_at(TDH, 0), tail as u32);
        let marks: Vec<u8> = rig.sent().iter().map(|frame| frame[60]).collect();
        assert_eq!(marks, (0..7).map(|at| round * 5 + at).collect::<Vec<_>>());
        for back in 1..=7 {
            let words = rig.tx_words(0, (tail + 8 - back) % 8);
            assert_eq!(words[1] & tx::DONE != 0, back == 1);
        }
    }
    assert_eq!(rig.igb.violations(), 0);
    assert_eq!(rig.registers.read(GPTC), 350);
}

#[test]
fn a_frame_may_have_several_descriptors_and_come_in_pieces() {
    let rig = Rig::honest();
    rig.enable_tx(0, 64);
    let whole = frame(7, 300);
    let first = tx::DATA | tx::INSERT_CRC | 300 << tx::PAYLOAD_SHIFT;
    rig.describe(0, 0, 0, &whole[..14], first);
    rig.describe(0, 1, 1, &whole[14..100], first);
    rig.registers.write_at(TDT, 0, 2);
    rig.igb.run_until_idle();
    assert_eq!((rig.sent().len(), rig.registers.read_at(TDH, 0)), (0, 2));
    rig.describe(0, 2, 2, &whole[100..], first | tx::END_OF_PACKET | tx::REPORT_STATUS);
    rig.registers.write_at(TDT, 0, 3);
    rig.igb.run_until_idle();
    assert_eq!(rig.sent(), [whole]);
    assert_eq!(rig.tx_words(0, 2), [0, tx::DONE]);
}

#[test]
fn short_frames_are_padded_when_asked() {
    let rig = Rig::honest();
    rig.enable_tx(0, 64);
    rig.describe(0, 0, 0, &frame(7, 20), Rig::whole(20, 0));
    rig.describe(0, 1, 1, &frame(7, 20), Rig::whole(20, 0));
    rig.registers.write_at(TDT, 0, 1);
    rig.igb.run_until_idle();
    rig.registers.write(TCTL, tctl::ENABLE);
    rig.registers.write_at(TDT, 0, 2);
    rig.igb.run_until_idle();
    let sent = rig.sent();
    assert_eq!((sent[0].len(), sent[1].len()), (60, 20));
    assert!(sent[0][20..].iter().all(|byte| *byte == 0));
}

#[test]
fn broken_rules_are_counted_and_the_ring_goes_on() {
    let rig = Rig::honest();
    rig.enable_tx(0, 64);
    let good = Rig::whole(60, tx::REPORT_STATUS);
    let cases = [
        (good & !tx::DATA, Violation::TransmitFormat),
        (good & !tx::INSERT_CRC, Violation::NoInsertCrc),
        (good + (1 << tx::PAYLOAD_SHIFT), Violation::PayloadLength),
    ];
    for (slot, (command, _)) in cases.iter().enumerate() {
        rig.describe(0, slot, slot, &frame(1, 60), *command);
    }
    rig.describe(0, 3, 3, &[], good);
    for slot in 4..14 {
        let end = if slot == 13 { tx::END_OF_PACKET } else { 0 };
        rig.describe(0, slot, 4, &[0; BUFFER_BYTES], tx::DATA | tx::INSERT_CRC | end);
    }
    rig.describe(0, 14, 5, &frame(9, 60), good);
    rig.registers.write_at(TDT, 0, 15);
    rig.igb.run_until_idle();
    assert_eq!(rig.sent(), [frame(9, 60)]);
    let kinds: Vec<Violation> = rig.igb.violation_counts().into_iter().map(|(kind, _)| kind).collect();
    for kind in [cases[0].1, cases[1].1, cases[2].1, Violation::EmptyBuffer, Violation::FrameTooLong] {
        assert!(kinds.contains(&kind), "{kind:?}");
    }
    assert!((0..4).all(|slot| rig.tx_words(0, slot) == [0, tx::DONE]));
    assert_eq!(rig.igb.counters().frames_not_sent, 5);
}

#[test]
fn a_tail_outside_the_ring_is_ignored_and_counted_once() {
    let rig = Rig::honest();
    rig.enable_tx(0, 64);
    rig.describe(0, 0, 0, &frame(1, 60), Rig::whole(60, 0));
    rig.registers.write_at(TDT, 0, 64);
    rig.igb.run_until_idle();
    rig.igb.run_until_idle();
    assert_eq!(rig.registers.read_at(TDH, 0), 0);
    rig.registers.write_at(TDT, 0, 1);
    rig.igb.run_until_idle();
    assert_eq!((rig.sent().len(), rig.igb.violation_counts()), (1, vec![(Violation::TailOutsideRing, 1)]));
}

#[test]
fn faults_lose_the_frame_and_nothing_else() {
    let rig = Rig::honest();
    rig.enable_tx(0, 64);
    rig.describe(0, 0, 0, &frame(1, 60), Rig::whole(60, 0));
    rig.write_words(rig.tx_ring(0), [0xdead_0000, Rig::whole(60, tx::REPORT_STATUS) | 60]);
    rig.describe(0, 1, 1, &frame(2, 60), Rig::whole(60, 0));
    rig.registers.write_at(TDT, 0, 2);
    rig.igb.run_until_idle();
    assert_eq!(rig.sent(), [frame(2, 60)]);
    assert_eq!((rig.igb.dma_faults(), rig.igb.counters().frames_not_sent), (1, 1));
    assert_eq!(rig.tx_words(0, 0), [0, tx::DONE]);
    // A ring that is not mapped: its descriptors are passed over.
    rig.registers.write_at(TDBAL, 1, 0x1000);
    rig.registers.write_at(TDLEN, 1, 1024);
    rig.registers.write_at(TXDCTL, 1, dctl::ENABLE);
    rig.registers.write_at(TDT, 1, 10);
    rig.igb.run_until_idle();
    assert_eq!((rig.registers.read_at(TDH, 1), rig.igb.dma_faults()), (10, 2));
}

#[test]
fn all_queues_are_served_within_the_budget() {
    let rig = Rig::honest();
    for queue in 0..16 {
        rig.enable_tx(queue, 64);
        for slot in 0..4 {
            rig.describe(queue, slot, queue, &frame(queue as u8, 60), Rig::whole(60, 0));
        }
        rig.registers.write_at(TDT, queue, 4);
    }
    assert_eq!(rig.igb.step(6), 6);
    rig.igb.run_until_idle();
    let mut marks: Vec<u8> = rig.sent().iter().map(|frame| frame[30]).collect();
    marks.sort_unstable();
    assert_eq!(marks, (0..64).map(|at| at / 4).collect::<Vec<u8>>());
}

/// A context for TCP over IPv4 behind 14 bytes, as context 1, with a tag of 5 and segments of 100 bytes.
const CONTEXT: [u64; 2] =
    [5 << 16 | 14 << 9 | 20, bits::CONTEXT | bits::IS_IPV4 | 1 << 11 | 1 << 36 | 20 << 40 | 100 << 48];

/// Ethernet, IPv4 and TCP headers before `payload` bytes.
fn tcp(payload: usize) -> Vec<u8> {
    let mut packet = frame(3, 54 + payload);
    packet[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    packet[16..18].copy_from_slice(&(40 + payload as u16).to_be_bytes());
    packet[23] = 6;
    packet
}

#[test]
fn a_context_counts_for_the_packets_that_name_it() {
    let rig = Rig::honest();
    rig.enable_tx(0, 64);
    rig.write_words(rig.tx_ring(0), CONTEXT);
    let packet = tcp(250);
    let segmented = bits::SEGMENT | bits::INSERT_VLAN | bits::INSERT_TRANSPORT | 1 << 36;
    rig.describe(0, 1, 1, &packet, Rig::whole(250, segmented | tx::REPORT_STATUS));
    rig.describe(0, 2, 2, &packet, Rig::whole(packet.len(), bits::INSERT_TRANSPORT | 1 << 36));
    rig.describe(0, 3, 3, &packet, Rig::whole(packet.len(), bits::INSERT_TRANSPORT));
    rig.describe(0, 4, 4, &packet, Rig::whole(packet.len(), segmented));
    rig.describe(0, 5, 5, &frame(9, 60), Rig::whole(60, tx::REPORT_STATUS));
    rig.registers.write_at(TDT, 0, 6);
    rig.igb.run_until_idle();
    let sent = rig.sent();
    assert_eq!(sent.iter().map(Vec::len).collect::<Vec<_>>(), [158, 158, 108, 304, 60]);
    assert_eq!(sent[2][12..18], [0x81, 0, 0, 5, 8, 0]);
    assert_eq!(sent[3][..50], packet[..50]);
    assert_ne!(sent[3][50..52], packet[50..52]);
    let wrong = [(Violation::PayloadLength, 1), (Violation::NoContext, 1)];
    assert_eq!(rig.igb.violation_counts(), wrong);
    assert_eq!([1, 5].map(|slot| rig.tx_words(0, slot)), [[0, tx::DONE]; 2]);
    assert_eq!(rig.tx_words(0, 0), CONTEXT);
}
