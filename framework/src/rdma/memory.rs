//! Memory regions: who may reach which bytes, and when memory comes back.
//!
//! A region is a counted handle. Requests and the transport's own work in progress hold one each. [`MemoryRegion::deregister`]
//! revokes the keys at once, so that nothing new begins, and gives the memory back when the last handle is gone and the device
//! is quiet. A transport's key table holds [`WeakRegion`]s. Every access of a peer passes [`authorize`], the one place where
//! keys, domains, rights and bounds are compared.

use super::{LKey, ProtectionDomain, RKey, RdmaError};
use crate::buffer::Shared;
use bitflags::bitflags;
use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use thiserror::Error;

bitflags! {
    /// Rights over a region, and over all regions through one QP (`ibv_access_flags`). Local reads are always allowed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Access: u32 {
        /// Receives, READs and atomics of this side may store here.
        const LOCAL_WRITE = 1;
        /// Peers may WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may READ.
        const REMOTE_READ = 1 << 2;
        /// Peers may do atomics.
        const REMOTE_ATOMIC = 1 << 3;
    }
}

/// What a transport puts behind a region. A transport whose hardware reaches the memory keeps its own [`Shared`] handle in it
/// until the hardware is quiet, since a region may be dropped without asking.
pub trait Revoke: Any + Send + Sync {
    /// Takes the keys out of use; nothing new begins with them. Called at least once, from any thread; never waits.
    fn revoke(&self);

    /// Whether no access is under way that holds no handle: always true in software, on hardware once it confirmed.
    fn is_quiet(&self) -> bool;
}

/// What a region is made of.
pub struct Registration {
    /// Its domain.
    pub pd: ProtectionDomain,
    /// Its bytes.
    pub memory: Shared,
    /// How peers address its first byte.
    pub base: u64,
    /// Rights.
    pub access: Access,
    /// Local key.
    pub lkey: LKey,
    /// Remote key.
    pub rkey: RKey,
    /// The transport's own.
    pub provider: Box<dyn Revoke>,
}

struct Inner {
    parts: Registration,
    local: AtomicBool,
    remote: AtomicBool,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.parts.provider.revoke();
    }
}

/// Registered memory. Clones are handles to one region; dropping the last one deregisters it.
#[derive(Clone)]
pub struct MemoryRegion(Arc<Inner>);

/// A handle for key tables: it does not keep the region.
#[derive(Clone)]
pub struct WeakRegion(Weak<Inner>);

impl WeakRegion {
    /// The region, if it is still there.
    #[inline]
    pub fn upgrade(&self) -> Option<MemoryRegion> {
        self.0.upgrade().map(MemoryRegion)
    }
}

impl MemoryRegion {
    /// For transports: a region that is valid from now on.
    ///
    /// # Errors
    /// Rights without those that they need, addresses that wrap, or atomics on memory that is not aligned.
    pub fn new(parts: Registration) -> Result<MemoryRegion, RdmaError> {
        let (base, bytes) = (parts.base, parts.memory.bytes());
        let refuse = |reason| Err(RdmaError::Memory { base, bytes, reason });
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if parts.access.intersects(writes) && !parts.access.contains(Access::LOCAL_WRITE) {
            return Err(RdmaError::Rights(parts.access));
        }
        if bytes == 0 || base.checked_add(bytes as u64).is_none() {
            return refuse(
                "it is empty, or its addresses wrap; register at least one byte, at a lower address",
            );
        }
        let atomic = parts.access.contains(Access::REMOTE_ATOMIC) && bytes >= 8;
        if atomic && (!base.is_multiple_of(8) || parts.memory.load_u64(0).is_err()) {
            return refuse(
                "atomics need memory and address aligned to 8 bytes; align both, or leave that right out",
            );
        }
        Ok(MemoryRegion(Arc::new(Inner {
            parts,
            local: AtomicBool::new(true),
            remote: AtomicBool::new(true),
        })))
    }

    /// Its bytes.
    pub fn memory(&self) -> &Shared {
        &self.0.parts.memory
    }

    /// How peers address its first byte.
    pub fn base(&self) -> u64 {
        self.0.parts.base
    }

    /// Its rights.
    pub fn access(&self) -> Access {
        self.0.parts.access
    }

