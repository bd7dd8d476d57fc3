//! Numbers of the virtio specification, version 1.2: features, status, config space, control commands, PCI capabilities.

/// Feature bits (5.1.3, 6).
pub mod feature {
    /// The device has an address.
    pub const MAC: u64 = 1 << 5;
    /// The device says the largest MTU.
    pub const MTU: u64 = 1 << 3;
    /// A received frame may lie in several buffers.
    pub const MRG_RXBUF: u64 = 1 << 15;
    /// The device says whether its link is up.
    pub const STATUS: u64 = 1 << 16;
    /// There is a control queue.
    pub const CTRL_VQ: u64 = 1 << 17;
    /// Commands set what is received.
    pub const CTRL_RX: u64 = 1 << 18;
    /// There are several queue pairs.
    pub const MQ: u64 = 1 << 22;
    /// The device says which notifications it wants from which buffer on.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// Not a legacy device.
    pub const VERSION_1: u64 = 1 << 32;
    /// Addresses go through an IOMMU.
    pub const ACCESS_PLATFORM: u64 = 1 << 33;
    /// Packed queues.
    pub const RING_PACKED: u64 = 1 << 34;
    /// Buffers are used in the order in which they were made available.
    pub const IN_ORDER: u64 = 1 << 35;
    /// Notifications carry an index.
    pub const NOTIFICATION_DATA: u64 = 1 << 38;
    /// The device says how fast its link is.
    pub const SPEED_DUPLEX: u64 = 1 << 63;
    /// Steering of received frames by hash.
    pub const RSS: u64 = 1 << 60;

    /// Names of the bits that this driver knows, for reports.
    pub const NAMES: &[(u64, &str)] = &[
        (MTU, "MTU"),
        (MAC, "MAC"),
        (MRG_RXBUF, "MRG_RXBUF"),
        (STATUS, "STATUS"),
        (CTRL_VQ, "CTRL_VQ"),
        (CTRL_RX, "CTRL_RX"),
        (MQ, "MQ"),
        (EVENT_IDX, "EVENT_IDX"),
        (VERSION_1, "VERSION_1"),
        (ACCESS_PLATFORM, "ACCESS_PLATFORM"),
        (RING_PACKED, "RING_PACKED"),
        (IN_ORDER, "IN_ORDER"),
        (NOTIFICATION_DATA, "NOTIFICATION_DATA"),
        (RSS, "RSS"),
        (SPEED_DUPLEX, "SPEED_DUPLEX"),
    ];
}

/// Device status bits (2.1).
pub mod status {
    /// The device was noticed.
    pub const ACKNOWLEDGE: u8 = 1;
    /// A driver knows it.
    pub const DRIVER: u8 = 2;
    /// The driver is ready.
    pub const DRIVER_OK: u8 = 4;
    /// Features are agreed on.
    pub const FEATURES_OK: u8 = 8;
    /// The device cannot go on without a reset.
    pub const NEEDS_RESET: u8 = 64;
    /// The driver gave up.
    pub const FAILED: u8 = 128;
}

/// The network device's config space (5.1.4), byte offsets.
pub mod config {
    /// Address, 6 bytes, with MAC.
    pub const MAC: usize = 0;
    /// Bit 0: link up, with STATUS; 16 bits.
    pub const STATUS: usize = 6;
    /// Queue pairs, with MQ or RSS; 16 bits.
    pub const MAX_PAIRS: usize = 8;
    /// Largest MTU, with MTU; 16 bits.
    pub const MTU: usize = 10;
    /// Mbit/s, with SPEED_DUPLEX; 32 bits, all ones when unknown.
    pub const SPEED: usize = 12;
    /// Bytes of a hash key at most, with RSS; 8 bits.
    pub const RSS_KEY_BYTES: usize = 17;
    /// Entries of the indirection table at most, with RSS; 16 bits.
    pub const RSS_TABLE_ENTRIES: usize = 18;
    /// What it can hash, with RSS: bits of [`hash`](super::hash); 32 bits.
    pub const HASH_TYPES: usize = 20;
    /// Its bytes.
    pub const BYTES: usize = 24;
    /// In `STATUS`.
    pub const LINK_UP: u16 = 1;
}

