//! What a function's driver was before it was bound, so that it can be given back.
//!
//! One small file a function in run/pollring/bound: it outlives the process and not a reboot, as the binding itself does. It names
//! the ids of the function too, so that another card in the same slot does not get its predecessor's driver.

use super::{Function, Sysfs};
use crate::bus::PciAddress;
use std::fs;
use std::io;
use std::path::PathBuf;

/// How a function was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    /// The driver that had it, if one had.
    pub(super) driver: Option<String>,
    /// The override that was set.
    pub(super) driver_override: Option<String>,
}

const EMPTY: &str = "-";

impl Sysfs {
    fn memory_path(&self, address: PciAddress) -> PathBuf {
        self.path("run/pollring/bound").join(address.to_string())
    }

    /// Writes down how `function` is. What is remembered of a function without a driver stays: a run that ended halfway left it so.
    pub(super) fn remember(&self, function: &Function) -> Result<(), (PathBuf, io::Error)> {
        if function.driver.is_none() && self.recall(function).is_some() {
            return Ok(());
        }
        let path = self.memory_path(function.address);
        let word = |word: &Option<String>| word.as_deref().unwrap_or(EMPTY).to_owned();
        let text = format!(
            "id {:04x}:{:04x}\ndriver {}\noverride {}\n",
            function.vendor,
            function.device,
            word(&function.driver),
            word(&function.driver_override)
        );
        // Renamed into place: a file is there whole or not at all.
        let new = path.with_extension("new");
        let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
        folder
            .and_then(|()| fs::write(&new, text))
            .and_then(|()| fs::rename(&new, &path))
            .map_err(|error| (path, error))
    }

    /// How `function` was before it was bound; `None` when nothing is known.
    pub(super) fn recall(&self, function: &Function) -> Option<Memory> {
        let text = fs::read_to_string(self.memory_path(function.address)).ok()?;
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        let word = |key| value(key).filter(|word| *word != EMPTY).map(str::to_owned);
        let same = value("id")? == format!("{:04x}:{:04x}", function.vendor, function.device);
        value("driver").filter(|_| same)?;
        Some(Memory { driver: word("driver"), driver_override: word("override") })
    }

    /// Removes what is remembered.
    pub(super) fn forget(&self, address: PciAddress) {
        if let Err(error) = fs::remove_file(self.memory_path(address))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%address, %error, "the remembered driver stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::sysfs::tests::Tree;

    #[test]
    fn a_driver_is_remembered_for_the_same_device_only() {
        let tree = Tree::new("memory");
        tree.add("0000:01:00.0", "0x020000", 0x10c9).driver("igb");
        let sysfs = tree.sysfs();
        let mut function = sysfs.function("0000:01:00.0".parse().unwrap()).unwrap();
        assert_eq!(sysfs.recall(&function), None);
        sysfs.remember(&function).unwrap();
        let memory = Memory { driver: Some("igb".into()), driver_override: None };
        assert_eq!(sysfs.recall(&function), Some(memory.clone()));
        function.driver = None;
        sysfs.remember(&function).unwrap();
        assert_eq!(sysfs.recall(&function), Some(memory), "left by a run that ended halfway");
        function.device = 0x1521;
        assert_eq!(sysfs.recall(&function), None);
        sysfs.remember(&function).unwrap();
        assert_eq!(sysfs.recall(&function), Some(Memory { driver: None, driver_override: None }));
        sysfs.forget(function.address);
        sysfs.forget(function.address);
        assert_eq!(sysfs.recall(&function), None);
        tree.write("run/pollring/bound/0000:01:00.0", "id 8086:1521\n");
        assert_eq!(sysfs.recall(&function), None, "half a file");
    }
}
