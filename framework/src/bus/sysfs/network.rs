//! Network interfaces of a function, and whether the host needs them.
//!
//! An interface is needed when a route leads through it or through one that stands on it: a bond, bridge, VLAN or macvlan has
//! its route and its members have none. Routes are those of /proc/net/route and /proc/net/ipv6_route: the main table of this
//! network namespace. Other namespaces and policy-routing tables are not seen.

use super::{Sysfs, link_name, names_in, text, text_or_nothing};
use std::collections::HashMap;
use std::io;
use std::path::Path;

/// RTF_UP of linux/route.h.
const ROUTE_UP: u32 = 0x0001;
/// RTF_REJECT of linux/route.h.
const ROUTE_REJECT: u32 = 0x0200;
/// IFF_UP of linux/if.h.
const INTERFACE_UP: u32 = 0x1;

/// A network interface of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Whether it is up.
    pub up: bool,
    /// What the host routes through it.
    pub traffic: Traffic,
}

/// What the host routes through an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Nothing.
    None,
    /// Some networks.
    Routes {
        /// The interface itself, or the one on top of it that has the routes.
        interface: String,
    },
    /// Everything else.
    DefaultRoute {
        /// The interface itself, or the one on top of it that has the route.
        interface: String,
    },
}

/// Interfaces that routes lead through.
#[derive(Debug, Default)]
pub(super) struct Routes(HashMap<String, Kind>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Network,
    Default,
}

impl Routes {
    fn add(&mut self, (interface, kind): (&str, Kind)) {
        let present = self.0.entry(interface.to_owned()).or_insert(kind);
        *present = kind.max(*present);
    }
}

impl Sysfs {
    /// The routes of this network namespace. A kernel without a protocol has no file for it.
    pub(super) fn routes(&self) -> io::Result<Routes> {
        let mut routes = Routes::default();
        let four = text_or_nothing(&self.path("proc/net/route"))?;
        four.lines().skip(1).filter_map(route_4).for_each(|route| routes.add(route));
        let six = text_or_nothing(&self.path("proc/net/ipv6_route"))?;
        six.lines().filter_map(route_6).for_each(|route| routes.add(route));
        Ok(routes)
    }

    /// The interfaces of the function at `device`. A virtio function has them one folder below.
    pub(super) fn interfaces(&self, device: &Path, routes: &Routes) -> Vec<Interface> {
        let below = names_in(device).unwrap_or_default();
        let virtio = below.iter().filter(|name| name.starts_with("virtio")).map(|name| device.join(name));
        let mut interfaces = Vec::new();
        for folder in std::iter::once(device.to_owned()).chain(virtio) {
            let net = folder.join("net");
            for name in names_in(&net).unwrap_or_default() {
                let flags = text(&net.join(&name).join("flags"));
                let flags =
                    flags.and_then(|flags| u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok());
                let up = flags.unwrap_or_default() & INTERFACE_UP != 0;
                interfaces.push(Interface { up, traffic: self.traffic(&name, routes), name });
            }
        }
        interfaces.sort_by(|one, other| one.name.cmp(&other.name));
        interfaces
    }

    /// The interface and all that stand on it, each once; the weightiest route of them counts.
    fn traffic(&self, name: &str, routes: &Routes) -> Traffic {
        let mut stack = vec![name.to_owned()];
        let mut at = 0;
        while at < stack.len() {
            let upper = self.uppers(&stack[at]);
            let new: Vec<String> = upper.into_iter().filter(|upper| !stack.contains(upper)).collect();
            stack.extend(new);
            at += 1;
        }
        let found = stack.iter().filter_map(|interface| Some((routes.0.get(interface)?, interface)));
        match found.max_by_key(|(kind, _)| **kind) {
            None => Traffic::None,
            Some((Kind::Network, interface)) => Traffic::Routes { interface: interface.clone() },
            Some((Kind::Default, interface)) => Traffic::DefaultRoute { interface: interface.clone() },
        }
    }

    fn uppers(&self, name: &str) -> Vec<String> {
        let folder = self.path("sys/class/net").join(name);
        let names = names_in(&folder).unwrap_or_default();
        let mut uppers: Vec<String> =
            names.iter().filter_map(|name| name.strip_prefix("upper_")).map(str::to_owned).collect();
        uppers.extend(link_name(&folder.join("master")));
        uppers
    }
}

/// A line of /proc/net/route: interface, destination, gateway, flags, ..., and the mask as the eighth word, in hex.
fn route_4(line: &str) -> Option<(&str, Kind)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |at: usize| u32::from_str_radix(words.get(at)?, 16).ok();
    if number(3)? & (ROUTE_UP | ROUTE_REJECT) != ROUTE_UP {
        return None;
    }
    let everything = number(1)? == 0 && number(7)? == 0;
    Some((words.first()?, if everything { Kind::Default } else { Kind::Network }))
}

