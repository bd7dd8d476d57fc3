//! What is missing between a function and a port on it.
//!
//! [`Sysfs::check_ready`] looks at everything that can be seen without opening a VFIO device, in the order in which a user
//! sets it up, and stops at the first thing that is missing. Passing says that an open has no known reason to fail, not
//! that it will succeed: another process may have the group, and access lists of the file system are not read.

use super::process::Rights;
use super::{BindError, Member, NoGroup, Sysfs, UnknownFunction};
use crate::bus::PciAddress;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// A function that can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Its IOMMU group.
    pub group: u32,
    /// The node to open.
    pub node: PathBuf,
}

/// The first thing that is missing.
#[derive(Debug, Error)]
pub enum NotReady {
    /// No such function.
    #[error(transparent)]
    Unknown(#[from] UnknownFunction),
    /// Nothing would confine it.
    #[error(transparent)]
    NoGroup(#[from] NoGroup),
    /// Another driver has it, or none.
    #[error(
        "pci:{address}: {} has it, not vfio-pci; take it as root: `pollring bind {address}`",
        driver.as_deref().unwrap_or("no driver")
    )]
    NotBound {
        /// The function.
        address: PciAddress,
        /// Its driver.
        driver: Option<String>,
    },
    /// The kernel's VFIO is not there.
    #[error(
        "pci:{address}: {} is missing, so this kernel or container has no VFIO; load it as root: `modprobe vfio-pci`; a \
         container needs the file passed in",
        path.display()
    )]
    NoVfio {
        /// The function.
        address: PciAddress,
        /// The container's node.
        path: PathBuf,
    },
    /// Kernel drivers hold others of its group.
    #[error(transparent)]
    NotViable(BindError),
    /// The group's node is not there.
    #[error(
        "pci:{address}: {} is missing although vfio-pci has the function; a container needs the file passed in; elsewhere see \
         dmesg | grep -i vfio",
        path.display()
    )]
    NoNode {
        /// The function.
        address: PciAddress,
        /// Its group's node.
        path: PathBuf,
    },
    /// The node is not ours.
    #[error(
        "pci:{address}: user {user} may not open {}: it belongs to user {owner} with mode {mode:04o}; give it as root: \
         `pollring bind --user {user} {address}`",
        path.display()
    )]
    Denied {
        /// The function.
        address: PciAddress,
        /// The node.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its mode.
        mode: u32,
        /// Who asks.
        user: u32,
    },
    /// The memory cannot be pinned.
    #[error(
        "pci:{address}: the device needs {needed_bytes} bytes of locked memory, the limit is {limit_bytes} bytes and \
         {locked_bytes} are locked already; raise it (`ulimit -l unlimited` as root; LimitMEMLOCK=infinity in a systemd unit; \
         `USER - memlock unlimited` in /etc/security/limits.conf and a new login), give the process CAP_IPC_LOCK, or use fewer frames"
    )]
    MemoryLock {
        /// The function.
        address: PciAddress,
        /// What would be pinned.
        needed_bytes: u64,
        /// The soft limit.
        limit_bytes: u64,
        /// What is locked already.
        locked_bytes: u64,
    },
}

impl NotReady {
    /// A few words for a table.
    pub fn summary(&self) -> &'static str {
        match self {
            NotReady::Unknown(_) => "gone",
            NotReady::NoGroup(_) => "no IOMMU",
            NotReady::NotBound { .. } => "not bound to vfio-pci",
            NotReady::NoVfio { .. } => "no /dev/vfio/vfio",
            NotReady::NotViable(_) => "group not viable",
            NotReady::NoNode { .. } => "no node of its group in /dev/vfio",
            NotReady::Denied { .. } => "no permission on its group in /dev/vfio",
            NotReady::MemoryLock { .. } => "limit on locked memory",
        }
    }
}

impl Sysfs {
    /// The number of a function's IOMMU group (Documentation/ABI/testing/sysfs-kernel-iommu_groups).
    ///
    /// # Errors
    /// [`NotReady::Unknown`] or [`NotReady::NoGroup`].
    pub fn group_of(&self, address: PciAddress) -> Result<u32, NotReady> {
        Ok(self.function(address)?.group.ok_or_else(|| self.no_group(address))?)
    }

