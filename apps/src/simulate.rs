//! `pollring simulate`: a software device for another process, over a vfio-user socket.
//!
//! A QEMU whose guest has a stock driver connects to it, or any other vfio-user client. Two threads: this one serves the socket, another
//! one steps the device and its wire. The order is: bind the wire, listen, say so, serve clients one after another until SIGINT or
//! SIGTERM comes, then tell what was seen.

use crate::error::AppError;
use crate::output::{self, Format, Screen};
use clap::ValueEnum;
use pollring::bus::simulated::SoftwareDevice;
use pollring_simulator::igb::{Igb, IgbConfig};
use pollring_simulator::ioat::{Copies, Ioat, IoatSteps};
use pollring_simulator::serve::{
    DatagramWire, Echo, Function, IgbSteps, ServeCounts, Server, Stepper, Steps, Tamper, Waker, WireCounts,
};
use pollring_simulator::wire::{self, WireConfig, WireEnd};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How a client gets to it.
const EXAMPLE: &str = "\
QEMU 10.1 or later takes the device with these arguments; a guest with an IOMMU needs `-device intel-iommu,caching-mode=on`:
  -M q35,memory-backend=m -object memory-backend-memfd,id=m,size=2G,share=on
  -device '{\"driver\":\"vfio-user-pci\",\"socket\":{\"type\":\"unix\",\"path\":\"PATH\"}}'";

/// Arguments of `pollring simulate`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Arguments {
    /// The device
    model: Model,
    /// Where to listen for a vfio-user client, as QEMU's `vfio-user-pci` is one
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// What the device's wire leads to: `dgram:LOCAL,REMOTE` binds the unix datagram socket LOCAL and sends to REMOTE, one frame a datagram,
    /// as QEMU's `-netdev dgram` does; `loopback` sends back; `none` is no cable
    #[arg(long, value_name = "WIRE", default_value = "none")]
    wire: Wire,
    /// The device's address
    #[arg(long, value_name = "MAC", default_value = "02:00:00:70:00:00")]
    mac: Mac,
    /// A test aid: flip one bit of the payload of every frame on the dgram wire, except ARP, or of every copy of an engine, so that a check can be
    /// seen to fail
    #[arg(long)]
    corrupt: bool,
    /// Print one JSON object at the end
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Model {
    /// Intel 82576, as the kernel's igb and DPDK's net_e1000_igb drive it
    Igb,
    /// Intel I/OAT 3.2, a copy engine; it has no wire
    Ioat,
}

#[derive(Clone)]
enum Wire {
    Datagram { local: PathBuf, remote: PathBuf },
    Loopback,
    None,
}

impl FromStr for Wire {
    type Err = String;

    fn from_str(text: &str) -> Result<Wire, String> {
        match text {
            "loopback" => return Ok(Wire::Loopback),
            "none" => return Ok(Wire::None),
            _ => {}
        }
        match text.strip_prefix("dgram:").and_then(|paths| paths.split_once(',')) {
            Some((local, remote)) if !local.is_empty() && !remote.is_empty() => {
                Ok(Wire::Datagram { local: local.into(), remote: remote.into() })
            }
            _ => Err("write it as dgram:LOCAL,REMOTE, loopback or none".into()),
        }
    }
}

/// A unicast address.
#[derive(Clone, Copy)]
struct Mac([u8; 6]);

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Mac, String> {
        let octet = |part: &str| if part.len() == 2 { u8::from_str_radix(part, 16).ok() } else { None };
        let octets: Option<Vec<u8>> = text.split(':').map(octet).collect();
        let mac = octets.and_then(|octets| <[u8; 6]>::try_from(octets).ok());
        match mac {
            Some(mac) if mac[0] & 1 == 0 && mac != [0; 6] => Ok(Mac(mac)),
            Some(_) => Err("it must name one station: the lowest bit of the first octet is 0".into()),
            None => Err("write it as six octets, such as 02:00:00:70:00:01".into()),
        }
    }
}

