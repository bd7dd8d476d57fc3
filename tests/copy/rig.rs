//! What the suite stands on: an engine, memory that it reaches, and a way to let it work. A test never waits without a bound.

use pollring::buffer::Shared;
use pollring::bus::{Device, simulated, simulated::SimulatedIommu};
use pollring::copy::*;
use pollring::hugepages::{Region, RegionConfig};
use pollring::iova::{AddressSpace, Direction, Placement, Ranges};
use pollring_drivers::copy::{edu::EduChannel, ioat::IoatChannel};
use pollring_simulator::edu::Edu;
use pollring_simulator::hostile::Lies;
use pollring_simulator::ioat::{Copies, Ioat};
use pollring_tests::small_pages;
use std::sync::Arc;

/// Operations that every engine of the suite takes at once.
pub const DEPTH: usize = 40;

/// Bytes of the memory that a test uses; the lower half is read, the upper one written.
pub const MEMORY: usize = 4 << 20;

/// Turns until an engine must have come to an end.
const PATIENCE_TURNS: usize = 20_000;

/// What works behind a channel.
#[derive(Clone)]
pub enum Engine {
    /// The caller's core, in a poll.
    Core,
    Ioat(Arc<Ioat>),
    Edu(Arc<Edu>),
}

impl Engine {
    /// Lets a device work: that many descriptors of I/OAT, one transfer of edu. Gives how many moved bytes.
    pub fn step(&self, budget: usize) -> usize {
        match self {
            Engine::Core => 0,
            Engine::Ioat(ioat) => ioat.step(budget),
            Engine::Edu(edu) => edu.step(budget),
        }
    }

    /// Takes a device off its bus.
    pub fn unplug(&self) {
        match self {
            Engine::Core => {}
            Engine::Ioat(ioat) => ioat.unplug(),
            Engine::Edu(edu) => edu.unplug(),
        }
    }

    pub fn is_device(&self) -> bool {
        !matches!(self, Engine::Core)
    }
}

/// An engine in a test's hands.
pub struct Rig {
    /// First, so that it is dropped before what it stands on.
    pub channel: Box<dyn Channel>,
    /// Mapped both ways.
    pub memory: Shared,
    pub space: AddressSpace,
    pub iommu: Arc<SimulatedIommu>,
    pub engine: Engine,
}

/// Small pages.
pub fn region(name: &str, bytes: usize) -> Arc<Region> {
    let config = RegionConfig { name: name.into(), bytes, pages: small_pages(), node: None };
    Arc::new(Region::allocate(&config).unwrap())
}

/// Memory of `bytes` in `space`.
pub fn mapped(space: &AddressSpace, bytes: usize, direction: Direction) -> Shared {
    let placement = Placement::new(region("copy test", bytes), &[space]).unwrap();
    Shared::mapped(Arc::new(space.map(&placement, direction).unwrap()))
}

/// Memory that has a device address, but none that this rig's engine reaches.
pub fn elsewhere() -> Shared {
    mapped(&AddressSpace::new("elsewhere", Arc::new(SimulatedIommu::default())), 8192, Direction::Both)
}

/// An IOMMU that allows every address that a kernel does.
fn low_iommu() -> Arc<SimulatedIommu> {
    Arc::new(SimulatedIommu::new(Ranges::new([(0, 0x3fff_ffff_ffff)])))
}

/// The same with an address that fits 28 bits.
pub fn elsewhere_low() -> Shared {
    mapped(&AddressSpace::new("elsewhere", low_iommu()), 8192, Direction::Both)
}

impl Rig {
    /// The CPU.
    pub fn memcpy() -> Rig {
        Rig::with(Engine::Core, Arc::default(), |_, _| Box::new(MemcpyChannel::new(DEPTH)))
    }

    /// A software I/OAT.
    pub fn ioat(copies: Copies, lies: Option<Lies>) -> Rig {
        let ioat = Ioat::new(copies, lies);
        Rig::with(Engine::Ioat(ioat.clone()), Arc::default(), |space, iommu| {
            let device = Device::open("sim:ioat", simulated::backend(ioat, iommu)).unwrap();
            Box::new(IoatChannel::open(device, space, DEPTH).unwrap_or_else(|error| panic!("{error}")))
        })
    }

    /// A software edu, behind an IOMMU that has the low addresses which it needs.
    pub fn edu(copies: Copies) -> Rig {
        let edu = Edu::new(copies);
        Rig::with(Engine::Edu(edu.clone()), low_iommu(), |space, iommu| {
            let device = Device::open("sim:edu", simulated::backend(edu, iommu)).unwrap();
            Box::new(EduChannel::open(device, space, DEPTH).unwrap_or_else(|error| panic!("{error}")))
        })
    }

    fn with(
        engine: Engine,
        iommu: Arc<SimulatedIommu>,
        open: impl FnOnce(&AddressSpace, Arc<SimulatedIommu>) -> Box<dyn Channel>,
    ) -> Rig {
        let space = AddressSpace::new("copy", iommu.clone());
        let channel = open(&space, iommu.clone());
        let memory = mapped(&space, MEMORY, Direction::Both);
        Rig { channel, memory, space, iommu, engine }
    }

    /// Every honest engine.
    pub fn all() -> Vec<Rig> {
        std::iter::once(Rig::memcpy()).chain(Rig::devices(Copies::True)).collect()
    }

    /// Every engine that is a device.
    pub fn devices(copies: Copies) -> Vec<Rig> {
        vec![Rig::ioat(copies, None), Rig::edu(copies)]
    }

    /// Lets the engine finish `budget` copies of one piece. Edu needs its driver's polls for that; they have no room to hand anything back.
    pub fn step(&mut self, budget: usize) {
        if let Engine::Edu(edu) = &self.engine {
            for _ in 0..2 * budget {
                edu.step(1);
                self.channel.poll(&mut Completed::new(0));
            }
        } else {
            self.engine.step(budget);
        }
    }

    pub fn part(&self, offset: usize, bytes: usize) -> Shared {
        self.memory.slice(offset, bytes).unwrap()
    }

    pub fn write(&self, offset: usize, data: &[u8]) {
        self.memory.copy_in(offset, data).unwrap();
    }

    pub fn read(&self, offset: usize, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        self.memory.copy_out(offset, &mut data).unwrap();
        data
    }

    /// A copy of 64 bytes, its own place for each cookie.
    pub fn numbered(&self, cookie: u64) -> Operation {
        let at = cookie as usize % 1000 * 64;
        Operation::copy(self.part(at, 64), self.part(MEMORY / 2 + at, 64), cookie)
    }

    pub fn submit(&mut self, operation: Operation) {
        self.channel.submit(operation).unwrap_or_else(|error| panic!("{error}"));
    }

    /// One poll.
    pub fn poll(&mut self, room: usize) -> Vec<(u64, Status)> {
        let mut completed = Completed::new(room);
        assert_eq!(self.channel.poll(&mut completed), completed.len());
        completed.drain().map(|completion| (completion.cookie(), completion.status)).collect()
    }

    /// Steps and polls until `count` came back.
    pub fn wait(&mut self, count: usize) -> Vec<(u64, Status)> {
        let mut ends = Vec::new();
        for _ in 0..PATIENCE_TURNS {
            ends.extend(self.poll(count - ends.len()));
            if ends.len() == count {
                return ends;
            }
            self.step(8);
        }
        panic!("{}: silence; {} of {count} came back", self.channel.name(), ends.len());
    }

    /// One operation from submission to its end.
    pub fn run(&mut self, operation: Operation) -> Status {
        self.submit(operation);
        self.channel.flush();
        self.wait(1)[0].1
    }
}