    /// Whether `address` can be opened and `pinned_bytes` be mapped for it.
    ///
    /// # Errors
    /// The first thing that is missing, and what to do about it.
    pub fn check_ready(&self, address: PciAddress, pinned_bytes: u64) -> Result<Ready, NotReady> {
        let function = self.function(address)?;
        let group = function.group.ok_or_else(|| self.no_group(address))?;
        if !function.is_bound_to_vfio() {
            return Err(NotReady::NotBound { address, driver: function.driver });
        }
        let container = self.path("dev/vfio/vfio");
        if !container.exists() {
            return Err(NotReady::NoVfio { address, path: container });
        }
        self.check_viable(address, group)?;
        let node = self.node(group);
        if !node.exists() {
            return Err(NotReady::NoNode { address, path: node });
        }
        if let Some(rights) = self.rights() {
            check_node(address, &container, &rights)?;
            check_node(address, &node, &rights)?;
            check_lock(address, pinned_bytes, &rights)?;
        }
        Ok(Ready { group, node })
    }

    /// Whether no kernel driver holds another function of the group.
    ///
    /// # Errors
    /// [`NotReady::NotViable`] with those functions and the command line that takes them.
    pub fn check_viable(&self, address: PciAddress, group: u32) -> Result<(), NotReady> {
        let members: Vec<Member> = self.group(group).into_iter().filter(Member::blocks).collect();
        if members.is_empty() {
            return Ok(());
        }
        let command = format!("pollring bind --group {address}");
        Err(NotReady::NotViable(BindError::NotViable { address, group, members, command }))
    }
}

/// Whether the node's mode lets us read and write. Where a group of users may, an access list may name us: the open will tell.
fn check_node(address: PciAddress, path: &Path, rights: &Rights) -> Result<(), NotReady> {
    let Ok(node) = fs::metadata(path) else { return Ok(()) };
    let mode = node.mode() & 0o777;
    let allowed = match node.uid() == rights.user {
        true => mode >> 6 & 6 == 6,
        false => mode >> 3 & 6 == 6 || mode & 6 == 6 && !rights.groups.contains(&node.gid()),
    };
    if allowed || rights.overrides_modes() {
        return Ok(());
    }
    Err(NotReady::Denied { address, path: path.to_owned(), owner: node.uid(), mode, user: rights.user })
}

