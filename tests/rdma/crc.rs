//! The invariant CRC, written again bit by bit from its description, so that the engine is not its own judge.

/// IP header bytes of an Ethernet frame without a VLAN tag.
pub fn ip_bytes(frame: &[u8]) -> usize {
    if frame[14] >> 4 == 4 { 20 } else { 40 }
}

/// The CRC that `frame` should end in; `frame` holds its transport header.
pub fn expected(frame: &[u8]) -> [u8; 4] {
    let ip = ip_bytes(frame);
    let mut bytes = vec![0xff; 8];
    bytes.extend_from_slice(&frame[14..frame.len() - 4]);
    let masked: &[usize] = if ip == 20 { &[1, 8, 10, 11] } else { &[1, 2, 3, 7] };
    masked.iter().for_each(|at| bytes[8 + at] = 0xff);
    if ip == 40 {
        bytes[8] |= 0x0f;
    }
    for at in [ip + 6, ip + 7, ip + 8 + 4] {
        bytes[8 + at] = 0xff;
    }
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    (!crc).to_le_bytes()
}

/// Makes the CRC of a frame right again.
pub fn repair(frame: &mut [u8]) {
    let crc = expected(frame);
    let end = frame.len() - 4;
    frame[end..].copy_from_slice(&crc);
}