/// What a hash is taken over (5.1.6.4.3.1): bits of a set.
pub mod hash {
    /// Both addresses of an IPv4 packet.
    pub const IPV4: u32 = 1;
    /// Its addresses and ports, with TCP.
    pub const TCP_IPV4: u32 = 1 << 1;
    /// Its addresses and ports, with UDP.
    pub const UDP_IPV4: u32 = 1 << 2;
    /// Both addresses of an IPv6 packet.
    pub const IPV6: u32 = 1 << 3;
    /// Its addresses and ports, with TCP.
    pub const TCP_IPV6: u32 = 1 << 4;
    /// Its addresses and ports, with UDP.
    pub const UDP_IPV6: u32 = 1 << 5;
    /// All of them.
    pub const ALL: u32 = 0x3f;
}

/// Control commands (5.1.6.5): class, command.
pub mod command {
    /// Receive everything: one byte, 1 or 0.
    pub const PROMISCUOUS: (u8, u8) = (0, 0);
    /// Receive all group addresses: one byte, 1 or 0.
    pub const ALL_MULTICAST: (u8, u8) = (0, 1);
    /// Use so many pairs: 16 bits.
    pub const SET_PAIRS: (u8, u8) = (4, 0);
    /// Spread by hash (5.1.6.5.7.1): hash types, 32 bits; table mask, queue of what has no hash, the table, pairs that send, 16 bits each;
    /// key bytes, 8 bits; key. Receive queues are counted in pairs.
    pub const SET_RSS: (u8, u8) = (4, 1);
    /// The answer that it was done.
    pub const OK: u8 = 0;
}

/// Modern PCI (4.1).
pub mod pci {
    /// Red Hat's vendor id, which every virtio device has.
    pub const VENDOR: u16 = 0x1af4;
    /// Network device without a legacy interface: 0x1040 and the device type.
    pub const MODERN_NET: u16 = 0x1041;
    /// Network device that has a legacy interface too.
    pub const TRANSITIONAL_NET: u16 = 0x1000;

    /// Config space offset of the first capability (PCI Local Bus 3.0, 6.7).
    pub const CAPABILITIES: u16 = 0x34;
    /// Status bit 4, in the upper half of the command word: there are capabilities.
    pub const HAS_CAPABILITIES: u32 = 1 << 20;
    /// Capability id: vendor specific.
    pub const VENDOR_CAPABILITY: u8 = 0x09;

    /// Capability types (4.1.4).
    pub const COMMON: u8 = 1;
    /// Notifications.
    pub const NOTIFY: u8 = 2;
    /// Device config.
    pub const DEVICE: u8 = 4;

    /// Common config (4.1.4.3), byte offsets; 32 bits unless said otherwise.
    pub mod common {
        /// Which half of the offered features is seen.
        pub const DEVICE_FEATURE_SELECT: usize = 0;
        /// That half.
        pub const DEVICE_FEATURE: usize = 4;
        /// Which half of the accepted features is written.
        pub const DRIVER_FEATURE_SELECT: usize = 8;
        /// That half.
        pub const DRIVER_FEATURE: usize = 12;
        /// Vector for config changes, 16 bits.
        pub const CONFIG_VECTOR: usize = 16;
        /// Queues, 16 bits.
        pub const QUEUES: usize = 18;
        /// Status, 8 bits.
        pub const STATUS: usize = 20;
        /// Changes when config does, 8 bits.
        pub const GENERATION: usize = 21;
        /// Which queue the rest is about, 16 bits.
        pub const QUEUE_SELECT: usize = 22;
        /// Its size, 16 bits.
        pub const QUEUE_SIZE: usize = 24;
        /// Its vector, 16 bits.
        pub const QUEUE_VECTOR: usize = 26;
        /// One: it runs, 16 bits.
        pub const QUEUE_ENABLE: usize = 28;
        /// Where its notifications go, in units of the multiplier, 16 bits.
        pub const QUEUE_NOTIFY_OFF: usize = 30;
        /// Descriptor area, 64 bits.
        pub const QUEUE_DESCRIPTORS: usize = 32;
        /// Driver area, 64 bits.
        pub const QUEUE_DRIVER: usize = 40;
        /// Device area, 64 bits.
        pub const QUEUE_DEVICE: usize = 48;
        /// Bytes of the above.
        pub const BYTES: usize = 56;
        /// No vector.
        pub const NO_VECTOR: u16 = 0xffff;
    }
}
