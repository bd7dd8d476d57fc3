//! `pollring rdma info PORT`: the answers of the verbs' device and port queries (ibv_query_device(3), ibv_query_port(3)), for people
//! and as JSON. The port is opened and started, asked, and stopped.

use super::counters::NamedCounters;
use super::machine::Machine;
use super::simulated;
use crate::error::AppError;
use crate::output::{self, Format, Screen, bytes, thousands};
use pollring::rdma::{AtomicScope, Device, DeviceAttributes, PortAttributes};
use pollring_drivers::rdma::roce::RoceDevice;
use serde::Serialize;
use std::net::IpAddr;

/// Arguments of `pollring rdma info`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The port: sim:igb
    port: String,
    /// Print one JSON object; people's text goes to standard error
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Info {
    port: String,
    node_guid: String,
    features: Vec<String>,
    atomics: &'static str,
    state: String,
    mtu_bytes: usize,
    speed_mbps: u32,
    gids: Vec<NamedGid>,
    pkeys: Vec<String>,
    limits: Limits,
    queue_pairs: usize,
    keys: usize,
    health: String,
    counters: NamedCounters,
}

#[derive(Serialize)]
struct NamedGid {
    index: usize,
    gid: String,
    address: IpAddr,
    vlan: Option<u16>,
}

#[derive(Serialize)]
struct Limits {
    pds: u32,
    regions: u32,
    region_bytes: u64,
    cqs: u32,
    cq_entries: u32,
    qps: u32,
    send_requests: u32,
    receive_requests: u32,
    send_sges: u16,
    receive_sges: u16,
    inline_bytes: u32,
    srqs: u32,
    srq_requests: u32,
    address_handles: u32,
    responder_resources: u8,
    initiator_depth: u8,
    message_bytes: u32,
}

/// Shows a port.
pub(crate) fn run(arguments: &Arguments) -> Result<(), AppError> {
    let name = simulated(&arguments.port)?;
    // The other end of the wire has a port too.
    let (machine, pollers) = Machine::open([&arguments.port, "sim:igb"], [name, name])?;
    let info = Info::of(&arguments.port, &machine.sides[0].device);
    drop(pollers);
    let errors = machine.close();
    let format = Format::from_switch(arguments.json);
    let mut screen = Screen::new(format);
    screen.print(&info.to_text());
    if format == Format::Json {
        output::write_json(&info)?;
    }
    if errors.is_empty() { screen.close() } else { Err(AppError::Failed(errors)) }
}

impl Info {
    fn of(port: &str, device: &RoceDevice) -> Info {
        let (attributes, state) = (device.attributes(), device.port());
        let (queue_pairs, keys) = device.census();
        Info {
            port: port.to_owned(),
            node_guid: format!("{:016x}", attributes.node_guid),
            features: attributes.features.iter_names().map(|(name, _)| name.to_lowercase()).collect(),
            atomics: match attributes.atomics {
                AtomicScope::None => "none",
                AtomicScope::Device => "device",
                AtomicScope::Memory => "memory",
            },
            state: format!("{:?}", state.state).to_lowercase(),
            mtu_bytes: state.mtu.bytes(),
            speed_mbps: state.speed_mbps,
            gids: gids(&state),
            pkeys: state.pkeys.iter().map(|key| format!("{:#06x}", key.0)).collect(),
            limits: limits(attributes),
            queue_pairs,
            keys,
            health: device.health().to_string(),
            counters: NamedCounters::from(&device.counters()),
        }
    }

    fn to_text(&self) -> String {
        let mut rows = vec![
            ("port".to_owned(), format!("{}, {}, {}", self.port, self.state, self.health)),
            ("node GUID".to_owned(), self.node_guid.clone()),
            ("features".to_owned(), self.features.join(", ")),
            ("atomics with".to_owned(), self.atomics.to_owned()),
            ("path MTU".to_owned(), bytes(self.mtu_bytes as u64)),
            (
                "speed".to_owned(),
                if self.speed_mbps == 0 { "unknown".into() } else { format!("{} Mbit/s", self.speed_mbps) },
            ),
        ];
        rows.extend(self.gids.iter().map(|entry| {
            let vlan = entry.vlan.map_or(String::new(), |vlan| format!(", VLAN {vlan}"));
            (format!("GID {}", entry.index), format!("{} ({}{vlan})", entry.gid, entry.address))
        }));
        rows.push(("P_Keys".to_owned(), self.pkeys.join(", ")));
        rows.extend(self.limits.rows().map(|(name, limit)| (name.to_owned(), limit)));
        rows.push(("in use".to_owned(), format!("{} queue pairs, {} keys", self.queue_pairs, self.keys)));
        let counters = self.counters.rows();
        if counters.is_empty() {
            rows.push(("counters".to_owned(), "all 0".to_owned()));
        }
        rows.extend(counters.into_iter().map(|(name, count)| (name.to_owned(), thousands(count))));
        let rows = rows.into_iter().map(|(name, value)| vec![name, value]);
        format!("{}\n", output::table(&["what", "value"], &[], rows))
    }
}

impl Limits {
    fn rows(&self) -> impl Iterator<Item = (&'static str, String)> {
        let count = |number: u32| thousands(number.into());
        [
            ("most PDs", count(self.pds)),
            ("most memory regions", format!("{} of {}", count(self.regions), bytes(self.region_bytes))),
            ("most completion queues", format!("{} of {} entries", count(self.cqs), count(self.cq_entries))),
            ("most queue pairs", count(self.qps)),
            (
                "most requests of one",
                format!("{} sends, {} receives", count(self.send_requests), count(self.receive_requests)),
            ),
            (
                "most pieces of one",
                format!("{} of a send, {} of a receive", self.send_sges, self.receive_sges),
            ),
            ("most bytes inline", self.inline_bytes.to_string()),
            ("most SRQs", format!("{} of {} requests", count(self.srqs), count(self.srq_requests))),
            ("most address handles", count(self.address_handles)),
            (
                "most READs and atomics",
                format!("{} asked, {} served", self.initiator_depth, self.responder_resources),
            ),
            ("longest message", bytes(self.message_bytes.into())),
        ]
        .into_iter()
    }
}

fn gids(port: &PortAttributes) -> Vec<NamedGid> {
    let named = |(index, entry): (usize, &pollring::rdma::GidEntry)| {
        let words: Vec<String> = entry
            .gid
            .0
            .chunks(2)
            .map(|pair| pair.iter().map(|byte| format!("{byte:02x}")).collect())
            .collect();
        NamedGid { index, gid: words.join(":"), address: IpAddr::from(entry.gid), vlan: entry.vlan }
    };
    port.gids.iter().enumerate().map(named).collect()
}

fn limits(attributes: &DeviceAttributes) -> Limits {
    let most = attributes.max_qp;
    Limits {
        pds: attributes.max_pds,
        regions: attributes.max_regions,
        region_bytes: attributes.max_region_bytes,
        cqs: attributes.max_cqs,
        cq_entries: attributes.max_cq_entries,
        qps: attributes.max_qps,
        send_requests: most.send_requests,
        receive_requests: most.receive_requests,
        send_sges: most.send_sges,
        receive_sges: most.receive_sges,
        inline_bytes: most.inline_bytes,
        srqs: attributes.max_srqs,
        srq_requests: attributes.max_srq_requests,
        address_handles: attributes.max_address_handles,
        responder_resources: attributes.max_responder_resources,
        initiator_depth: attributes.max_initiator_depth,
        message_bytes: attributes.max_message_bytes,
    }
}