    /// Its domain.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.0.parts.pd
    }

    /// The key for requests of this side.
    pub fn lkey(&self) -> LKey {
        self.0.parts.lkey
    }

    /// The key for peers.
    pub fn rkey(&self) -> RKey {
        self.0.parts.rkey
    }

    /// For transports: what they put behind it.
    pub fn provider(&self) -> &dyn Any {
        &*self.0.parts.provider
    }

    /// For key tables.
    pub fn downgrade(&self) -> WeakRegion {
        WeakRegion(Arc::downgrade(&self.0))
    }

    /// Ends the peers' access for good, as a SEND with invalidate does. Requests of this side go on.
    pub fn invalidate(&self) {
        self.0.remote.store(false, Ordering::Release);
    }

    /// Revokes the keys and waits, by being polled, for what is in flight.
    pub fn deregister(self) -> Deregistration {
        self.invalidate();
        self.0.local.store(false, Ordering::Release);
        self.0.parts.provider.revoke();
        Deregistration(self.0)
    }

    /// Whether a request of `pd` may use `bytes` at `offset`, with `needed` rights on this side.
    ///
    /// # Errors
    /// The first rule that it breaks; the completion says [`Status::LocalProtection`](super::Status::LocalProtection).
    pub fn check_local(
        &self,
        pd: &ProtectionDomain,
        offset: usize,
        bytes: usize,
        needed: Access,
    ) -> Result<(), AccessError> {
        let live = self.0.local.load(Ordering::Acquire);
        self.check(live, pd, needed)?;
        match offset.checked_add(bytes) {
            Some(end) if end <= self.memory().bytes() => Ok(()),
            _ => Err(self.out_of_bounds(self.base().wrapping_add(offset as u64), bytes as u64)),
        }
    }

    fn check_remote(&self, request: &RemoteAccess, pd: &ProtectionDomain) -> Result<usize, AccessError> {
        let live = self.rkey() == request.rkey && self.0.remote.load(Ordering::Acquire);
        self.check(live, pd, request.needed)?;
        let (size, bytes) = (self.memory().bytes() as u64, u64::from(request.bytes));
        match request.address.checked_sub(self.base()) {
            Some(offset) if offset <= size && bytes <= size - offset => Ok(offset as usize),
            _ => Err(self.out_of_bounds(request.address, bytes)),
        }
    }

    fn check(&self, live: bool, pd: &ProtectionDomain, needed: Access) -> Result<(), AccessError> {
        if !live {
            return Err(AccessError::Key);
        }
        if !self.pd().is(pd) {
            return Err(AccessError::Domain);
        }
        if !self.access().contains(needed) {
            return Err(AccessError::Right { needed, granted: self.access() });
        }
        Ok(())
    }

    fn out_of_bounds(&self, address: u64, bytes: u64) -> AccessError {
        AccessError::Bounds { address, bytes, base: self.base(), size: self.memory().bytes() }
    }
}

/// A region whose keys are revoked.
#[must_use = "poll it until the memory comes back"]
pub struct Deregistration(Arc<Inner>);

impl Deregistration {
    /// Handles that requests and the transport still hold.
    pub fn in_flight(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }

    /// The memory, once nothing uses it through this region.
    ///
    /// # Errors
    /// Something is in flight; ask again after polling the completion queues.
    pub fn poll(self) -> Result<Shared, Deregistration> {
        if !self.0.parts.provider.is_quiet() {
            return Err(self);
        }
        Arc::try_unwrap(self.0).map(|inner| inner.parts.memory.clone()).map_err(Deregistration)
    }
}

/// What a peer asks for: the fields of RETH or AtomicETH, and the right that the operation needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAccess {
    /// Address of the first byte.
    pub address: u64,
    /// Key.
    pub rkey: RKey,
    /// Length; 8 for atomics.
    pub bytes: u32,
    /// One remote right.
    pub needed: Access,
}

/// Memory that a peer may use as it asked.
#[derive(Clone)]
pub struct Target {
    /// The region; holding it keeps the memory registered.
    pub region: MemoryRegion,
    /// Where in it.
    pub offset: usize,
}

/// Decides about an access of a peer through a QP of `pd` with rights `qp_access`; `find` looks the key up. `None` is a granted
/// access of no bytes, for which no key is looked at (as in drivers/infiniband/sw/rxe/rxe_resp.c, `check_rkey`).
///
/// # Errors
/// The first rule that it breaks. All are NAK "remote access error", but [`AccessError::Misaligned`], which is "invalid
/// request".
pub fn authorize(
    request: &RemoteAccess,
    pd: &ProtectionDomain,
    qp_access: Access,
    find: impl FnOnce(RKey) -> Option<MemoryRegion>,
) -> Result<Option<Target>, AccessError> {
    if !qp_access.contains(request.needed) {
        return Err(AccessError::Right { needed: request.needed, granted: qp_access });
    }
    if request.needed == Access::REMOTE_ATOMIC && (request.bytes != 8 || !request.address.is_multiple_of(8)) {
        return Err(AccessError::Misaligned { address: request.address });
    }
    if request.bytes == 0 {
        return Ok(None);
    }
    let region = find(request.rkey).ok_or(AccessError::Key)?;
    let offset = region.check_remote(request, pd)?;
    Ok(Some(Target { region, offset }))
}

