//! IOMMU faults: what devices tried to reach and could not, read from the kernel log.
//!
//! VFIO tells a process nothing about faults; the drivers of the IOMMUs print them. A [`FaultWatch`] reads /dev/kmsg from the moment
//! it is made and never waits. **That there is no event proves nothing**: the kernel limits how often it prints (Intel: about
//! three lines in 5 s, for all devices together), other messages may push lines out before they are read, and reading needs
//! CAP_SYSLOG where `kernel.dmesg_restrict` is 1. A device that faulted may still report its work as done.

use super::PciAddress;
use crate::iova::Mapped;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The kernel's longest record is 2,048 bytes and a header (kernel/printk/internal.h); a shorter buffer gives EINVAL.
const RECORD_BYTES: usize = 8192;
/// Reads in one poll: a log that fills faster than it is read does not hold the caller.
const READS_A_POLL: usize = 1024;

/// What a device tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultAccess {
    /// To read memory.
    Read,
    /// To write memory.
    Write,
}

impl fmt::Display for FaultAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FaultAccess::Read => "read",
            FaultAccess::Write => "write",
        })
    }
}

/// An access that the IOMMU refused. Intel's and Arm's name the page, so `iova` may be a multiple of 4,096 though the device
/// meant a byte in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DmaFault {
    /// The requester. Behind a PCIe-to-PCI bridge it is the bridge.
    pub device: PciAddress,
    /// What it tried.
    pub access: FaultAccess,
    /// The device address.
    pub iova: u64,
}

impl fmt::Display for DmaFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tried to {} {:#x}", self.device, self.access, self.iova)
    }
}

/// Where a fault lies, seen from what is mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this range: it was mapped for less than the device tried, or not yet, or no more.
    Inside(Mapped),
    /// Bytes between the range's end and the fault.
    Behind(u64, Mapped),
    /// Bytes between the fault and the range's start.
    Before(u64, Mapped),
    /// Nothing is mapped.
    Nowhere,
}

/// A fault and its place, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultEvent {
    /// What happened.
    pub fault: DmaFault,
    /// Where.
    pub place: Place,
}

impl fmt::Display for FaultEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fault = &self.fault;
        match &self.place {
            Place::Inside(range) => {
                write!(f, "{fault}: inside {range}, which does not allow it or was not mapped at that moment")
            }
            Place::Behind(0, range) => write!(f, "{fault}: right behind {range}"),
            Place::Behind(bytes, range) => write!(f, "{fault}: {bytes} bytes behind {range}"),
            Place::Before(bytes, range) => write!(f, "{fault}: {bytes} bytes before {range}"),
            Place::Nowhere => write!(f, "{fault}: nothing is mapped for it"),
        }
    }
}

impl DmaFault {
    /// The fault with the mapping that is nearest to it; of two as near, the one below.
    pub fn among(self, mapped: &[Mapped]) -> FaultEvent {
        let distance = |range: &Mapped| match self.iova {
            iova if iova > range.last => (iova - range.last - 1, 0),
            iova if iova < range.first => (range.first - iova, 1),
            // Inside is nearer than right behind another.
            _ => (0, -1),
        };
        let nearest =
            mapped.iter().map(|range| (distance(range), range)).min_by_key(|(distance, _)| *distance);
        let place = match nearest {
            None => Place::Nowhere,
            Some(((_, -1), range)) => Place::Inside(range.clone()),
            Some(((bytes, 0), range)) => Place::Behind(bytes, range.clone()),
            Some(((bytes, _), range)) => Place::Before(bytes, range.clone()),
        };
        FaultEvent { fault: self, place }
    }
}

/// Why faults cannot be watched. A program goes on without.
#[derive(Debug, Error)]
pub enum FaultWatchError {
    /// The caller may not read the log.
    #[error(
        "read {}: {error}; faults are not shown. Run as root, give the process CAP_SYSLOG, or set kernel.dmesg_restrict=0; the \
         log has them all the same",
        path.display()
    )]
    NotPermitted {
        /// The log.
        path: PathBuf,
        /// The errno.
        error: io::Error,
    },
    /// There is no log, as in many containers, or it cannot be read.
    #[error("read {}: {error}; faults are not shown", path.display())]
    Unreadable {
        /// The log.
        path: PathBuf,
        /// The errno.
        error: io::Error,
    },
}

