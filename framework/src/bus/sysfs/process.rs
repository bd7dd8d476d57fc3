//! What this process may do, as procfs says it (man 5 proc): its ids, its capabilities, its limit on locked memory.

use super::{Sysfs, text};

/// CAP_DAC_OVERRIDE of linux/capability.h: file modes do not hold it back.
const DAC_OVERRIDE: u32 = 1;
/// CAP_IPC_LOCK: the limit on locked memory does not hold it back.
const IPC_LOCK: u32 = 14;

/// A process's rights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rights {
    /// Effective user.
    pub(super) user: u32,
    /// Effective and supplementary groups.
    pub(super) groups: Vec<u32>,
    capabilities: u64,
    /// Bytes that are locked already.
    pub(super) locked_bytes: u64,
    /// Bytes that may be locked; `None` is no limit.
    pub(super) lock_limit_bytes: Option<u64>,
}

impl Rights {
    pub(super) fn overrides_modes(&self) -> bool {
        self.capabilities >> DAC_OVERRIDE & 1 == 1
    }

    pub(super) fn locks_without_limit(&self) -> bool {
        self.lock_limit_bytes.is_none() || self.capabilities >> IPC_LOCK & 1 == 1
    }
}

impl Sysfs {
    /// This process's rights; `None` without procfs.
    pub(super) fn rights(&self) -> Option<Rights> {
        let status = text(&self.path("proc/self/status"))?;
        let words = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            line.unwrap_or_default().split_whitespace().collect::<Vec<_>>()
        };
        // Real, effective, saved and file system id.
        let effective = |key| words(key).get(1).and_then(|id| id.parse().ok());
        let mut groups: Vec<u32> = words("Groups").iter().filter_map(|id| id.parse().ok()).collect();
        groups.extend(effective("Gid"));
        let capabilities = words("CapEff").first().and_then(|set| u64::from_str_radix(set, 16).ok());
        let locked = words("VmLck").first().and_then(|kib| kib.parse::<u64>().ok());
        Some(Rights {
            user: effective("Uid")?,
            groups,
            capabilities: capabilities.unwrap_or_default(),
            locked_bytes: locked.unwrap_or_default().saturating_mul(1024),
            lock_limit_bytes: self.lock_limit(),
        })
    }

    /// `Max locked memory  SOFT  HARD  bytes`; what cannot be read is no limit, and the kernel will say so.
    fn lock_limit(&self) -> Option<u64> {
        let limits = text(&self.path("proc/self/limits"))?;
        let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
        line.split_whitespace().next()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::sysfs::tests::Tree;

    #[test]
    fn rights_are_the_effective_ones() {
        let tree = Tree::new("rights");
        tree.rights(1000, "0000000000004002", Some(65536));
        let rights = tree.sysfs().rights().unwrap();
        assert_eq!((rights.user, &*rights.groups), (1000, &[36, 1000, 1000][..]));
        assert!(rights.overrides_modes() && rights.locks_without_limit());
        assert_eq!((rights.locked_bytes, rights.lock_limit_bytes), (8192, Some(65536)));
        tree.rights(1000, "0000000000000000", Some(65536));
        let rights = tree.sysfs().rights().unwrap();
        assert!(!rights.overrides_modes() && !rights.locks_without_limit());
        tree.rights(1000, "0000000000000000", None);
        assert!(tree.sysfs().rights().unwrap().locks_without_limit());
        assert!(Tree::new("no-proc").sysfs().rights().is_none());
        assert!(Sysfs::new().rights().is_some());
    }
}
