//! Late write-backs: their order, and what ends them.

use super::*;

/// Steps at which each of 60 receive and transmit slots was done.
fn trace(seed: u64) -> [Vec<usize>; 2] {
    let rig = Rig::new(|config| {
        config.timing = Timing::Delayed { longest: 20 };
        config.seed = seed;
    });
    rig.enable_rx(0, 64, 0);
    rig.enable_tx(0, 64);
    for slot in 0..60 {
        rig.post(0, slot, slot);
        rig.far.transmit(&frame(slot as u8, 60)).unwrap();
        rig.describe(0, slot, 100 + slot, &frame(slot as u8, 60), Rig::whole(60, tx::REPORT_STATUS));
    }
    rig.registers.write_at(RDT, 0, 60);
    rig.registers.write_at(TDT, 0, 60);
    let mut done = [vec![0; 60], vec![0; 60]];
    let mut heads_ahead = false;
    for step in 1..=200 {
        rig.igb.step(4);
        let [rx_done, tx_done] = &mut done;
        for (slot, (rx_done, tx_done)) in rx_done.iter_mut().zip(tx_done).enumerate() {
            if *rx_done == 0 && rig.rx_words(0, slot)[1] & rx::DONE != 0 {
                assert_eq!(rig.bytes(rig.buffer(slot), 60), frame(slot as u8, 60));
                *rx_done = step;
            }
            if *tx_done == 0 && rig.tx_words(0, slot)[1] & tx::DONE != 0 {
                *tx_done = step;
            }
        }
        let head = rig.registers.read_at(RDH, 0) as usize;
        heads_ahead |= done[0][..head].contains(&0);
    }
    assert!(heads_ahead);
    assert_eq!(rig.igb.queued(), 0);
    done
}

#[test]
fn delays_keep_each_rings_order_and_repeat_with_the_seed() {
    let [rx, tx] = trace(1);
    for done in [&rx, &tx] {
        assert!(done.is_sorted() && !done.contains(&0), "{done:?}");
    }
    assert_ne!(rx, tx);
    assert_eq!([rx.clone(), tx], trace(1));
    assert_ne!(rx, trace(2)[0]);
}

#[test]
fn what_is_late_does_not_outlive_queue_gate_or_reset() {
    for end in 0..3 {
        let rig = Rig::new(|config| config.timing = Timing::Delayed { longest: 1000 });
        rig.enable_tx(0, 64);
        rig.describe(0, 0, 0, &frame(1, 60), Rig::whole(60, tx::REPORT_STATUS));
        rig.registers.write_at(TDT, 0, 1);
        rig.igb.step(1);
        assert_eq!(rig.igb.queued(), 1);
        match end {
            0 => rig.registers.write_at(TXDCTL, 0, 0),
            1 => rig.registers.write(CTRL, ctrl::RESET),
            _ => rig.device.stop_dma(),
        }
        rig.igb.run_until_idle();
        assert_eq!(rig.tx_words(0, 0)[1] & tx::DONE, 0);
    }
}
