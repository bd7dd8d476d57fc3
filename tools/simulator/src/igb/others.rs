//! Registers of the 82576 that drivers other than ours use (82576 datasheet, revision 2.63; sections to two digits).
//!
//! Together with the table that our driver shares they are all that the model knows. Most of them only keep what was written: the
//! sections that they belong to (virtual functions, wake-up, time stamps, management, SerDes) are not modelled. Early members of the
//! family have some registers at other offsets, where stock drivers still reach for them; [`canonical`] says which ones those are.

#![allow(missing_docs)]

use pollring::register_table;

register_table! {
    FLA = 0x0_001c, ReadWrite, "flash access", "8.4";
    SCTL = 0x0_0024, ReadWrite, "SerDes control", "8.2";
    FCAL = 0x0_0028, ReadWrite, "flow control address, low", "8.2";
    FCAH = 0x0_002c, ReadWrite, "flow control address, high", "8.2";
    FCT = 0x0_0030, ReadWrite, "flow control type", "8.2";
    CONNSW = 0x0_0034, ReadWrite, "copper or fiber", "8.2";
    VET = 0x0_0038, ReadWrite, "VLAN ethertype", "8.2";
    FCTTV = 0x0_0170, ReadWrite, "pause time", "8.2";
    TCTL_EXT = 0x0_0404, ReadWrite, "extended transmit control", "8.12";
    TIPG = 0x0_0410, ReadWrite, "gap between frames", "8.12";
    AIT = 0x0_0458, ReadWrite, "adaptive gap", "8.12";
    VMBMEM = 0x0_0800 [128; 4], ReadWrite, "mailbox memory", "8.14";
    P2VMAILBOX = 0x0_0c00 [8; 4], ReadWrite, "mailbox to a virtual function", "8.14";
    MBVFICR = 0x0_0c80, WriteOneClears, "mailbox causes", "8.14";
    MBVFIMR = 0x0_0c84, ReadWrite, "mailbox mask", "8.14";
    VFLRE = 0x0_0c88, WriteOneClears, "resets of virtual functions", "8.14";
    VFRE = 0x0_0c8c, ReadWrite, "receive of virtual functions", "8.14";
    VFTE = 0x0_0c90, ReadWrite, "transmit of virtual functions", "8.14";
    LEDCTL = 0x0_0e00, ReadWrite, "LEDs", "8.2";
    MDICNFG = 0x0_0e04, ReadWrite, "MDIO configuration", "8.2";
    PBA = 0x0_1000, ReadWrite, "packet buffer allocation", "8.3";
    PBS = 0x0_1008, ReadWrite, "packet buffer size", "8.3";
    EEMNGCTL = 0x0_1010, ReadOnly, "NVM of management: configuration is done", "8.4";
    I2CCMD = 0x0_1028, ReadWrite, "I2C command", "8.17";
    I2CPARAMS = 0x0_102c, ReadWrite, "I2C parameters", "8.17";
    FRTIMER = 0x0_1048, ReadWrite, "free running timer", "8.16";
    TCPTIMER = 0x0_104c, ReadWrite, "TCP timer", "8.16";

    ICS = 0x0_1504, WriteOnly, "interrupt cause set", "8.8";
    IMS = 0x0_1508, ReadWrite, "interrupt mask set", "8.8";
    IAM = 0x0_1510, ReadWrite, "interrupt auto mask", "8.8";
    GPIE = 0x0_1514, ReadWrite, "general purpose interrupt enable", "8.8";
    EICS = 0x0_1520, WriteOnly, "extended interrupt cause set", "8.8";
    EIMS = 0x0_1524, ReadWrite, "extended interrupt mask set", "8.8";
    EIAC = 0x0_152c, ReadWrite, "extended interrupt auto clear", "8.8";
    EIAM = 0x0_1530, ReadWrite, "extended interrupt auto mask", "8.8";
    EICR = 0x0_1580, ReadClears, "extended interrupt causes", "8.8";
    MSIXBM = 0x0_1600 [32; 4], ReadWrite, "vector bit maps of the 82575", "8.8";
    EITR = 0x0_1680 [25; 4], ReadWrite, "interrupt throttle", "8.8";
    IVAR = 0x0_1700 [8; 4], ReadWrite, "vectors of queues", "8.8";
    IVAR_MISC = 0x0_1740, ReadWrite, "vectors of other causes", "8.8";
    PBACLR = 0x0_5b68, WriteOnly, "pending vectors clear", "8.8";

    FCRTL = 0x0_2160, ReadWrite, "pause threshold, low", "8.2";
    FCRTH = 0x0_2168, ReadWrite, "pause threshold, high", "8.2";
    FCRTC = 0x0_2170, ReadWrite, "pause threshold, coalescing", "8.2";
    QDE = 0x0_2408, ReadWrite, "queues that drop", "8.10";
    FCRTV = 0x0_2460, ReadWrite, "pause refresh", "8.2";
    FCSTS = 0x0_2464, ReadOnly, "pause status", "8.2";
    TXPBS = 0x0_3404, ReadWrite, "transmit packet buffer size, KiB", "8.3";
    TDFIFO = 0x0_3410 [12; 4], ReadWrite, "transmit packet buffer pointers", "8.3";
    DTXSWC = 0x0_3500, ReadWrite, "loopback between virtual functions", "8.14";
    LVMMC = 0x0_3548, ReadClears, "misbehaviour of virtual functions", "8.14";
    WVBR = 0x0_3554, ReadClears, "wrong behaviour of virtual functions", "8.14";
    DTXMXPKTSZ = 0x0_355c, ReadWrite, "longest packet that is sent", "8.12";
    DTXTCPFLGL = 0x0_359c, ReadWrite, "TCP flags of the first and middle segments", "8.12";
    DTXTCPFLGH = 0x0_35a0, ReadWrite, "TCP flags of the last segment", "8.12";
    DTXCTL = 0x0_3590, ReadWrite, "transmit DMA control", "8.12";
    VMVIR = 0x0_3700 [8; 4], ReadWrite, "VLANs inserted for virtual functions", "8.14";

    ALGNERRC = 0x0_4004, ReadClears, "frames with bad alignment", "8.18";
    SYMERRS = 0x0_4008, ReadClears, "bad symbols", "8.18";
    SCC = 0x0_4014, ReadClears, "single collisions", "8.18";
    ECOL = 0x0_4018, ReadClears, "excessive collisions", "8.18";
    MCC = 0x0_401c, ReadClears, "multiple collisions", "8.18";
    LATECOL = 0x0_4020, ReadClears, "late collisions", "8.18";
    COLC = 0x0_4028, ReadClears, "collisions", "8.18";
    CBTMPC = 0x0_402c, ReadClears, "management frames sent", "8.18";
    DC = 0x0_4030, ReadClears, "deferred frames", "8.18";
    TNCRS = 0x0_4034, ReadClears, "frames without carrier", "8.18";
    SEC = 0x0_4038, ReadClears, "sequence errors", "8.18";
    HTDPMC = 0x0_403c, ReadClears, "frames of the host discarded", "8.18";
    XONRXC = 0x0_4048, ReadClears, "XON received", "8.18";
    XONTXC = 0x0_404c, ReadClears, "XON sent", "8.18";
    XOFFRXC = 0x0_4050, ReadClears, "XOFF received", "8.18";
    XOFFTXC = 0x0_4054, ReadClears, "XOFF sent", "8.18";
    FCRUC = 0x0_4058, ReadClears, "other flow control frames received", "8.18";
    PRC = 0x0_405c [6; 4], ReadClears, "good frames received, by length", "8.18";
    RFC = 0x0_40a8, ReadClears, "short frames with a bad CRC", "8.18";
    RJC = 0x0_40b0, ReadClears, "long frames with a bad CRC", "8.18";
    MGTPRC = 0x0_40b4, ReadClears, "management frames received", "8.18";
    MGTPDC = 0x0_40b8, ReadClears, "management frames dropped", "8.18";
    MGTPTC = 0x0_40bc, ReadClears, "management frames sent", "8.18";
    TORL = 0x0_40c0, ReadClears, "all octets received, low", "8.18";
    TORH = 0x0_40c4, ReadClears, "all octets received, high", "8.18";
    TOTL = 0x0_40c8, ReadClears, "all octets sent, low", "8.18";
    TOTH = 0x0_40cc, ReadClears, "all octets sent, high", "8.18";
    PTC = 0x0_40d8 [6; 4], ReadClears, "frames sent, by length", "8.18";
    MPTC = 0x0_40f0, ReadClears, "multicasts sent", "8.18";
    BPTC = 0x0_40f4, ReadClears, "broadcasts sent", "8.18";
    TSCTC = 0x0_40f8, ReadClears, "packets that were segmented", "8.18";
    CBRMPC = 0x0_40fc, ReadClears, "management frames received", "8.18";
    IAC = 0x0_4100, ReadClears, "interrupts asserted", "8.18";
    RPTHC = 0x0_4104, ReadClears, "frames to the host", "8.18";
    STATISTICS_HOST = 0x0_4108 [9; 4], ReadClears, "counters of the host interface", "8.18";
    HGORCL = 0x0_4128, ReadClears, "good octets to the host, low", "8.18";
    HGORCH = 0x0_412c, ReadClears, "good octets to the host, high", "8.18";
    HGOTCL = 0x0_4130, ReadClears, "good octets of the host, low", "8.18";
    HGOTCH = 0x0_4134, ReadClears, "good octets of the host, high", "8.18";
    LENERRS = 0x0_4138, ReadClears, "length errors", "8.18";
    STATISTICS_BMC = 0x0_413c [12; 4], ReadClears, "counters of management", "8.18";
    PCS_CFG = 0x0_4200, ReadWrite, "SerDes configuration", "8.17";
    PCS_LCTL = 0x0_4208, ReadWrite, "SerDes link control", "8.17";
    PCS_LSTAT = 0x0_420c, ReadOnly, "SerDes link status", "8.17";
    PCS_AN = 0x0_4210 [6; 4], ReadWrite, "SerDes negotiation", "8.17";
    SCVPC = 0x0_4228, ReadClears, "SerDes code violations", "8.18";

    RFCTL = 0x0_5008, ReadWrite, "receive filter control", "8.10";
    RA_HIGH = 0x0_54e0 [16; 4], ReadWrite, "receive addresses 16 to 23", "8.10";
    PSRTYPE = 0x0_5480 [8; 4], ReadWrite, "header split types", "8.10";
    VLAPQF = 0x0_55b0, ReadWrite, "VLAN priority to queue", "8.10";
    SYNQF = 0x0_55fc, ReadWrite, "SYN filter", "8.11";
    VFTA = 0x0_5600 [128; 4], ReadWrite, "VLAN filter table", "8.10";
    WUC = 0x0_5800, ReadWrite, "wake-up control", "8.19";
    WUFC = 0x0_5808, ReadWrite, "wake-up filters", "8.19";
    WUS = 0x0_5810, WriteOneClears, "wake-up status", "8.19";
    VT_CTL = 0x0_581c, ReadWrite, "virtual machines", "8.14";
    MANC = 0x0_5820, ReadWrite, "management control", "8.20";
    IPAV = 0x0_5838, ReadWrite, "IP addresses valid", "8.19";
    IP4AT = 0x0_5840 [8; 4], ReadWrite, "IPv4 addresses", "8.19";
    MANC2H = 0x0_5860, ReadWrite, "management to host", "8.20";
    IP6AT = 0x0_5880 [4; 4], ReadWrite, "IPv6 addresses", "8.19";
    WUPL = 0x0_5900, ReadOnly, "wake-up packet length", "8.19";
    SAQF = 0x0_5980 [8; 4], ReadWrite, "five-tuple source", "8.11";
    DAQF = 0x0_59a0 [8; 4], ReadWrite, "five-tuple destination", "8.11";
    SPQF = 0x0_59c0 [8; 4], ReadWrite, "five-tuple ports", "8.11";
    FTQF = 0x0_59e0 [8; 4], ReadWrite, "five-tuple queue", "8.11";
    WUPM = 0x0_5a00 [32; 4], ReadWrite, "wake-up packet", "8.19";
    IMIR = 0x0_5a80 [8; 4], ReadWrite, "immediate interrupt", "8.10";
    IMIREXT = 0x0_5aa0 [8; 4], ReadWrite, "immediate interrupt, extended", "8.10";
    IMIRVP = 0x0_5ac0, ReadWrite, "immediate interrupt by priority", "8.10";
    TXSWC = 0x0_5acc, ReadWrite, "switch control", "8.14";
    VMOLR = 0x0_5ad0 [8; 4], ReadWrite, "offloads of virtual machines", "8.14";
    RPLOLR = 0x0_5af0, ReadWrite, "offloads of replicas", "8.14";
    GCR = 0x0_5b00, ReadWrite, "PCIe control", "8.6";
    GSC = 0x0_5b10 [8; 4], ReadWrite, "PCIe counters", "8.6";
    FACTPS = 0x0_5b30, ReadOnly, "active functions and power", "8.6";
    GIOANACTL = 0x0_5b34 [6; 4], ReadWrite, "PCIe analog", "8.6";
    SWSM = 0x0_5b50, ReadWrite, "software semaphore", "8.6";
    FWSM = 0x0_5b54, ReadOnly, "firmware semaphore", "8.6";
    SW_FW_SYNC = 0x0_5b5c, ReadWrite, "software and firmware synchronisation", "8.6";
    DCA_CTRL = 0x0_5b74, ReadWrite, "direct cache access", "8.13";
    PCIEMISC = 0x0_5bb8, ReadWrite, "PCIe miscellany", "8.6";
    IOVTCL = 0x0_5bbc, ReadWrite, "virtual functions control", "8.14";
    ETQF = 0x0_5cb0 [8; 4], ReadWrite, "ethertype filters", "8.11";
    VLVF = 0x0_5d00 [32; 4], ReadWrite, "VLANs of virtual machines", "8.14";
    FFLT = 0x0_5f00 [12; 4], ReadWrite, "flexible filter lengths", "8.19";
    TSYNCRXCFG = 0x0_5f50, ReadWrite, "time stamps of received frames", "8.16";
    FFMT = 0x0_9000 [256; 4], ReadWrite, "flexible filter masks", "8.19";
    FFVT = 0x0_9800 [256; 4], ReadWrite, "flexible filter values", "8.19";
    UTA = 0x0_a000 [128; 4], ReadWrite, "unicast hash table", "8.10";
    SYSTIM = 0x0_b600 [2; 4], ReadWrite, "system time", "8.16";
    TIMINCA = 0x0_b608, ReadWrite, "system time increment", "8.16";
    TIMADJ = 0x0_b60c [2; 4], ReadWrite, "system time adjustment", "8.16";
    TSYNCTXCTL = 0x0_b614, ReadWrite, "time stamps of sent frames", "8.16";
    TXSTMP = 0x0_b618 [2; 4], ReadOnly, "time stamp of a sent frame", "8.16";
    TSYNCRXCTL = 0x0_b620, ReadWrite, "time stamps of received frames", "8.16";
    RXSTMP = 0x0_b624 [4; 4], ReadOnly, "time stamp of a received frame", "8.16";
    TSAUXC = 0x0_b640, ReadWrite, "auxiliary time functions", "8.16";
    TSAUX = 0x0_b644 [16; 4], ReadWrite, "target times and auxiliary stamps", "8.16";
    SYSTIMR = 0x0_b6f8, ReadOnly, "system time residue", "8.16";

    RXCTL = 0x0_c014 [16; 0x40], ReadWrite, "direct cache access of receive queues", "8.13";
    DVMOLR = 0x0_c038 [16; 0x40], ReadWrite, "offloads of receive queues", "8.14";
    TXCTL = 0x0_e014 [16; 0x40], ReadWrite, "direct cache access of transmit queues", "8.13";
    TDWBAL = 0x0_e038 [16; 0x40], ReadWrite, "head write-back address, low", "8.12";
    TDWBAH = 0x0_e03c [16; 0x40], ReadWrite, "head write-back address, high", "8.12";
    PVF_STATISTICS = 0x1_0010 [1020; 4], ReadOnly, "counters of virtual functions", "8.18";
}