/// Reads faults from the kernel log as they come.
pub struct FaultWatch {
    path: PathBuf,
    log: File,
    rest: Vec<u8>,
    parser: Parser,
    overruns: u64,
}

impl FaultWatch {
    /// Watches this machine's log from now on.
    ///
    /// # Errors
    /// Not permitted, or no log.
    pub fn new() -> Result<FaultWatch, FaultWatchError> {
        FaultWatch::at("/dev/kmsg")
    }

    /// Watches another log: a device like /dev/kmsg, or a file that grows by lines.
    ///
    /// # Errors
    /// As [`FaultWatch::new`].
    pub fn at(path: impl AsRef<Path>) -> Result<FaultWatch, FaultWatchError> {
        let path = path.as_ref();
        let open = || {
            let mut log = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
            log.seek(SeekFrom::End(0))?;
            Ok(log)
        };
        let log = open().map_err(|error| refused(path, error))?;
        Ok(FaultWatch { path: path.into(), log, rest: Vec::new(), parser: Parser::default(), overruns: 0 })
    }

    /// The faults that were logged since the last call. It never waits.
    ///
    /// # Errors
    /// The log cannot be read any more.
    pub fn poll(&mut self) -> Result<Vec<DmaFault>, FaultWatchError> {
        let mut faults = Vec::new();
        let mut record = [0; RECORD_BYTES];
        for _ in 0..READS_A_POLL {
            match self.log.read(&mut record) {
                Ok(0) => break,
                Ok(bytes) => self.take(&record[..bytes], &mut faults),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // EPIPE: records were overwritten before they were read; the next read goes on after them.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.overruns += 1,
                Err(error) => return Err(refused(&self.path, error)),
            }
        }
        Ok(faults)
    }

    /// How often the log ran over before it was read, so that faults may be missing.
    pub fn overruns(&self) -> u64 {
        self.overruns
    }

    /// Bytes of the log; a line may come in parts.
    fn take(&mut self, bytes: &[u8], faults: &mut Vec<DmaFault>) {
        self.rest.extend_from_slice(bytes);
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            faults.extend(self.parser.line(&String::from_utf8_lossy(&line)));
        }
        if self.rest.len() > RECORD_BYTES {
            self.rest.clear();
        }
    }
}

fn refused(path: &Path, error: io::Error) -> FaultWatchError {
    let path = path.to_owned();
    match error.kind() {
        io::ErrorKind::PermissionDenied => FaultWatchError::NotPermitted { path, error },
        _ => FaultWatchError::Unreadable { path, error },
    }
}

/// Turns lines of the log into faults. It keeps the first of Arm's two lines until the second comes.
#[derive(Debug, Default)]
pub struct Parser {
    arm: Option<(PciAddress, u64)>,
}

impl Parser {
    /// The fault that this line completes. Lines may have the header of /dev/kmsg, that of dmesg, or none.
    pub fn line(&mut self, line: &str) -> Option<DmaFault> {
        // Continuation lines of a record: SUBSYSTEM= and DEVICE= (Documentation/ABI/testing/dev-kmsg).
        if line.starts_with(' ') {
            return None;
        }
        intel(line).or_else(|| amd(line)).or_else(|| virtio(line)).or_else(|| self.arm(line))
    }

    /// `arm-smmu-v3 ...: event: F_TRANSLATION client: 0000:01:00.0 sid: 0x100 ssid: 0x0 iova: 0x1000 ipa: 0x0`, then
    /// `arm-smmu-v3 ...: unpriv data write s1 "Input address caused fault" stag: 0x0` (drivers/iommu/arm/arm-smmu-v3, from 6.14 on).
    fn arm(&mut self, line: &str) -> Option<DmaFault> {
        let text = line.split_once("arm-smmu-v3 ")?.1;
        if let Some((_, event)) = text.split_once(" event: F_") {
            let device = word_after(event, "client: ")?.parse().ok();
            self.arm = device.zip(hex(word_after(event, " iova: ")?));
            return None;
        }
        let access = match (text.contains(" data read "), text.contains(" data write ")) {
            (true, false) => FaultAccess::Read,
            (false, true) => FaultAccess::Write,
            _ => return None,
        };
        let (device, iova) = self.arm.take()?;
        Some(DmaFault { device, access, iova })
    }
}

