//! Who may open a group: its node's owner.
//!
//! A user that is no root needs the node, and a limit on locked memory that holds what is pinned; /dev/vfio/vfio is everybody's,
//! and huge pages in a memfd need no mount.

use super::error::Failure;
use super::{BindError, Sysfs, text_or_nothing};
use crate::bus::PciAddress;
use std::fmt;
use std::io;
use std::os::unix::fs::chown;
use thiserror::Error;

/// A user of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Its id.
    pub id: u32,
    /// Its name, or the id when it has none.
    pub name: String,
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// No user has this name.
#[derive(Debug, Error)]
#[error("/etc/passwd has no user `{name}`{}; give a name that it has, or a number", reason(error))]
pub struct NoUser {
    /// What was asked for.
    pub name: String,
    /// The errno when the file cannot be read.
    pub error: Option<io::Error>,
}

fn reason(error: &Option<io::Error>) -> String {
    error.as_ref().map_or_else(String::new, |error| format!(" (it cannot be read: {error})"))
}

impl Sysfs {
    /// The user with this name or number. A number needs no entry.
    ///
    /// # Errors
    /// [`NoUser`].
    pub fn user(&self, name: &str) -> Result<User, NoUser> {
        let no_user = |error| NoUser { name: name.to_owned(), error };
        let passwd = text_or_nothing(&self.path("etc/passwd")).map_err(|error| no_user(Some(error)))?;
        let mut entries = passwd.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let (name, id) = (fields.next()?, fields.nth(1)?.parse().ok()?);
            Some(User { id, name: name.to_owned() })
        });
        match name.parse().ok().filter(|id| *id != u32::MAX) {
            Some(id) => Ok(entries.find(|user| user.id == id).unwrap_or(User { id, name: name.to_owned() })),
            None => entries.find(|user| user.name == name && !name.is_empty()).ok_or_else(|| no_user(None)),
        }
    }

    /// Makes `user` the owner of a group's node.
    ///
    /// # Errors
    /// The errno of chown, with the node's path.
    pub fn give_group(&self, address: PciAddress, group: u32, user: &User) -> Result<(), BindError> {
        let path = self.node(group);
        chown(&path, Some(user.id), None).map_err(|error| {
            let step = format!("give {} to {user}", path.display());
            let after = "the function is bound to vfio-pci, and root can open it".to_owned();
            Failure { step, path, error }.into_error(address, after)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::sysfs::tests::Tree;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn users_are_named_or_numbered() {
        let tree = Tree::new("user");
        tree.write(
            "etc/passwd",
            "root:x:0:0:root:/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\nbroken\n",
        );
        let sysfs = tree.sysfs();
        assert_eq!(sysfs.user("ada").unwrap(), User { id: 1000, name: "ada".into() });
        assert_eq!(sysfs.user("1000").unwrap().name, "ada");
        assert_eq!(sysfs.user("77").unwrap(), User { id: 77, name: "77".into() });
        for name in ["bob", "", "broken", "4294967295", "-1", "ada:x"] {
            assert!(sysfs.user(name).unwrap_err().to_string().contains(&format!("`{name}`")), "{name}");
        }
    }

    #[test]
    fn a_node_changes_its_owner() {
        let tree = Tree::new("owner");
        tree.write("dev/vfio/7", "");
        let node = tree.root().join("dev/vfio/7");
        let own = node.metadata().unwrap().uid();
        // Only root gives files away; giving one to its owner always works.
        let user = User { id: if own == 0 { 65534 } else { own }, name: "x".into() };
        let address = "0000:01:00.0".parse().unwrap();
        tree.sysfs().give_group(address, 7, &user).unwrap();
        assert_eq!(node.metadata().unwrap().uid(), user.id);
        let error = tree.sysfs().give_group(address, 8, &user).unwrap_err().to_string();
        assert!(error.contains("dev/vfio/8") && error.contains("root can open it"), "{error}");
    }
}
