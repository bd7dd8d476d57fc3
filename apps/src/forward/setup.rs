//! From a plan to ports that are open and memory that they share.
//!
//! Each port sits in an address space of its own, unless the IOMMU cannot tell two functions apart. Its pool is mapped there for
//! reading and writing, and in its partner's space for reading only: a port can fill its own buffers and send the other's. With --copy
//! the partner reads copies instead, in a pool that no device can write. The order is: look at what a function may lack, open the device, look at what it can do, then take memory.

use super::faults::Faults;
use super::options::{PageChoice, Plan};
use crate::error::AppError;
use crate::ports::{Target, VhostUserName, open_vfio_user};
use pollring::buffer::{Access, BURST, Both, Pool, PoolConfig, PoolError, ToDevice};
use pollring::bus::simulated::{self, SimulatedIommu, SoftwareDevice};
use pollring::bus::sysfs::Sysfs;
use pollring::bus::vfio::Container;
use pollring::bus::{Device, PciAddress};
use pollring::hugepages::{PageSize, Pages};
use pollring::iova::AddressSpace;
use pollring::port::{Port, PortConfig, PortError, Promiscuous};
use std::path::Path;
use std::sync::Arc;

/// Frames that a worker's cache of one pool may hold (`pollring::buffer::Caches`).
const CACHE_FRAMES: usize = 512;

/// The largest descriptor of a driver, bytes.
const DESCRIPTOR_BYTES: usize = 16;

/// A port and what belongs to it. The port goes first: it ends DMA before the memory does.
pub(super) struct OpenPort {
    pub(super) uri: String,
    pub(super) port: Box<dyn Port>,
    pub(super) pool: Pool<Both>,
    /// Where copies of its frames lie, for the partner to send.
    pub(super) copies: Option<Pool<ToDevice>>,
    pub(super) config: PortConfig,
    pub(super) space: AddressSpace,
    /// The IOMMU of a simulated device.
    pub(super) iommu: Option<Arc<SimulatedIommu>>,
    /// A real device.
    pub(super) function: Option<PciAddress>,
}

/// All ports, and the memory that they send at the start.
pub(super) struct Setup {
    pub(super) ports: Vec<OpenPort>,
    pub(super) prime_pool: Option<Pool<ToDevice>>,
    pub(super) faults: Faults,
    /// What the user should know about it.
    pub(super) notes: Vec<String>,
}

/// A port before it has memory.
struct Opened {
    port: Box<dyn Port>,
    space: AddressSpace,
    iommu: Option<Arc<SimulatedIommu>>,
    function: Option<PciAddress>,
}

impl Setup {
    /// Opens the ports of the plan; `devices` are the simulated ones, one for each.
    ///
    /// # Errors
    /// No driver, a device that does not answer, numbers that a port cannot do, no memory.
    pub(super) fn open(plan: &Plan, devices: Vec<Arc<dyn SoftwareDevice>>) -> Result<Setup, AppError> {
        let mut opened = Vec::new();
        let (mut devices, mut functions) = (devices.into_iter(), Functions::check(plan)?);
        for named in &plan.ports {
            let made = match (&named.target, devices.next()) {
                (Target::Pci(address), _) => functions.open(&named.uri, *address)?,
                (Target::VhostUser(name), _) => open_vhost_user(plan, &named.uri, name)?,
                (Target::VfioUser(path), _) => open_served(&named.uri, path)?,
                (Target::Simulated(_), Some(device)) => open_simulated(&named.uri, device)?,
                (Target::Simulated(_), None) => continue,
            };
            check(plan, made.port.as_ref())?;
            opened.push(made);
        }
        let mut memory = Memory { choice: plan.pages, shortage: None, huge_pages: 0 };
        let spaces: Vec<AddressSpace> = opened.iter().map(|made| made.space.clone()).collect();
        let mut ports = Vec::new();
        for (position, Opened { port, space, iommu, function }) in opened.into_iter().enumerate() {
            let frames = pool_frames(plan, plan.frames)?;
            let pool: Pool<Both> = memory.pool(&format!("port {position}"), frames, &[&space])?;
            let partner = &spaces[plan.partner(position)];
            let copies = match plan.copy {
                Some(_) => Some(memory.pool(&format!("copies of port {position}"), frames, &[partner])?),
                None if partner.is(&space) => None,
                None => pool.share(partner).map(|()| None)?,
            };
            let config = port_config(plan, &pool);
            let uri = plan.ports[position].uri.clone();
            ports.push(OpenPort { uri, port, pool, copies, config, space, iommu, function });
        }
        let prime_pool = prime_pool(plan, &spaces, &mut memory)?;
        let (faults, note) = Faults::watch(&ports);
        Ok(Setup { ports, prime_pool, faults, notes: memory.note().into_iter().chain(note).collect() })
    }
}