/// A line of /proc/net/ipv6_route: destination, prefix length, ..., flags as the ninth word and the interface as the tenth.
/// Link-local and multicast routes are left out: every interface that is up has them.
fn route_6(line: &str) -> Option<(&str, Kind)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [destination, length] = [words.first()?, words.get(1)?];
    let flags = u32::from_str_radix(words.get(8)?, 16).ok()?;
    let first = u16::from_str_radix(destination.get(..4)?, 16).ok()?;
    let own = first & 0xffc0 == 0xfe80 || first & 0xff00 == 0xff00;
    if flags & (ROUTE_UP | ROUTE_REJECT) != ROUTE_UP || own {
        return None;
    }
    let everything = *length == "00" && destination.bytes().all(|digit| digit == b'0');
    Some((words.get(9)?, if everything { Kind::Default } else { Kind::Network }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::sysfs::tests::Tree;

    const HEADER: &str = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n";

    fn traffic(tree: &Tree) -> Traffic {
        let function = tree.sysfs().function("0000:01:00.0".parse().unwrap()).unwrap();
        function.busiest().unwrap().traffic.clone()
    }

    fn tree(name: &str, route: &str, route_6: &str) -> Tree {
        let tree = Tree::new(name);
        tree.add("0000:01:00.0", "0x020000", 0x10c9).driver("igb").interface("eth1", "0x1003");
        tree.write("proc/net/route", &format!("{HEADER}{route}"));
        tree.write("proc/net/ipv6_route", route_6);
        tree
    }

    #[test]
    fn routes_of_the_interface_itself_count() {
        let default = "eth1\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n";
        let network = "eth1\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        let interface = || "eth1".to_owned();
        let both = tree("both", &format!("{network}{default}{network}"), "");
        assert_eq!(traffic(&both), Traffic::DefaultRoute { interface: interface() });
        assert_eq!(traffic(&tree("net", network, "")), Traffic::Routes { interface: interface() });
        let down = default.replace("0003", "0002");
        assert_eq!(traffic(&tree("down", &down, "")), Traffic::None);
        let rejected = default.replace("0003", "0203");
        assert_eq!(traffic(&tree("rejected", &rejected, "")), Traffic::None);
        assert_eq!(traffic(&tree("garbage", "eth1\tx\n\neth1\n", "zz\n\n")), Traffic::None);
        let half = default
            .replace("00000000\t010200C0", "00000080\t010200C0")
            .replace("\t00000000\t0\t0\t0", "\t00000080\t0\t0\t0");
        assert_eq!(traffic(&tree("half", &half, "")), Traffic::Routes { interface: interface() });
    }

    #[test]
    fn routes_of_the_sixth_version_count_but_link_local_ones() {
        let line = |destination: &str, length: &str, flags: &str, interface: &str| {
            let zeros = "0".repeat(32);
            format!(
                "{destination} {length} {zeros} 00 {zeros} 00000400 00000003 00000000 {flags} {interface}\n"
            )
        };
        let zeros = "0".repeat(32);
        let local = format!("fe80{}", "0".repeat(28));
        let multicast = format!("ff00{}", "0".repeat(28));
        let global = format!("fd00{}", "0".repeat(28));
        let quiet = line(&local, "40", "00000001", "eth1")
            + &line(&multicast, "08", "00000001", "eth1")
            + &line(&zeros, "00", "00200200", "lo");
        assert_eq!(traffic(&tree("quiet", "", &quiet)), Traffic::None);
        let network = line(&global, "40", "00000001", "eth1");
        let wanted = Traffic::Routes { interface: "eth1".into() };
        assert_eq!(traffic(&tree("global", "", &network)), wanted);
        let default = line(&zeros, "00", "00000003", "eth1");
        let wanted = Traffic::DefaultRoute { interface: "eth1".into() };
        assert_eq!(traffic(&tree("default", "", &(network + &default))), wanted);
    }

    #[test]
    fn what_stands_on_an_interface_counts_for_it() {
        let default = "vlan9\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n";
        let tree = tree("uppers", default, "");
        assert_eq!(traffic(&tree), Traffic::None);
        tree.upper("eth1", "bond0");
        tree.upper("bond0", "br0");
        tree.upper("br0", "vlan9");
        // A ring that the kernel would not allow must not hang the reader.
        tree.upper("vlan9", "eth1");
        assert_eq!(traffic(&tree), Traffic::DefaultRoute { interface: "vlan9".into() });
    }

    #[test]
    fn a_virtio_function_has_its_interface_below() {
        let tree = tree("virtio", "", "");
        tree.write("sys/bus/pci/devices/0000:01:00.0/virtio2/net/ens3/flags", "0x1002\n");
        let function = tree.sysfs().function("0000:01:00.0".parse().unwrap()).unwrap();
        let names: Vec<_> = function.interfaces.iter().map(|one| (&*one.name, one.up)).collect();
        assert_eq!(names, [("ens3", false), ("eth1", true)]);
    }
}
