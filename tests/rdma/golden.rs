//! Packets of every opcode, read by tshark: no packet is malformed, fields are what was asked for, and the CRC is what an
//! independent implementation says.

use crate::crc;
use crate::rig::*;
use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pollring::rdma::*;
use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

/// Frames that hold every opcode of RC, UC and UD but their answers to mistakes.
fn record(one: &str, two: &str) -> Vec<Vec<u8>> {
    let addresses = [one, two].map(|text| text.parse().unwrap());
    let mut net = Net::with(1, Faults::default(), &Shape { addresses, ..Shape::default() });
    net.wire.capture = Some(Vec::new());
    let (from, to, doomed) = (net.memory(0, 8192), net.memory(1, 8192), net.memory(1, 64));
    let second = net.memory(1, 64);
    for kind in [QpType::Rc, QpType::Uc] {
        let mut qps = net.connect(&Link { mtu: Mtu::Bytes256, ..Link::new(kind) });
        let there = remote(&to, 0);
        let mut operations = Vec::new();
        for bytes in [100, 700] {
            let payload = || gather(&from, 0, bytes);
            operations.push(send(payload()));
            operations
                .push(SendOperation::Send { payload: payload(), attached: Attached::Immediate(0x0102_0304) });
            operations.push(write(payload(), there));
            operations.push(SendOperation::Write { payload: payload(), remote: there, immediate: Some(5) });
            if kind == QpType::Rc {
                let key = if bytes == 100 { doomed.rkey() } else { second.rkey() };
                operations
                    .push(SendOperation::Send { payload: payload(), attached: Attached::Invalidate(key) });
                operations.push(SendOperation::Read { into: sge(&from, 0, bytes).into(), remote: there });
            }
        }
        if kind == QpType::Rc {
            let into = || sge(&from, 0, 8);
            operations.push(SendOperation::FetchAndAdd { into: into(), remote: there, add: 0x11 });
            operations.push(SendOperation::CompareAndSwap {
                into: into(),
                remote: there,
                compare: 1,
                swap: 2,
            });
        }
        let count = operations.len();
        for (id, operation) in operations.into_iter().enumerate() {
            receive(&mut *qps[1], id as u64, sge(&to, 0, 4096));
            post(&mut *qps[0], id as u64, operation);
        }
        net.completions(0, count);
        net.settle();
    }
    let mut qps = net.connect(&Link::new(QpType::Ud));
    let vector = net.vector(0);
    let node = &mut net.nodes[0];
    let address = node.device.create_ah(&node.pd, &vector).unwrap();
    let to = Destination { address, qp: qps[1].number(), q_key: QKey(0x1234) };
    for immediate in [None, Some(9)] {
        let payload = gather(&from, 0, 301);
        post(&mut *qps[0], 1, SendOperation::SendDatagram { payload, immediate, to: to.clone() });
    }
    net.settle();
    net.wire.capture.take().unwrap()
}

fn is_roce(frame: &[u8]) -> bool {
    let ip = frame[12..14] == [8, 0] && frame[23] == 17 || frame[12..14] == [0x86, 0xdd] && frame[20] == 17;
    ip && frame[14 + crc::ip_bytes(frame) + 2..][..2] == 4791u16.to_be_bytes()
}

fn write_pcap(frames: &[Vec<u8>], path: &std::path::Path) {
    let header = PcapHeader { datalink: DataLink::ETHERNET, ..PcapHeader::default() };
    let mut pcap = PcapWriter::with_header(std::fs::File::create(path).unwrap(), header).unwrap();
    for (number, frame) in frames.iter().enumerate() {
        let time = Duration::from_micros(number as u64);
        pcap.write_packet(&PcapPacket::new(time, frame.len() as u32, frame)).unwrap();
    }
}

const FIELDS: [&str; 5] = [
    "infiniband.bth.opcode",
    "infiniband.bth.psn",
    "infiniband.bth.destqp",
    "infiniband.bth.m",
    "infiniband.invariant.crc",
];

/// Rows of fields, a packet each; the last field is what is wrong with it.
fn tshark(path: &std::path::Path) -> Vec<Vec<String>> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(path).args(["-T", "fields", "-E", "separator=,"]);
    FIELDS.iter().for_each(|field| {
        command.args(["-e", field]);
    });
    command.args(["-e", "_ws.malformed", "-e", "_ws.expert.message"]);
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("tshark: {error}; install Debian's package `tshark`"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.split(',').map(str::to_owned).collect()).collect()
}

fn number(text: &str) -> u32 {
    let hex = text.strip_prefix("0x");
    hex.map_or_else(|| text.parse(), |digits| u32::from_str_radix(digits, 16)).unwrap()
}

#[test]
fn every_opcode_is_read_by_tshark_without_complaint() {
    let mut opcodes = BTreeSet::new();
    let directory = tempfile::tempdir().unwrap();
    for (name, one, two) in [("4", "10.0.0.1", "10.0.0.2"), ("6", "fe80::1", "fe80::2")] {
        let mut frames = record(one, two);
        frames.retain(|frame| is_roce(frame));
        let path = directory.path().join(name);
        write_pcap(&frames, &path);
        let rows = tshark(&path);
        assert_eq!(rows.len(), frames.len());
        for (frame, row) in frames.iter().zip(rows) {
            let bth = &frame[14 + crc::ip_bytes(frame) + 8..];
            assert_eq!(frame[frame.len() - 4..], crc::expected(frame), "CRC of opcode {:#x}", bth[0]);
            let field = |at: usize| number(&row[at]);
            assert_eq!(field(0), u32::from(bth[0]));
            assert_eq!(field(1), u32::from_be_bytes([0, bth[9], bth[10], bth[11]]));
            assert_eq!(field(2), u32::from_be_bytes([0, bth[5], bth[6], bth[7]]));
            assert!(row[3] == "1" || row[3] == "True", "MigReq: {}", row[3]);
            let crc = u32::from_be_bytes(frame[frame.len() - 4..].try_into().unwrap());
            assert!([crc, crc.swap_bytes()].contains(&field(4)), "{} for {crc:#x}", row[4]);
            // Over IPv6 too a UDP checksum of 0 says nothing: so Linux sends it, and so do we.
            let complaint = |text: &String| !text.is_empty() && text != "Illegal checksum value (0)";
            assert!(!row[5..].iter().any(complaint), "opcode {:#x}: {row:?}", bth[0]);
            opcodes.insert(bth[0]);
        }
    }
    let all: BTreeSet<u8> = (0..=0x14).chain([0x16, 0x17]).chain(0x20..=0x2b).chain([0x64, 0x65]).collect();
    assert_eq!(opcodes, all);
}