/// The driver of a device, found by its ids.
fn open_with_driver(uri: &str, device: Device, space: &AddressSpace) -> Result<Box<dyn Port>, AppError> {
    let (vendor, id) = device.id();
    let entry = pollring_drivers::find(pollring_drivers::builtin(), vendor, id).ok_or_else(|| {
        AppError::Usage(format!(
            "port `{uri}`: no driver for {vendor:04x}:{id:04x}; `pollring devices` lists what has one"
        ))
    })?;
    Ok((entry.open)(device, space)?)
}

/// Puts a software device behind an IOMMU of its own.
fn open_simulated(uri: &str, device: Arc<dyn SoftwareDevice>) -> Result<Opened, AppError> {
    let iommu = Arc::new(SimulatedIommu::default());
    let space = AddressSpace::new(uri, iommu.clone());
    let device = Device::open(uri, simulated::backend(device, iommu.clone()))?;
    let port = open_with_driver(uri, device, &space)?;
    Ok(Opened { port, space, iommu: Some(iommu), function: None })
}

/// Opens the function of another process.
fn open_served(uri: &str, path: &Path) -> Result<Opened, AppError> {
    let (device, space) = open_vfio_user(uri, path)?;
    let port = open_with_driver(uri, device, &space)?;
    Ok(Opened { port, space, iommu: None, function: None })
}

fn open_vhost_user(plan: &Plan, uri: &str, name: &VhostUserName) -> Result<Opened, AppError> {
    let (port, space) = super::vhost_user::open(plan, uri, name)?;
    Ok(Opened { port, space, iommu: None, function: None })
}

/// PCI functions of this run, and the containers that they are in, by group.
struct Functions(Vec<(u32, Arc<Container>, AddressSpace)>);

impl Functions {
    /// Looks at everything that a function of the plan may lack, before the first is opened.
    fn check(plan: &Plan) -> Result<Functions, AppError> {
        let pinned_bytes = pinned_bytes(plan)?;
        for named in &plan.ports {
            if let Target::Pci(address) = named.target {
                Sysfs::new().check_ready(address, pinned_bytes)?;
            }
        }
        Ok(Functions(Vec::new()))
    }

    /// Opens a function in a space of its own, or in that of the function with which it shares an IOMMU group.
    fn open(&mut self, uri: &str, address: PciAddress) -> Result<Opened, AppError> {
        let group = Sysfs::new().group_of(address)?;
        let known = self.0.iter().find(|(other, ..)| *other == group);
        let (container, space) = match known {
            Some((_, container, space)) => (container.clone(), space.clone()),
            None => {
                let container = Container::new()?;
                let space = AddressSpace::new(uri, container.clone());
                self.0.push((group, container.clone(), space.clone()));
                (container, space)
            }
        };
        let device = Device::open(uri, container.open(address)?)?;
        let port = open_with_driver(uri, device, &space)?;
        Ok(Opened { port, space, iommu: None, function: Some(address) })
    }
}

/// Memory that a plan pins, at most: what is mapped in two spaces counts twice (Documentation/driver-api/vfio.rst).
fn pinned_bytes(plan: &Plan) -> Result<u64, AppError> {
    let page = match plan.pages {
        PageChoice::Small => PageSize::Small4K.bytes(),
        PageChoice::Auto | PageChoice::Huge => PageSize::Huge2M.bytes(),
    };
    let whole = |bytes: usize| bytes.checked_next_multiple_of(page).unwrap_or(usize::MAX);
    let buffer_bytes = PoolConfig::new("", 0).buffer_bytes;
    let pool = whole(pool_frames(plan, plan.frames)?.saturating_mul(buffer_bytes));
    let rings = whole(plan.queues * 2 * plan.entries * DESCRIPTOR_BYTES);
    let prime = if plan.prime == 0 { 0 } else { whole(prime_frames(plan) * buffer_bytes) };
    // With copies, the partner maps those instead.
    let alone = |position: usize| plan.partner(position) == position && plan.copy.is_none();
    let spaces_a_pool = |position: usize| if alone(position) { 1 } else { 2 };
    let ports = 0..plan.ports.len();
    let pinned = |position: usize| pool.saturating_mul(spaces_a_pool(position)).saturating_add(rings + prime);
    Ok(ports.map(|position| pinned(position) as u64).fold(0, u64::saturating_add))
}