/// `DMAR: [DMA Read NO_PASID] Request device [0000:01:00.0] fault addr 0x1000 [fault reason 0x06] ...` (drivers/iommu/intel/dmar.c).
/// Older kernels have no domain, `[DMA Read]`, `PASID ffffffff` between device and address, and no 0x.
fn intel(line: &str) -> Option<DmaFault> {
    let text = line.split_once("DMAR: [DMA ")?.1;
    let access = match text.split([' ', ']']).next()? {
        "Read" => FaultAccess::Read,
        "Write" => FaultAccess::Write,
        _ => return None,
    };
    let device = text.split_once("Request device [")?.1.split(']').next()?.parse().ok()?;
    Some(DmaFault { device, access, iova: hex(word_after(text, " fault addr ")?)? })
}

/// AMD's flag of a write (EVENT_FLAG_RW, drivers/iommu/amd/amd_iommu_types.h).
const AMD_WRITE: u64 = 0x20;

/// `AMD-Vi: Event logged [IO_PAGE_FAULT device=0000:01:00.0 domain=0x0000 address=0x1000 flags=0x0020]`, without the domain on older
/// kernels; or `vfio-pci 0000:01:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0000 address=...` (drivers/iommu/amd/iommu.c).
fn amd(line: &str) -> Option<DmaFault> {
    let (before, text) = line.split_once("AMD-Vi: Event logged [IO_PAGE_FAULT ")?;
    let text = text.split(']').next()?;
    let device = match word_after(text, "device=") {
        Some(device) => device,
        None => before.trim_end().strip_suffix(':')?.rsplit(' ').next()?,
    };
    let flags = hex(word_after(text, "flags=")?)?;
    let access = if flags & AMD_WRITE == 0 { FaultAccess::Read } else { FaultAccess::Write };
    Some(DmaFault { device: device.parse().ok()?, access, iova: hex(word_after(text, "address=")?)? })
}

/// `virtio_iommu virtio0: page fault from EP 256 at 0x1000 [W]` (drivers/iommu/virtio-iommu.c). The endpoint's number is taken for
/// the requester id of PCI domain 0, as QEMU's and cloud-hypervisor's are.
fn virtio(line: &str) -> Option<DmaFault> {
    let text = line.split_once("virtio_iommu ")?.1.split_once(" fault from EP ")?.1;
    let (endpoint, text) = text.split_once(" at ")?;
    let endpoint: u16 = endpoint.parse().ok()?;
    let (iova, text) = text.split_once(" [")?;
    let access = if text.split(']').next()?.contains('W') { FaultAccess::Write } else { FaultAccess::Read };
    let [bus, rest] = endpoint.to_be_bytes();
    let device = PciAddress { domain: 0, bus, device: rest >> 3, function: rest & 7 };
    Some(DmaFault { device, access, iova: hex(iova)? })
}

/// The word behind `key`.
fn word_after<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.split_once(key)?.1.split_whitespace().next()
}