/// What was seen.
#[derive(Serialize)]
struct Summary {
    clients: u64,
    messages: u64,
    refused_messages: u64,
    /// From the device to the wire.
    tx_frames: u64,
    /// From the wire to memory.
    rx_frames: u64,
    /// Frames that nobody was there for at the other end of the wire.
    tx_lost: u64,
    interrupts: u64,
    dma_faults: u64,
    /// Rules of the datasheet that drivers broke, with counts.
    violations: Vec<(String, u64)>,
    /// Registers that the model does not know, with counts of accesses.
    unknown_registers: Vec<(String, u64)>,
}

/// Serves until a signal comes.
///
/// # Errors
/// A wire or a socket that cannot be had, or a thread that ended.
pub(crate) fn run(arguments: &Arguments) -> Result<(), AppError> {
    match arguments.model {
        Model::Igb => run_igb(arguments),
        Model::Ioat => run_ioat(arguments),
    }
}

fn run_igb(arguments: &Arguments) -> Result<(), AppError> {
    let (near, far) = wire::pair(WireConfig::default());
    let igb = Igb::new(IgbConfig::new(arguments.mac.0, near));
    let (outer, wire_counts) = outer_end(arguments, far)?;
    let parts = [Some(Box::new(IgbSteps(igb.clone())) as Box<dyn Steps>), outer];
    let parts = parts.into_iter().flatten().collect();
    serve(arguments, igb.clone(), parts, |served| summary(&igb, served, wire_counts.as_deref()))
}

fn run_ioat(arguments: &Arguments) -> Result<(), AppError> {
    if !matches!(arguments.wire, Wire::None) {
        return Err(AppError::Usage("--wire: a copy engine has none; leave it out".into()));
    }
    let ioat = Ioat::new(if arguments.corrupt { Copies::OneBitFlipped } else { Copies::True }, None);
    let parts: Vec<Box<dyn Steps>> = vec![Box::new(IoatSteps(ioat.clone()))];
    serve(arguments, ioat.clone(), parts, |served| EngineSummary {
        clients: served.clients,
        messages: served.messages,
        refused_messages: served.refused,
        descriptors: ioat.counters().descriptors,
        bytes: ioat.counters().bytes,
        halts: ioat.counters().halts,
        interrupts: ioat.counters().interrupts,
    })
}

/// Serves `device`, which `parts` step, and tells at the end what was seen.
fn serve<S: Serialize + ToText>(
    arguments: &Arguments,
    device: Arc<dyn SoftwareDevice>,
    parts: Vec<Box<dyn Steps>>,
    summary: impl FnOnce(ServeCounts) -> S,
) -> Result<(), AppError> {
    let format = Format::from_switch(arguments.json);
    let mut screen = Screen::new(format);
    let stop = watch_signals()?;
    let waker = Waker::new().map_err(system("make an eventfd"))?;
    let function = Function::new(device, waker.clone());
    let server = Server::bind(&arguments.socket)?;
    let stepper = Stepper::start(waker, parts).map_err(system("start a thread"))?;
    screen.line(&format!(
        "listening at {}; end it with SIGINT (Ctrl-C) or SIGTERM",
        arguments.socket.display()
    ));
    server.run(&function, &|| stop.load(Ordering::Relaxed) || !stepper.is_running())?;
    let running = stepper.is_running();
    drop((stepper, server));
    let summary = summary(function.counts());
    screen.print(&summary.to_text());
    if format == Format::Json {
        output::write_json(&summary)?;
    }
    if running { screen.close() } else { Err(AppError::Failed(vec!["the device's thread ended".into()])) }
}

/// The flag that the first signal sets; a second one kills.
fn watch_signals() -> Result<Arc<AtomicBool>, AppError> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_default(signal, asked.clone())
            .and_then(|_| flag::register(signal, asked.clone()))
            .map_err(system("watch for SIGINT and SIGTERM: sigaction"))?;
    }
    Ok(asked)
}

fn system(step: &'static str) -> impl FnOnce(io::Error) -> AppError {
    move |error| AppError::System { step, error }
}

type Outer = (Option<Box<dyn Steps>>, Option<Arc<WireCounts>>);