/// Bits of [`GPIE`] (8.8).
pub(super) mod gpie {
    pub(crate) const MULTIPLE_MSIX: u32 = 1 << 4;
    pub(crate) const AUTO_MASK: u32 = 1 << 30;
}

/// Bits of CTRL that our driver leaves alone (8.2).
pub(super) mod ctrl {
    pub(crate) const VLAN_MODE: u32 = 1 << 30;
    pub(crate) const PHY_RESET: u32 = 1 << 31;
}

/// CTRL_EXT: the mask is cleared with the causes that are read (8.2).
pub(super) const CTRL_EXT_AUTO_MASK: u32 = 1 << 27;

/// Bits of ICR that our driver leaves alone (8.8).
pub(super) mod icr {
    pub(crate) const TX_WRITTEN_BACK: u32 = 1 << 0;
    pub(crate) const RX_WRITTEN_BACK: u32 = 1 << 7;
    pub(crate) const ASSERTED: u32 = 1 << 31;
}

/// Bits of RCTL that our driver leaves alone (8.10).
pub(super) mod rctl {
    pub(crate) const VLAN_FILTER: u32 = 1 << 18;
}

/// Bits of RXCSUM (8.10).
pub(super) mod rxcsum {
    pub(crate) const IP: u32 = 1 << 8;
    pub(crate) const TCP_UDP: u32 = 1 << 9;
    pub(crate) const HASH: u32 = 1 << 13;
}