fn hex(word: &str) -> Option<u64> {
    u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::FaultAccess::{Read as R, Write as W};
    use super::*;
    use crate::iova::Direction;
    use std::io::Write;

    /// Lines as the kernels print them, with the headers of /dev/kmsg and dmesg, and what they say.
    const LINES: &[(&str, &str, FaultAccess, u64)] = &[
        (
            "3,812,5511,-;DMAR: [DMA Read NO_PASID] Request device [0000:01:00.0] fault addr 0x40001000 [fault reason 0x06] PTE Read access is not set",
            "0000:01:00.0",
            R,
            0x4000_1000,
        ),
        (
            "3,812,5511,-,caller=C0;DMAR: [DMA Write NO_PASID] Request device [01:00.0] fault addr 0xfffffffff000 [fault reason 0x05] PTE Write access is not set",
            "0000:01:00.0",
            W,
            0xffff_ffff_f000,
        ),
        (
            "[   12.345678] DMAR: [DMA Write PASID 0x3] Request device [00:1f.7] fault addr 0x0 [fault reason 0x05] x",
            "0000:00:1f.7",
            W,
            0,
        ),
        (
            "DMAR: [DMA Write] Request device [01:00.0] PASID ffffffff fault addr 1000 [fault reason 05] PTE Write access is not set",
            "0000:01:00.0",
            W,
            0x1000,
        ),
        (
            "DMAR: [DMA Read] Request device [81:00.1] fault addr fffff000 [fault reason 06] x",
            "0000:81:00.1",
            R,
            0xffff_f000,
        ),
        (
            "AMD-Vi: Event logged [IO_PAGE_FAULT device=01:00.0 domain=0x000a address=0x0000000012345000 flags=0x0020]",
            "0000:01:00.0",
            W,
            0x1234_5000,
        ),
        (
            "3,1,2,-;AMD-Vi: Event logged [IO_PAGE_FAULT device=0001:01:00.0 domain=0x000a address=0x12345040 flags=0x0000]",
            "0001:01:00.0",
            R,
            0x1234_5040,
        ),
        (
            "3,900,77,-;vfio-pci 0000:c1:00.3: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0010 address=0x1000 flags=0x0030]",
            "0000:c1:00.3",
            W,
            0x1000,
        ),
        ("3,1,2,-;virtio_iommu virtio0: page fault from EP 256 at 0x1000 [W]", "0000:01:00.0", W, 0x1000),
        ("virtio_iommu virtio0: domain fault from EP 17 at 0xffff000 [R]", "0000:00:02.1", R, 0xffff000),
    ];

    #[test]
    fn every_form_is_read() {
        for (line, device, access, iova) in LINES {
            let fault = Parser::default().line(line);
            let wanted = DmaFault { device: device.parse().unwrap(), access: *access, iova: *iova };
            assert_eq!(fault, Some(wanted), "{line}");
        }
    }

    #[test]
    fn arm_takes_two_lines() {
        let mut parser = Parser::default();
        let first = "3,1,2,-;arm-smmu-v3 arm-smmu-v3.0.auto: event: F_TRANSLATION client: 0000:01:00.0 sid: 0x100 ssid: 0x0 iova: 0xdead000 ipa: 0x0";
        let second = "3,2,3,-;arm-smmu-v3 arm-smmu-v3.0.auto: unpriv data write s1 \"Input address caused fault\" stag: 0x0";
        assert_eq!(parser.line(second), None, "nothing came before it");
        assert_eq!(parser.line(first), None);
        assert_eq!(parser.line(" SUBSYSTEM=platform"), None);
        assert_eq!(parser.line("3,2,3,-;something else"), None);
        let fault = parser.line(second).unwrap();
        assert_eq!(fault.to_string(), "0000:01:00.0 tried to write 0xdead000");
        assert_eq!(parser.line(second), None, "used up");
        parser.line(first);
        parser.line(&first.replace("0000:01:00.0", "(unassigned sid)"));
        assert_eq!(parser.line(&second.replace("write", "read")), None);
    }

    #[test]
    fn other_lines_and_torn_ones_are_no_faults() {
        let mut parser = Parser::default();
        for line in [
            "",
            "DMAR: DRHD: handling fault status reg 2",
            "DMAR: [DMA Translate] Request device [01:00.0] fault addr 0x0",
            "DMAR: [INTR-REMAP] Request device [0000:01:00.0] fault index 0x0 [fault reason 0x22] x",
            "DMAR: [DMA Read NO_PASID] Request device [01:00",
            "DMAR: [DMA Read NO_PASID] Request device [01:00.9] fault addr 0x1000",
            "AMD-Vi: Event logged [ILLEGAL_DEV_TABLE_ENTRY device=01:00.0 pasid=0x0 address=0x0 flags=0x0]",
            "AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0010 address=0x1000 flags=0x0030]",
            "AMD-Vi: Event logged [IO_PAGE_FAULT device=01:00.0 domain=0x0000",
            "virtio_iommu virtio0: page fault from EP 256",
            "virtio_iommu virtio0: page fault from EP 70000 at 0x1000 [W]",
            "arm-smmu-v3 x: event: F_STE_FETCH client: 0000:01:00.0 sid: 0x1 ssid: 0x0 fetch_addr: 0x0",
        ] {
            assert_eq!(parser.line(line), None, "{line}");
        }
        for (line, ..) in LINES {
            for end in 0..line.len() {
                parser.line(&line[..end]);
            }
        }
    }

    #[test]
    fn a_fault_is_told_by_the_nearest_mapping() {
        let range =
            |first, last, name: &str| Mapped { first, last, direction: Direction::Both, name: name.into() };
        let mapped = [
            range(0x20_0000, 0x3f_ffff, "port 0 pool"),
            range(0x80_0000, 0x80_0fff, "rings"),
            range(0x40_0000, 0x40_0fff, "port 1 pool"),
        ];
        let told = |iova| {
            let fault = DmaFault { device: "01:00.0".parse().unwrap(), access: W, iova };
            fault.among(&mapped).to_string()
        };
        let cases = [
            (
                0x40_2000,
                "0000:01:00.0 tried to write 0x402000: 4096 bytes behind `port 1 pool` (0x400000-0x400fff)",
            ),
            (
                0x40_1000,
                "0000:01:00.0 tried to write 0x401000: right behind `port 1 pool` (0x400000-0x400fff)",
            ),
            (
                0x1f_f000,
                "0000:01:00.0 tried to write 0x1ff000: 4096 bytes before `port 0 pool` (0x200000-0x3fffff)",
            ),
            (
                0x7f_0000,
                "0000:01:00.0 tried to write 0x7f0000: 65536 bytes before `rings` (0x800000-0x800fff)",
            ),
        ];
        for (iova, text) in cases {
            assert_eq!(told(iova), text);
        }
        assert!(told(0x40_0000).contains("inside `port 1 pool`"), "inside, though right behind another");
        assert!(told(u64::MAX).contains("behind `rings`") && told(0).contains("before `port 0 pool`"));
        let fault = DmaFault { device: "01:00.0".parse().unwrap(), access: R, iova: 0 };
        assert_eq!(fault.among(&[]).to_string(), "0000:01:00.0 tried to read 0x0: nothing is mapped for it");
        let all = [range(0, u64::MAX, "all")];
        assert!(fault.among(&all).to_string().contains("inside `all`"));
    }

    #[test]
    fn a_watch_gives_what_comes_after_it_was_made_and_never_waits() {
        let path = std::env::temp_dir().join(format!("pollring-faults-{}", std::process::id()));
        std::fs::write(&path, format!("{}\n", LINES[0].0)).unwrap();
        let mut watch = FaultWatch::at(&path).unwrap();
        assert!(watch.poll().unwrap().is_empty(), "that one was there before");
        let mut log = OpenOptions::new().append(true).open(&path).unwrap();
        let (start, end) = LINES[1].0.split_at(50);
        write!(log, "{}\n SUBSYSTEM=pci\n{start}", LINES[7].0).unwrap();
        assert_eq!(watch.poll().unwrap().len(), 1);
        assert!(watch.poll().unwrap().is_empty());
        writeln!(log, "{end}").unwrap();
        let faults = watch.poll().unwrap();
        assert_eq!((faults.len(), faults[0].iova, watch.overruns()), (1, 0xffff_ffff_f000, 0));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn no_log_is_an_error_that_says_so() {
        let error = FaultWatch::at("/nonexistent/kmsg").err().unwrap();
        assert!(matches!(error, FaultWatchError::Unreadable { .. }));
        assert!(error.to_string().contains("/nonexistent/kmsg"), "{error}");
        let denied = refused(Path::new("/dev/kmsg"), io::Error::from_raw_os_error(libc::EPERM));
        assert!(matches!(denied, FaultWatchError::NotPermitted { .. }));
        assert!(denied.to_string().contains("CAP_SYSLOG"), "{denied}");
    }

    #[test]
    fn this_machines_log_is_read_without_waiting() {
        // Where it may be read.
        if let Ok(mut watch) = FaultWatch::new() {
            watch.poll().unwrap();
        }
    }
}