/// What the port can do decides before memory is taken; `PortConfig::validate` looks at all of it once more.
fn check(plan: &Plan, port: &dyn Port) -> Result<(), PortError> {
    let capabilities = port.capabilities();
    let fail = |what: String| Err(PortError::Config { port: port.uri().to_owned(), what });
    if plan.queues > capabilities.queue_pairs {
        return fail(format!(
            "--queues {}: it has 1 to {} queue pairs",
            plan.queues, capabilities.queue_pairs
        ));
    }
    if !capabilities.ring_entries.contains(&plan.entries) {
        let (low, high) = (capabilities.ring_entries.start(), capabilities.ring_entries.end());
        return fail(format!("--entries {}: its rings have {low} to {high}, a power of two", plan.entries));
    }
    Ok(())
}

/// How many buffers a pool must have so that none of its rings runs dry: its receive rings and its partner's transmit rings full, each
/// worker's cache full, each forwarder's bursts full.
fn pool_frames(plan: &Plan, asked: Option<usize>) -> Result<usize, AppError> {
    let needed = plan.queues * (2 * plan.entries + 2 * BURST) + plan.cores.len() * CACHE_FRAMES;
    match asked {
        // A whole number of 2 MiB pages at 2 KiB a buffer.
        None => Ok(needed.next_multiple_of(1024)),
        Some(frames) if frames >= needed => Ok(frames),
        Some(frames) => Err(AppError::Usage(format!(
            "--frames {frames}: {} queue pairs with rings of {} and {} workers need {needed}; raise it, leave it out, or lower \
             --entries, --queues or --cores",
            plan.queues,
            plan.entries,
            plan.cores.len()
        ))),
    }
}

/// Makes pools on the pages that were chosen, and remembers why they are not huge where they might be.
struct Memory {
    choice: PageChoice,
    shortage: Option<String>,
    /// What all pools so far would take.
    huge_pages: usize,
}

impl Memory {
    fn pool<D: Access>(
        &mut self,
        name: &str,
        frames: usize,
        spaces: &[&AddressSpace],
    ) -> Result<Pool<D>, AppError> {
        let mut config = PoolConfig::new(name, frames);
        self.huge_pages += frames.saturating_mul(config.buffer_bytes).div_ceil(PageSize::Huge2M.bytes());
        if self.choice == PageChoice::Small {
            config.pages = Pages::Small4K { reason: "--pages small".to_owned() };
            return Ok(Pool::new(&config, spaces)?);
        }
        match Pool::new(&config, spaces) {
            Err(PoolError::Region(error)) if self.choice == PageChoice::Auto => {
                let reason = error.to_string();
                self.shortage.get_or_insert(reason.clone());
                config.pages = Pages::Small4K { reason };
                Ok(Pool::new(&config, spaces)?)
            }
            made => Ok(made?),
        }
    }

    fn note(self) -> Option<String> {
        let (reason, pages) = (self.shortage?, self.huge_pages);
        Some(format!(
            "note: packet memory lies on 4 KiB pages; on 2 MiB pages it takes {pages} of them in all: {reason}"
        ))
    }
}

fn port_config(plan: &Plan, pool: &Pool<Both>) -> PortConfig {
    PortConfig {
        queue_pairs: plan.queues,
        rx_entries: plan.entries,
        tx_entries: plan.entries,
        // A forwarder takes frames for any address.
        promiscuous: Promiscuous::On,
        ..PortConfig::new(pool)
    }
}

/// Memory for --prime, which every port may read: as many frames as all transmit rings hold.
fn prime_pool(
    plan: &Plan,
    spaces: &[AddressSpace],
    memory: &mut Memory,
) -> Result<Option<Pool<ToDevice>>, AppError> {
    if plan.prime == 0 {
        return Ok(None);
    }
    let mut distinct: Vec<&AddressSpace> = Vec::new();
    for space in spaces {
        if !distinct.iter().any(|other| other.is(space)) {
            distinct.push(space);
        }
    }
    Ok(Some(memory.pool("prime", prime_frames(plan), &distinct)?))
}

fn prime_frames(plan: &Plan) -> usize {
    let frames = plan.ports.len() * (plan.entries + BURST) + plan.cores.len() * CACHE_FRAMES;
    frames.next_multiple_of(1024)
}