/// Bits of EECD (8.4).
pub(super) mod eecd {
    pub(crate) const REQUEST: u32 = 1 << 6;
    pub(crate) const GRANT: u32 = 1 << 7;
    pub(crate) const PRESENT: u32 = 1 << 8;
    pub(crate) const AUTO_READ_DONE: u32 = 1 << 9;
    /// The NVM has 64 words shifted by this.
    pub(crate) const SIZE_SHIFT: u32 = 11;
}

/// Bits of [`SWSM`] (8.6).
pub(super) mod swsm {
    /// Reading sets it: who read it as 0 owns the semaphore.
    pub(crate) const SOFTWARE: u32 = 1 << 0;
}

/// Where the register at `offset` is to be found, of those that have two places (8.1): interrupt registers at 0xc0 and 0x1500, the
/// first four queues at 0x2800 and 0x3800 too.
pub(super) fn canonical(offset: usize) -> usize {
    let queue = |base: usize| (offset & 0x300) / 0x100 * 0x40 + base + (offset & 0x3f);
    match offset {
        0x1500 => 0xc0,
        0xc8 => 0x1504,
        0xd0 => 0x1508,
        0x150c => 0xd8,
        0xe0 => 0x1510,
        0x2800..0x2c00 if offset & 0xff < 0x40 => queue(0xc000),
        0x3800..0x3c00 if offset & 0xff < 0x40 => queue(0xe000),
        _ => offset,
    }
}