fn check_lock(address: PciAddress, needed_bytes: u64, rights: &Rights) -> Result<(), NotReady> {
    let Some(limit_bytes) = rights.lock_limit_bytes.filter(|_| !rights.locks_without_limit()) else {
        return Ok(());
    };
    let locked_bytes = rights.locked_bytes;
    match locked_bytes.saturating_add(needed_bytes) > limit_bytes {
        true => Err(NotReady::MemoryLock { address, needed_bytes, limit_bytes, locked_bytes }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::sysfs::tests::Tree;
    use std::os::unix::fs::{PermissionsExt, chown};

    const NO_CAPABILITIES: &str = "0000000000000000";

    fn ready_tree(name: &str) -> Tree {
        let tree = Tree::new(name);
        tree.add("0000:01:00.0", "0x020000", 0x10c9).driver("vfio-pci").group(7);
        tree.write("dev/vfio/vfio", "");
        tree.write("dev/vfio/7", "");
        mode(&tree, "dev/vfio/vfio", 0o666);
        mode(&tree, "dev/vfio/7", 0o600);
        let own = fs::metadata(tree.root()).unwrap().uid();
        tree.rights(own, NO_CAPABILITIES, Some(1 << 20));
        tree
    }

    fn mode(tree: &Tree, path: &str, mode: u32) {
        fs::set_permissions(tree.root().join(path), fs::Permissions::from_mode(mode)).unwrap();
    }

    fn check(tree: &Tree, bytes: u64) -> Result<Ready, NotReady> {
        tree.sysfs().check_ready("0000:01:00.0".parse().unwrap(), bytes)
    }

    /// Asserts which thing is missing, and that the text has these words.
    fn missing(tree: &Tree, summary: &str, words: &[&str]) {
        let error = check(tree, 4096).unwrap_err();
        assert_eq!(error.summary(), summary, "{error}");
        for word in words {
            assert!(error.to_string().contains(word), "`{word}`: {error}");
        }
    }

    #[test]
    fn a_function_with_everything_is_ready() {
        let tree = ready_tree("ready");
        let ready = check(&tree, 4096).unwrap();
        assert_eq!(ready, Ready { group: 7, node: tree.root().join("dev/vfio/7") });
    }

    #[test]
    fn the_first_thing_that_is_missing_is_named() {
        let tree = Tree::new("steps");
        tree.add("0000:02:00.0", "0x020000", 0x10c9).driver("igb");
        missing(&tree, "gone", &["0000:01:00.0", "0000:02:00.0 (8086:10c9, igb)"]);
        tree.add("0000:01:00.0", "0x020000", 0x10c9).driver("igb");
        missing(&tree, "no IOMMU", &["intel_iommu=on", "AMD-Vi", "virtio-iommu"]);
        tree.set_group("0000:01:00.0", 7);
        missing(&tree, "not bound to vfio-pci", &["igb has it", "`pollring bind 0000:01:00.0`"]);
        tree.set_driver("0000:01:00.0", None);
        missing(&tree, "not bound to vfio-pci", &["no driver has it"]);
        tree.set_driver("0000:01:00.0", Some("vfio-pci"));
        missing(&tree, "no /dev/vfio/vfio", &["modprobe vfio-pci"]);
        tree.write("dev/vfio/vfio", "");
        tree.add("0000:01:00.1", "0x020000", 0x10c9).driver("igb").group(7);
        let words = ["0000:01:00.1 (class 0200, igb)", "`pollring bind --group 0000:01:00.0`"];
        missing(&tree, "group not viable", &words);
        tree.set_driver("0000:01:00.1", None);
        missing(&tree, "no node of its group in /dev/vfio", &["dev/vfio/7"]);
        tree.write("dev/vfio/7", "");
        assert!(check(&tree, 4096).is_ok(), "without procfs the open will tell");
    }

    #[test]
    fn an_iommu_that_is_on_without_the_function_says_so() {
        let tree = Tree::new("other-slot");
        tree.add("0000:02:00.0", "0x020000", 0x10c9).group(1);
        tree.add("0000:01:00.0", "0x020000", 0x10c9);
        missing(&tree, "no IOMMU", &["an IOMMU is on", "another slot"]);
    }

    #[test]
    fn the_node_must_be_ours_or_open_to_us() {
        let tree = ready_tree("node");
        let node = tree.root().join("dev/vfio/7");
        let own = node.metadata().unwrap();
        let other = own.uid() + 1000;
        tree.rights(other, NO_CAPABILITIES, None);
        let words = [format!("user {other} may not open"), "mode 0600".into(), format!("--user {other}")];
        missing(&tree, "no permission on its group in /dev/vfio", &words.each_ref().map(|word| &**word));
        tree.rights(other, "0000000000000002", None);
        assert!(check(&tree, 0).is_ok(), "CAP_DAC_OVERRIDE");
        tree.rights(other, NO_CAPABILITIES, None);
        for (bits, allowed) in [(0o660, true), (0o606, true), (0o640, false), (0o604, false)] {
            mode(&tree, "dev/vfio/7", bits);
            assert_eq!(check(&tree, 0).is_ok(), allowed, "{bits:o}");
        }
        mode(&tree, "dev/vfio/7", 0o606);
        if chown(&node, None, Some(36)).is_ok() {
            assert!(check(&tree, 0).is_err(), "its group may less than others");
        }
        tree.rights(own.uid(), NO_CAPABILITIES, None);
        mode(&tree, "dev/vfio/7", 0o066);
        assert!(check(&tree, 0).is_err(), "its owner may less than others");
        mode(&tree, "dev/vfio/7", 0o600);
        mode(&tree, "dev/vfio/vfio", 0o000);
        missing(&tree, "no permission on its group in /dev/vfio", &["dev/vfio/vfio"]);
    }

    #[test]
    fn memory_over_the_limit_is_refused_with_both_numbers() {
        let tree = ready_tree("memlock");
        let own = fs::metadata(tree.root()).unwrap().uid();
        // The fake process has 8 KiB locked already.
        let fits = (1 << 20) - 8192;
        assert!(check(&tree, fits).is_ok());
        let error = check(&tree, fits + 1).unwrap_err();
        assert!(matches!(error, NotReady::MemoryLock { limit_bytes: 1048576, locked_bytes: 8192, .. }));
        for word in ["1040385 bytes", "1048576 bytes", "LimitMEMLOCK", "CAP_IPC_LOCK"] {
            assert!(error.to_string().contains(word), "`{word}`: {error}");
        }
        assert!(check(&tree, u64::MAX).is_err());
        tree.rights(own, "0000000000004000", Some(65536));
        assert!(check(&tree, u64::MAX).is_ok(), "CAP_IPC_LOCK");
    }
}
