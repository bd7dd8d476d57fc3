//! Registers of the Intel 82576 that this driver uses (82576 datasheet, revision 2.63, chapter 8). I210 and I350 have the same
//! ones at the same offsets. Values are little-endian 32-bit words in BAR0.

#![allow(missing_docs)]

use pollring::register_table;

/// Size of BAR 0 (9.4.11).
pub(super) const BAR_BYTES: usize = 128 << 10;

register_table! {
    CTRL = 0x0_0000, ReadWrite, "device control", "8.2.1";
    STATUS = 0x0_0008, ReadOnly, "device status", "8.2.2";
    CTRL_EXT = 0x0_0018, ReadWrite, "extended device control", "8.2.3";
    MDIC = 0x0_0020, ReadWrite, "PHY access", "8.2.4";
    EECD = 0x0_0010, ReadWrite, "NVM control", "8.4.1";
    EERD = 0x0_0014, ReadWrite, "NVM read", "8.4.2";
    // Also at 0x1500 and 0x150c (8.1); QEMU's model has them only here.
    ICR = 0x0_00c0, ReadClears, "interrupt causes", "8.8.8";
    IMC = 0x0_00d8, WriteOnly, "interrupt mask clear", "8.8.11";
    EIMC = 0x0_1528, WriteOnly, "extended interrupt mask clear", "8.8.4";
    RCTL = 0x0_0100, ReadWrite, "receive control", "8.10.1";
    RXPBS = 0x0_2404, ReadWrite, "receive packet buffer size, KiB", "8.3.1";
    TCTL = 0x0_0400, ReadWrite, "transmit control", "8.12.1";
    RXCSUM = 0x0_5000, ReadWrite, "receive checksum control", "8.10.14";
    RLPML = 0x0_5004, ReadWrite, "longest packet that is received, bytes", "8.10.15";
    MRQC = 0x0_5818, ReadWrite, "multiple receive queues", "8.10.18";
    RSSRK = 0x0_5c80 [10; 4], ReadWrite, "RSS key", "8.10.20";
    RETA = 0x0_5c00 [32; 4], ReadWrite, "RSS redirection table, four entries a word", "8.10.19";
    MTA = 0x0_5200 [128; 4], ReadWrite, "multicast hash table", "8.10.16";
    RAL = 0x0_5400 [16; 8], ReadWrite, "receive address, low four bytes", "8.10.17";
    RAH = 0x0_5404 [16; 8], ReadWrite, "receive address, high two bytes and valid bit", "8.10.17";

    RDBAL = 0x0_c000 [16; 0x40], ReadWrite, "receive ring base, low", "8.10.5";
    RDBAH = 0x0_c004 [16; 0x40], ReadWrite, "receive ring base, high", "8.10.6";
    RDLEN = 0x0_c008 [16; 0x40], ReadWrite, "receive ring length, bytes", "8.10.7";
    SRRCTL = 0x0_c00c [16; 0x40], ReadWrite, "receive buffer size and descriptor type", "8.10.2";
    RDH = 0x0_c010 [16; 0x40], ReadWrite, "receive head", "8.10.8";
    RDT = 0x0_c018 [16; 0x40], ReadWrite, "receive tail", "8.10.9";
    RXDCTL = 0x0_c028 [16; 0x40], ReadWrite, "receive queue control", "8.10.10";
    RQDPC = 0x0_c030 [16; 0x40], ReadClears, "frames that found no buffer in their queue", "8.10.11";

    TDBAL = 0x0_e000 [16; 0x40], ReadWrite, "transmit ring base, low", "8.12.6";
    TDBAH = 0x0_e004 [16; 0x40], ReadWrite, "transmit ring base, high", "8.12.7";
    TDLEN = 0x0_e008 [16; 0x40], ReadWrite, "transmit ring length, bytes", "8.12.8";
    TDH = 0x0_e010 [16; 0x40], ReadWrite, "transmit head", "8.12.9";
    TDT = 0x0_e018 [16; 0x40], ReadWrite, "transmit tail", "8.12.10";
    TXDCTL = 0x0_e028 [16; 0x40], ReadWrite, "transmit queue control", "8.12.11";

    CRCERRS = 0x0_4000, ReadClears, "frames with a bad CRC", "8.18";
    RXERRC = 0x0_400c, ReadClears, "frames with a PHY error", "8.18";
    MPC = 0x0_4010, ReadClears, "frames that the packet buffer could not take", "8.18";
    RLEC = 0x0_4040, ReadClears, "frames with a length error", "8.18";
    GPRC = 0x0_4074, ReadClears, "good frames received", "8.18";
    BPRC = 0x0_4078, ReadClears, "broadcasts received", "8.18";
    MPRC = 0x0_407c, ReadClears, "multicasts received", "8.18";
    GPTC = 0x0_4080, ReadClears, "good frames sent", "8.18";
    GORCL = 0x0_4088, ReadClears, "good octets received, low; reading the high half clears both", "8.18";
    GORCH = 0x0_408c, ReadClears, "good octets received, high", "8.18";
    GOTCL = 0x0_4090, ReadClears, "good octets sent, low; reading the high half clears both", "8.18";
    GOTCH = 0x0_4094, ReadClears, "good octets sent, high", "8.18";
    RNBC = 0x0_40a0, ReadClears, "times that no receive buffer was there", "8.18";
    RUC = 0x0_40a4, ReadClears, "frames that were too short", "8.18";
    ROC = 0x0_40ac, ReadClears, "frames that were too long", "8.18";
    TPR = 0x0_40d0, ReadClears, "frames received, good and bad", "8.18";
    TPT = 0x0_40d4, ReadClears, "frames sent", "8.18";
}

