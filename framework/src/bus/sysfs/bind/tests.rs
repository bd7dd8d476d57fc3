//! Binding and giving back on a machine of files.

use super::*;
use crate::bus::sysfs::tests::Tree;
use crate::bus::sysfs::{Changed, GiveTo};
use std::time::Instant;

const FIRST: &str = "0000:01:00.0";
const SECOND: &str = "0000:02:00.0";

fn address(text: &str) -> PciAddress {
    text.parse().unwrap()
}

/// Two igb functions in groups 1 and 2, and vfio-pci.
fn machine(name: &str) -> Tree {
    let tree = Tree::new(name);
    for (group, function) in [FIRST, SECOND].into_iter().enumerate() {
        tree.add(function, "0x020000", 0x10c9).driver("igb").group(group as u32 + 1);
    }
    tree.add_driver(VFIO_PCI);
    tree.write("dev/vfio/1", "");
    tree.write("dev/vfio/2", "");
    tree
}

fn driver(tree: &Tree, function: &str) -> Option<String> {
    tree.sysfs().driver_of(address(function))
}

fn refused(tree: &Tree, function: &str) -> String {
    let error = tree.sysfs().bind(address(function), Force::No).unwrap_err().to_string();
    assert!(tree.log().is_empty(), "nothing may be written before the checks are through: {:?}", tree.log());
    error
}

fn assert_words(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "`{word}`: {text}");
    }
}

#[test]
fn a_function_goes_to_vfio_pci_and_back() {
    let tree = machine("there-and-back");
    let sysfs = tree.sysfs();
    let bound = sysfs.bind(address(FIRST), Force::No).unwrap();
    assert_eq!((bound.group, &bound.before), (1, &Before::Driver("igb".into())));
    assert_eq!(bound.node, tree.root().join("dev/vfio/1"));
    assert_eq!(driver(&tree, FIRST).as_deref(), Some(VFIO_PCI));
    let wanted = ["driver_override vfio-pci", "unbind 0000:01:00.0", "drivers_probe 0000:01:00.0"];
    assert_eq!(tree.log(), wanted);

    assert_eq!(sysfs.bind(address(FIRST), Force::No).unwrap().before, Before::AlreadyBound);
    assert_eq!(tree.log().len(), 3, "bound already: nothing is written");

    let released = sysfs.unbind(address(FIRST), &GiveTo::Remembered).unwrap();
    assert_eq!((released.driver.as_deref(), released.changed), (Some("igb"), Changed::Yes));
    assert_eq!(sysfs.function(address(FIRST)).unwrap().driver_override, None);
    let again = sysfs.unbind(address(FIRST), &GiveTo::Remembered).unwrap();
    assert_eq!((again.driver.as_deref(), again.changed), (Some("igb"), Changed::No));
}