/// Why an access was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AccessError {
    /// No region has the key now.
    #[error("no region has this key, or it was revoked; exchange keys anew after registering")]
    Key,
    /// Region and QP are of different domains.
    #[error("the region belongs to another protection domain than the queue pair; register it in that one")]
    Domain,
    /// The region or the QP does not grant it.
    #[error("{needed:?} is not among the rights {granted:?}; grant it to both the region and the queue pair")]
    Right {
        /// What the operation needs.
        needed: Access,
        /// What is granted.
        granted: Access,
    },
    /// Outside the region.
    #[error(
        "{bytes} bytes at {address:#x} are not all within the region of {size} bytes at {base:#x}; check both ends"
    )]
    Bounds {
        /// Address asked.
        address: u64,
        /// Length asked.
        bytes: u64,
        /// First address of the region.
        base: u64,
        /// Its size.
        size: usize,
    },
    /// An atomic that is not one aligned word.
    #[error("atomic at {address:#x}: not one word of 8 bytes at a multiple of 8")]
    Misaligned {
        /// Address asked.
        address: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollring_hugepages::{Pages, Region, RegionConfig};

    const BASE: u64 = 0x1_0000;
    const BYTES: u64 = 4096;
    const KEY: RKey = RKey(0x1234_5678);

    #[derive(Default)]
    struct Fake {
        busy: bool,
    }

    impl Revoke for Fake {
        fn revoke(&self) {}
        fn is_quiet(&self) -> bool {
            !self.busy
        }
    }

    fn domain() -> ProtectionDomain {
        ProtectionDomain::new(1, Box::new(()))
    }

    fn build(pd: &ProtectionDomain, base: u64, access: Access) -> Result<MemoryRegion, RdmaError> {
        let pages = Pages::Small4K { reason: "a unit test".into() };
        let config = RegionConfig { name: "mr test".into(), bytes: BYTES as usize, pages, node: None };
        let memory = Shared::local(Arc::new(Region::allocate(&config).unwrap()));
        let (pd, provider) = (pd.clone(), Box::new(Fake::default()));
        MemoryRegion::new(Registration { pd, memory, base, access, lkey: LKey(9), rkey: KEY, provider })
    }

    fn ask(address: u64, bytes: u32, needed: Access) -> RemoteAccess {
        RemoteAccess { address, rkey: KEY, bytes, needed }
    }

    #[test]
    fn every_denied_access_is_denied_for_its_reason() {
        let (pd, all) = (domain(), Access::all());
        let region =
            build(&pd, BASE, Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC).unwrap();
        let find = |key: RKey| (key == KEY).then(|| region.clone());
        let denied = |request: RemoteAccess| authorize(&request, &pd, all, find).err();
        let bounds = |address, bytes| Some(AccessError::Bounds { address, bytes, base: BASE, size: 4096 });
        let read = Access::REMOTE_READ;
        assert_eq!(denied(ask(BASE, 4096, read)), None);
        assert_eq!(denied(ask(BASE + 4095, 1, read)), None);
        assert_eq!(denied(ask(BASE + 4095, 2, read)), bounds(BASE + 4095, 2));
        assert_eq!(denied(ask(BASE + 4096, 1, read)), bounds(BASE + 4096, 1));
        assert_eq!(denied(ask(BASE - 1, 1, read)), bounds(BASE - 1, 1));
        assert_eq!(denied(ask(BASE, u32::MAX, read)), bounds(BASE, u64::from(u32::MAX)));
        assert_eq!(denied(ask(u64::MAX, 2, read)), bounds(u64::MAX, 2));
        assert_eq!(denied(RemoteAccess { rkey: RKey(7), ..ask(BASE, 1, read) }), Some(AccessError::Key));
        let write = Access::REMOTE_WRITE;
        let right = AccessError::Right { needed: write, granted: region.access() };
        assert_eq!(denied(ask(BASE, 1, write)), Some(right));
        assert_eq!(denied(ask(BASE + 8, 8, Access::REMOTE_ATOMIC)), None);
        for (address, bytes) in [(BASE + 4, 8), (BASE, 4)] {
            let misaligned = Some(AccessError::Misaligned { address });
            assert_eq!(denied(ask(address, bytes, Access::REMOTE_ATOMIC)), misaligned);
        }
        assert!(matches!(
            denied(ask(BASE + 4096, 8, Access::REMOTE_ATOMIC)),
            Some(AccessError::Bounds { .. })
        ));
    }

    #[test]
    fn domain_queue_pair_and_no_bytes() {
        let (pd, all) = (domain(), Access::all());
        let region = build(&pd, BASE, all).unwrap();
        let request = ask(BASE + 8, 8, Access::REMOTE_WRITE);
        let grant = |pd: &ProtectionDomain, qp, request: &RemoteAccess| {
            authorize(request, pd, qp, |_| Some(region.clone()))
                .map(|target| target.map(|target| target.offset))
        };
        assert_eq!(grant(&pd, all, &request), Ok(Some(8)));
        assert_eq!(
            grant(&domain(), all, &request),
            Err(AccessError::Domain),
            "equal numbers are not one domain"
        );
        let read_only = Access::REMOTE_READ;
        let right = AccessError::Right { needed: Access::REMOTE_WRITE, granted: read_only };
        assert_eq!(grant(&pd, read_only, &request), Err(right));
        let nothing = RemoteAccess { rkey: RKey(0), bytes: 0, ..request };
        assert!(matches!(authorize(&nothing, &pd, all, |_| unreachable!()), Ok(None)));
        let recycled = RemoteAccess { rkey: RKey(8), ..request };
        assert_eq!(grant(&pd, all, &recycled), Err(AccessError::Key), "a table that finds the wrong region");
    }

    #[test]
    fn revoked_keys_open_nothing_and_memory_waits_for_what_is_in_flight() {
        let (pd, all) = (domain(), Access::all());
        let region = build(&pd, BASE, all).unwrap();
        let table = region.downgrade();
        let request = ask(BASE, 1, Access::REMOTE_READ);
        let target = authorize(&request, &pd, all, |_| table.upgrade()).unwrap().unwrap();
        region.invalidate();
        assert_eq!(authorize(&request, &pd, all, |_| table.upgrade()).err(), Some(AccessError::Key));
        assert_eq!(region.check_local(&pd, 0, 4096, Access::LOCAL_WRITE), Ok(()));
        let waiting = region.deregister();
        assert_eq!(target.region.check_local(&pd, 0, 1, Access::empty()), Err(AccessError::Key));
        assert_eq!(waiting.in_flight(), 1);
        let waiting = waiting.poll().err().unwrap();
        drop(target);
        assert_eq!(waiting.poll().ok().unwrap().bytes(), 4096);
        assert!(table.upgrade().is_none());
    }

    #[test]
    fn hardware_that_is_busy_keeps_the_memory() {
        let (pd, memory) = (domain(), build(&domain(), BASE, Access::empty()).unwrap().memory().clone());
        let provider = Box::new(Fake { busy: true });
        let (lkey, access) = (LKey(9), Access::empty());
        let region = Registration { pd, memory, base: 0, access, lkey, rkey: KEY, provider };
        assert!(MemoryRegion::new(region).unwrap().deregister().poll().is_err());
    }

    #[test]
    fn local_checks_and_registrations() {
        let pd = domain();
        let region = build(&pd, BASE, Access::empty()).unwrap();
        assert_eq!(region.check_local(&pd, 4096, 0, Access::empty()), Ok(()));
        for (offset, bytes) in [(4096, 1), (usize::MAX, 2), (1, usize::MAX)] {
            let denied = region.check_local(&pd, offset, bytes, Access::empty());
            assert!(matches!(denied, Err(AccessError::Bounds { .. })));
        }
        let write = Access::LOCAL_WRITE;
        let right = AccessError::Right { needed: write, granted: Access::empty() };
        assert_eq!(region.check_local(&pd, 0, 1, write), Err(right));
        assert!(matches!(build(&pd, BASE, Access::REMOTE_WRITE), Err(RdmaError::Rights(_))));
        assert!(matches!(build(&pd, u64::MAX - 4094, Access::empty()), Err(RdmaError::Memory { .. })));
        assert!(matches!(build(&pd, 4, Access::all()), Err(RdmaError::Memory { .. })));
        assert!(build(&pd, 4, Access::LOCAL_WRITE | Access::REMOTE_READ).is_ok());
    }
}