/// What stands at the wire's far end.
fn outer_end(arguments: &Arguments, far: WireEnd) -> Result<Outer, AppError> {
    let tamper = if arguments.corrupt { Tamper::FlipBit } else { Tamper::Nothing };
    match &arguments.wire {
        Wire::Datagram { local, remote } => {
            let wire = DatagramWire::bind(local, remote, far, tamper).map_err(|error| {
                let next = "the path must be free and its folder writable";
                AppError::Usage(format!("--wire: bind {}: {error}; {next}", local.display()))
            })?;
            let counts = wire.counts();
            Ok((Some(Box::new(wire)), Some(counts)))
        }
        _ if arguments.corrupt => Err(AppError::Usage(
            "--corrupt needs --wire dgram:LOCAL,REMOTE; nobody else looks at frames".into(),
        )),
        Wire::Loopback => Ok((Some(Box::new(Echo(far))), None)),
        Wire::None => {
            far.cut();
            Ok((None, None))
        }
    }
}

fn summary(igb: &Igb, served: ServeCounts, wire: Option<&WireCounts>) -> Summary {
    let counters = igb.counters();
    let violations = igb.violation_counts().into_iter();
    let unknown = igb.unknown_registers().into_iter();
    Summary {
        clients: served.clients,
        messages: served.messages,
        refused_messages: served.refused,
        tx_frames: counters.frames_sent,
        rx_frames: counters.frames_received,
        tx_lost: wire.map_or(0, WireCounts::lost),
        interrupts: counters.interrupts,
        dma_faults: counters.dma_faults,
        violations: violations.map(|(rule, count)| (format!("{rule:?}"), count)).collect(),
        unknown_registers: unknown.map(|(offset, count)| (format!("{offset:#07x}"), count)).collect(),
    }
}

/// A summary for people.
trait ToText {
    fn to_text(&self) -> String;
}

/// What was seen of an engine.
#[derive(Serialize)]
struct EngineSummary {
    clients: u64,
    messages: u64,
    refused_messages: u64,
    /// Executed.
    descriptors: u64,
    /// Copied or filled.
    bytes: u64,
    /// Errors on which the channel halted.
    halts: u64,
    interrupts: u64,
}

impl ToText for EngineSummary {
    fn to_text(&self) -> String {
        let EngineSummary { clients, messages, refused_messages, descriptors, bytes, .. } = self;
        format!(
            "clients            {clients}, {messages} messages, {refused_messages} refused\n\
             descriptors        {descriptors}, {bytes} bytes\n\
             halts              {}\n\
             interrupts         {}\n",
            self.halts, self.interrupts
        )
    }
}

impl ToText for Summary {
    fn to_text(&self) -> String {
        let list = |rows: &[(String, u64)]| {
            let rows: Vec<String> = rows.iter().map(|(what, count)| format!("{what} {count}")).collect();
            if rows.is_empty() { "none".to_owned() } else { rows.join(", ") }
        };
        let Summary { clients, messages, refused_messages, tx_frames, rx_frames, tx_lost, .. } = self;
        format!(
            "clients            {clients}, {messages} messages, {refused_messages} refused\n\
             frames             {tx_frames} sent, {rx_frames} received, {tx_lost} sent to nobody\n\
             interrupts         {}\n\
             DMA faults         {}\n\
             violations         {}\n\
             unknown registers  {}\n",
            self.interrupts,
            self.dma_faults,
            list(&self.violations),
            list(&self.unknown_registers)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wires_and_addresses_are_read_or_refused() {
        assert!(matches!("dgram:/a,/b".parse(), Ok(Wire::Datagram { .. })));
        assert!(matches!("loopback".parse(), Ok(Wire::Loopback)));
        for bad in ["", "dgram:", "dgram:/a", "dgram:,/b", "dgram:/a,", "tap:x"] {
            assert!(bad.parse::<Wire>().is_err(), "{bad}");
        }
        assert_eq!("02:00:00:0a:Ff:01".parse::<Mac>().map(|mac| mac.0), Ok([2, 0, 0, 10, 255, 1]));
        for bad in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:0g",
            "2:0:0:0:0:1",
            "01:00:00:00:00:00",
            "00:00:00:00:00:00",
        ] {
            assert!(bad.parse::<Mac>().is_err(), "{bad}");
        }
    }
}