#[test]
fn several_are_taken_together_and_each_once() {
    let tree = machine("several");
    let all = [FIRST, SECOND, FIRST].map(address);
    let bound = tree.sysfs().bind_all(&all, Force::No).unwrap();
    assert_eq!(bound.iter().map(|one| one.group).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn a_function_without_a_driver_comes_back_without_one() {
    let tree = machine("driverless");
    tree.set_driver(FIRST, None);
    let sysfs = tree.sysfs();
    assert_eq!(sysfs.bind(address(FIRST), Force::No).unwrap().before, Before::NoDriver);
    assert_eq!(sysfs.unbind(address(FIRST), &GiveTo::Remembered).unwrap().driver, None);
    assert_eq!(driver(&tree, FIRST), None);
    // The same, with the driver named.
    sysfs.bind(address(FIRST), Force::No).unwrap();
    let released = sysfs.unbind(address(FIRST), &GiveTo::Driver("igb".into())).unwrap();
    assert_eq!(released.driver.as_deref(), Some("igb"));
    assert_eq!(sysfs.function(address(FIRST)).unwrap().driver_override, None);
}

#[test]
fn what_another_tool_bound_goes_where_the_kernel_wants() {
    let tree = machine("other-tool");
    tree.set_driver(FIRST, Some(VFIO_PCI));
    let released = tree.sysfs().unbind(address(FIRST), &GiveTo::Remembered).unwrap();
    assert_eq!(released.driver.as_deref(), Some("igb"));
    tree.write(&format!("sys/bus/pci/devices/{FIRST}/driver_override"), "vfio-pci\n");
    tree.set_driver(FIRST, Some(VFIO_PCI));
    let released = tree.sysfs().unbind(address(FIRST), &GiveTo::Remembered).unwrap();
    assert_eq!(released.driver.as_deref(), Some("igb"), "its override goes too");
}

#[test]
fn a_driver_that_takes_it_again_is_an_error() {
    let tree = machine("again");
    tree.add("0000:03:00.0", "0x020000", 0x10c9).driver(VFIO_PCI).group(3);
    let error = tree.sysfs().unbind(address("0000:03:00.0"), &GiveTo::Remembered).unwrap_err().to_string();
    assert_words(&error, &["took it again", "--driver", "vfio-pci has it now"]);
}

#[test]
fn unknown_functions_bridges_and_others_are_refused() {
    let tree = machine("kinds");
    assert_words(&refused(&tree, "0000:09:00.0"), &["no PCI function", FIRST, SECOND]);
    tree.add("0000:00:1c.0", "0x060400", 0x1).driver("pcieport").group(5);
    assert_words(&refused(&tree, "0000:00:1c.0"), &["bridge"]);
    tree.add("0000:00:1f.2", "0x010601", 0x2).driver("ahci").group(6);
    assert_words(&refused(&tree, "0000:00:1f.2"), &["class 0x0106", "--force"]);
    tree.sysfs().bind(address("0000:00:1f.2"), Force::Yes).unwrap();
    assert!(tree.sysfs().bind(address("0000:00:1c.0"), Force::Yes).is_err());
}

#[test]
fn functions_that_the_host_needs_are_refused() {
    let tree = machine("in-use");
    tree.add("0000:03:00.0", "0x020000", 0x10c9).driver("igb").group(3).interface("eth0", "0x1003");
    tree.upper("eth0", "br0");
    let default = "br0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n";
    tree.write("proc/net/route", &format!("header\n{default}"));
    let error = refused(&tree, "0000:03:00.0");
    assert_words(&error, &["eth0", "the default route leads through br0", "--force"]);
    tree.write(
        "proc/net/route",
        &format!("header\n{}", default.replace("br0", "eth0").replace("\t00000000\t0\t", "\t00FFFFFF\t0\t")),
    );
    assert_words(&refused(&tree, "0000:03:00.0"), &["routes lead through it"]);
    std::fs::remove_file(tree.root().join("proc/net/route")).unwrap();
    std::fs::create_dir(tree.root().join("proc/net/route")).unwrap();
    assert_words(&refused(&tree, "0000:03:00.0"), &["proc/net/route"]);
    std::fs::remove_dir(tree.root().join("proc/net/route")).unwrap();
    tree.write("proc/net/route", &format!("header\n{default}"));
    tree.sysfs().bind(address("0000:03:00.0"), Force::Yes).unwrap();
    tree.write(&format!("sys/bus/pci/devices/{FIRST}/sriov_numvfs"), "2\n");
    let error = tree.sysfs().bind(address(FIRST), Force::Yes).unwrap_err().to_string();
    assert_words(&error, &["2 virtual functions", "sriov_numvfs"]);
}

#[test]
fn no_iommu_and_no_module_say_what_to_do() {
    let tree = Tree::new("bare");
    tree.add(FIRST, "0x020000", 0x10c9).driver("igb");
    assert_words(
        &refused(&tree, FIRST),
        &["no IOMMU is on", "intel_iommu=on", "amd_iommu", "virtio-iommu-pci"],
    );
    tree.set_group(FIRST, 1);
    assert_words(&refused(&tree, FIRST), &["no driver vfio-pci", "built in"]);
    tree.module("other");
    assert_words(&refused(&tree, FIRST), &["modprobe vfio-pci", "not found"]);
    tree.module(VFIO_PCI);
    tree.sysfs().bind(address(FIRST), Force::No).unwrap();
}

#[test]
fn a_group_is_taken_whole() {
    let tree = machine("whole");
    tree.add("0000:01:00.1", "0x020000", 0x10c9).driver("igb").group(1);
    tree.add("0000:00:1c.0", "0x060400", 0x1).driver("pcieport").group(1);
    let error = refused(&tree, FIRST);
    assert_words(
        &error,
        &["group 1", "0000:01:00.1 (class 0200, igb)", "`pollring bind 0000:01:00.0 0000:01:00.1`"],
    );
    let sysfs = tree.sysfs();
    let all = sysfs.with_groups(&[address(FIRST)]);
    assert_eq!(sysfs.bind_all(&all, Force::No).unwrap().len(), 2);
}

#[test]
fn a_step_that_fails_is_undone() {
    let tree = machine("undo");
    tree.driver_fails(VFIO_PCI);
    let error = tree.sysfs().bind(address(FIRST), Force::No).unwrap_err().to_string();
    assert_words(&error, &["vfio-pci did not take it", "dmesg", "undone: igb has it, as before"]);
    let function = tree.sysfs().function(address(FIRST)).unwrap();
    assert_eq!((function.driver.as_deref(), function.driver_override), (Some("igb"), None));
    assert!(tree.sysfs().recall(&tree.sysfs().function(address(FIRST)).unwrap()).is_none());

    let tree = machine("undo-unbind");
    tree.refuse("driver/unbind", 16);
    let error = tree.sysfs().bind(address(FIRST), Force::No).unwrap_err().to_string();
    assert_words(&error, &["take it from igb", "busy", "undone: igb has it"]);
    assert_eq!(
        tree.log().last().unwrap().trim(),
        "driver_override",
        "nothing more than the override had changed"
    );

    let tree = machine("undo-several");
    tree.refuse("0000:02:00.0/driver/unbind", 5);
    let error = tree.sysfs().bind_all(&[FIRST, SECOND].map(address), Force::No).unwrap_err().to_string();
    assert_words(&error, &["pci:0000:02:00.0", "given back: 0000:01:00.0 (igb)"]);
    assert_eq!(driver(&tree, FIRST).as_deref(), Some("igb"));
}

#[test]
fn what_cannot_be_undone_is_said() {
    let tree = machine("stuck");
    tree.driver_fails(VFIO_PCI);
    tree.driver_fails("igb");
    let error = tree.sysfs().bind(address(FIRST), Force::No).unwrap_err().to_string();
    assert_words(
        &error,
        &["could not be undone", "no driver has it now", "`pollring unbind --driver igb 0000:01:00.0`"],
    );
    let function = tree.sysfs().function(address(FIRST)).unwrap();
    assert_eq!(tree.sysfs().recall(&function).unwrap().driver.as_deref(), Some("igb"), "still remembered");
    let error = tree.sysfs().unbind(address(FIRST), &GiveTo::Remembered).unwrap_err().to_string();
    assert_words(&error, &["igb does not know", "no driver has it now", "--driver NAME"]);
}

#[test]
fn without_the_right_nothing_changes() {
    let tree = machine("denied");
    tree.refuse("driver_override", 13);
    let error = tree.sysfs().bind(address(FIRST), Force::No).unwrap_err();
    assert!(matches!(error, BindError::Denied { .. }));
    assert_words(&error.to_string(), &["driver_override", "needs root", "sudo"]);
    assert_eq!(driver(&tree, FIRST).as_deref(), Some("igb"));
    let tree = machine("no-run");
    std::fs::remove_dir(tree.root().join("run")).unwrap();
    tree.write("run", "a file");
    assert_words(&refused(&tree, FIRST), &["remember its driver", "nothing was changed"]);
}

#[test]
fn a_kernel_that_does_not_answer_is_given_up() {
    let tree = machine("hang");
    tree.hang("driver/unbind");
    let start = Instant::now();
    let error = tree.sysfs().bind(address(FIRST), Force::No).unwrap_err().to_string();
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_words(&error, &["take it from igb", "did not finish", "300ms"]);
}

#[test]
fn a_function_that_is_held_stays() {
    let tree = machine("held");
    let sysfs = tree.sysfs();
    sysfs.bind(address(FIRST), Force::No).unwrap();
    tree.process(42, "pollring", &["/dev/vfio/1"]);
    let written = tree.log().len();
    let error = sysfs.unbind(address(FIRST), &GiveTo::Remembered).unwrap_err().to_string();
    assert_words(&error, &["process 42 (pollring)", "end it first"]);
    assert_eq!((tree.log().len(), driver(&tree, FIRST).as_deref()), (written, Some(VFIO_PCI)));
}

#[test]
fn a_driver_that_is_not_there_is_refused_before_anything_changes() {
    let tree = machine("no-driver");
    let sysfs = tree.sysfs();
    sysfs.bind(address(FIRST), Force::No).unwrap();
    let written = tree.log().len();
    for name in ["ixgbe", "", "..", "a/b"] {
        let error = sysfs.unbind(address(FIRST), &GiveTo::Driver(name.into())).unwrap_err().to_string();
        assert_words(&error, &[&format!("`{name}`"), "--driver"]);
    }
    assert_eq!(tree.log().len(), written);
    let error = sysfs.unbind(address(SECOND), &GiveTo::Driver("ixgbe".into())).unwrap_err().to_string();
    assert_words(&error, &["igb has it, not vfio-pci"]);
    tree.module("ixgbe");
    let error = sysfs.unbind(address(FIRST), &GiveTo::Driver("ixgbe".into())).unwrap_err().to_string();
    assert_words(&error, &["ixgbe does not know this device", "undone: vfio-pci has it, as before"]);
    assert_eq!(driver(&tree, FIRST).as_deref(), Some(VFIO_PCI));
    tree.set_own_driver(FIRST, "ixgbe");
    let released = sysfs.unbind(address(FIRST), &GiveTo::Driver("ixgbe".into())).unwrap();
    assert_eq!(released.driver.as_deref(), Some("ixgbe"));
}
