//! The kernel's memory figures as text: `/proc/meminfo` and `nodeN/meminfo`. Reads only.

use crate::page::NumaNode;
use crate::pool::PoolError;
use std::{fs, path::Path};

/// Where the kernel shows the whole machine's figures (proc_meminfo(5)).
pub(crate) const MEMINFO: &str = "/proc/meminfo";

/// The value of `field` in bytes; `None` if there is no such line or it is not in kB.
///
/// A line is `MemFree:  123 kB` in /proc/meminfo and `Node 0 MemFree:  123 kB` in a node's.
pub(crate) fn field_bytes(text: &str, field: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (label, value) = line.split_once(':')?;
        let name = label.split_whitespace().next_back()?;
        let kilobytes: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
        (name == field).then(|| kilobytes.saturating_mul(1024))
    })
}

/// The bytes that can be had without swapping: MemAvailable, or for one node its free and page-cache memory, which is what
/// the kernel shows there. Limits of a memory cgroup are not part of either.
pub(crate) fn available_bytes(sys: &Path, node: Option<NumaNode>) -> Result<u64, PoolError> {
    let (path, fields): (_, &[&str]) = match node {
        None => (MEMINFO.into(), &["MemAvailable"]),
        Some(NumaNode(number)) => {
            let path = sys.join(format!("devices/system/node/node{number}/meminfo"));
            (path, &["MemFree", "Active(file)", "Inactive(file)"])
        }
    };
    let text = fs::read_to_string(&path)
        .map_err(|source| PoolError::Read { path: path.display().to_string(), source })?;
    let parts: Option<Vec<u64>> = fields.iter().map(|field| field_bytes(&text, field)).collect();
    let parts = parts.ok_or_else(|| PoolError::Parse {
        path: path.display().to_string(),
        text: format!("no line for {}", fields.join(", ")),
    })?;
    Ok(parts.iter().fold(0, |sum, part| sum.saturating_add(*part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_both_forms_are_read() {
        let machine = "MemTotal:       24684088 kB\nHugePages_Total:       3\nHugepagesize:       2048 kB\n";
        assert_eq!(field_bytes(machine, "MemTotal"), Some(24_684_088 * 1024));
        assert_eq!(field_bytes(machine, "Hugepagesize"), Some(2 << 20));
        assert_eq!(field_bytes(machine, "HugePages_Total"), None, "a count is not a size");
        assert_eq!(field_bytes(machine, "Total"), None);
        assert_eq!(field_bytes("Node 0 Active(file):   16 kB", "Active(file)"), Some(16 << 10));
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(available_bytes(Path::new("/sys"), None).unwrap() > 1 << 20);
        let error = available_bytes(Path::new("/sys"), Some(NumaNode(999))).unwrap_err().to_string();
        assert!(error.contains("node999"), "{error}");
    }
}