/// Bits of [`CTRL`].
pub mod ctrl {
    pub const FULL_DUPLEX: u32 = 1 << 0;
    pub const MASTER_DISABLE: u32 = 1 << 2;
    pub const SET_LINK_UP: u32 = 1 << 6;
    pub const RESET: u32 = 1 << 26;
}

/// Bits of [`STATUS`].
pub mod status {
    pub const FULL_DUPLEX: u32 = 1 << 0;
    pub const LINK_UP: u32 = 1 << 1;
    pub const SPEED_SHIFT: u32 = 6;
    pub const MASTER_ENABLED: u32 = 1 << 19;
    pub const RESET_DONE: u32 = 1 << 21;
}

/// Bits of [`MDIC`], and the PHY registers behind it (IEEE 802.3 clause 22).
pub mod mdic {
    pub const REGISTER_SHIFT: u32 = 16;
    pub const PHY_SHIFT: u32 = 21;
    pub const WRITE: u32 = 1 << 26;
    pub const READ: u32 = 2 << 26;
    pub const READY: u32 = 1 << 28;
    pub const ERROR: u32 = 1 << 30;
    pub const BMCR: u32 = 0;
    pub const BMSR: u32 = 1;
    pub const BMCR_AUTONEG: u32 = 1 << 12;
    pub const BMCR_RESTART_AUTONEG: u32 = 1 << 9;
    pub const BMSR_AUTONEG_DONE: u32 = 1 << 5;
    pub const BMSR_LINK: u32 = 1 << 2;
}

/// Bits of [`EERD`].
pub mod eerd {
    pub const START: u32 = 1 << 0;
    pub const DONE: u32 = 1 << 1;
    pub const ADDRESS_SHIFT: u32 = 2;
    pub const DATA_SHIFT: u32 = 16;
}

/// Bits of [`ICR`].
pub mod icr {
    pub const LINK_CHANGE: u32 = 1 << 2;
    pub const RX_OVERRUN: u32 = 1 << 6;
}

/// Bits of [`RCTL`].
pub mod rctl {
    pub const ENABLE: u32 = 1 << 1;
    pub const UNICAST_PROMISCUOUS: u32 = 1 << 3;
    pub const MULTICAST_PROMISCUOUS: u32 = 1 << 4;
    pub const LONG_PACKETS: u32 = 1 << 5;
    pub const BROADCAST: u32 = 1 << 15;
    pub const STRIP_CRC: u32 = 1 << 26;
}

/// Bits of [`TCTL`].
pub mod tctl {
    pub const ENABLE: u32 = 1 << 1;
    pub const PAD_SHORT: u32 = 1 << 3;
    pub const COLLISION_THRESHOLD: u32 = 0x0f << 4;
    pub const RETRANSMIT_LATE_COLLISION: u32 = 1 << 24;
}

/// Bits of [`RXDCTL`] and [`TXDCTL`].
pub mod dctl {
    pub const ENABLE: u32 = 1 << 25;
    pub const PREFETCH_SHIFT: u32 = 0;
    pub const HOST_SHIFT: u32 = 8;
    pub const WRITE_BACK_SHIFT: u32 = 16;
}

/// Bits of [`SRRCTL`].
pub mod srrctl {
    pub const BUFFER_KIB_MASK: u32 = 0x7f;
    pub const ADVANCED_ONE_BUFFER: u32 = 1 << 25;
    pub const DROP_ENABLE: u32 = 1 << 31;
}

/// Bits of [`MRQC`].
pub mod mrqc {
    pub const RSS: u32 = 2;
    pub const HASH_TCP_IPV4: u32 = 1 << 16;
    pub const HASH_IPV4: u32 = 1 << 17;
    pub const HASH_IPV6: u32 = 1 << 20;
    pub const HASH_TCP_IPV6: u32 = 1 << 21;
    pub const HASH_UDP_IPV4: u32 = 1 << 22;
    pub const HASH_UDP_IPV6: u32 = 1 << 23;
}

/// Bits of [`RAH`].
pub mod rah {
    pub const VALID: u32 = 1 << 31;
}
