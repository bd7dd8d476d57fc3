//! `pollring bind`, `pollring unbind` and `pollring devices` on whatever machine this is: nothing here may change a binding.
//!
//! Addresses are such as no machine has, or those of functions that cannot be bound; what happens on a machine with an IOMMU and NICs
//! to give away, tests/vm shows.

// Helpers of tests, which the lint does not take for tests.
#![allow(clippy::unwrap_used, clippy::panic)]

use serde_json::Value;
use std::process::{Command, Output, Stdio};

/// No machine has this many buses in this segment.
const NOWHERE: &str = "fffe:fe:1f.7";

fn pollring(line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pollring"));
    command.args(line.split_whitespace()).env_remove("POLLRING_LOG").stdin(Stdio::null());
    let output = command.output().unwrap();
    assert!(!text(&output.stderr).contains("panicked"), "`{line}`: {}", text(&output.stderr));
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Arguments, and a word that standard error must contain; the exit status is 2.
const WRONG: &[(&str, &str)] = &[
    ("bind", "<ADDRESS>"),
    ("unbind", "<ADDRESS>"),
    ("bind eth0", "lspci -D"),
    ("bind 01:00", "`01:00` is not a PCI address"),
    ("bind pci:", "lspci -D"),
    ("bind 0000:01:20.0", "`0000:01:20.0`"),
    ("unbind zebra", "lspci -D"),
    ("bind --user", "--user"),
    ("bind --user nobody-has-this-name fffe:fe:1f.7", "no user `nobody-has-this-name`"),
    ("bind --user 4294967295 fffe:fe:1f.7", "4294967295"),
    ("bind --driver igb fffe:fe:1f.7", "--driver"),
    ("unbind --force fffe:fe:1f.7", "--force"),
    ("bind fffe:fe:1f.7", "no PCI function has this address"),
    ("bind pci:fffe:fe:1f.7", "pci:fffe:fe:1f.7"),
    ("bind --group fffe:fe:1f.7", "no PCI function has this address"),
    ("bind --force --user 0 fffe:fe:1f.7", "no PCI function has this address"),
    ("unbind fffe:fe:1f.7", "no PCI function has this address"),
    ("unbind --driver igb fffe:fe:1f.7", "no PCI function has this address"),
];

#[test]
fn every_wrong_argument_has_status_2_and_names_the_thing() {
    for (line, word) in WRONG {
        let output = pollring(line);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "`{line}`: {stderr}");
        assert!(stderr.contains(word), "`{line}` should name `{word}`: {stderr}");
        assert!(output.stdout.is_empty(), "`{line}`");
    }
}

#[test]
fn an_unknown_function_lists_those_that_exist() {
    let listed: Value = serde_json::from_slice(&pollring("devices --json").stdout).unwrap();
    let stderr = text(&pollring(&format!("bind {NOWHERE}")).stderr);
    let rows = listed["pci"].as_array().unwrap();
    for row in rows {
        assert!(stderr.contains(row["address"].as_str().unwrap()), "{row}: {stderr}");
    }
    assert!(!rows.is_empty() || stderr.contains("no PCI network function"), "{stderr}");
}

#[test]
fn a_function_that_cannot_be_taken_says_why_and_stays() {
    let devices = || -> Value { serde_json::from_slice(&pollring("devices --json").stdout).unwrap() };
    let before = devices();
    let kept = ["no-iommu", "default-route"];
    let rows = before["pci"].as_array().unwrap().iter();
    // Functions that no driver of ours knows have another state, and may have no IOMMU all the same.
    for row in rows.filter(|row| kept.contains(&row["state"].as_str().unwrap()) || row["group"].is_null()) {
        let output = pollring(&format!("bind {}", row["address"].as_str().unwrap()));
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{row}: {stderr}");
        assert!(stderr.contains("IOMMU") || stderr.contains("--force"), "{row}: {stderr}");
    }
    assert_eq!(before, devices());
}

#[test]
fn every_function_has_a_state_and_a_reason() {
    let listed: Value = serde_json::from_slice(&pollring("devices --json").stdout).unwrap();
    for row in listed["pci"].as_array().unwrap() {
        let (state, usable) = (row["state"].as_str().unwrap(), row["usable"].as_bool().unwrap());
        assert_eq!(usable, state == "ready", "{row}");
        assert!(!row["reason"].as_str().unwrap().is_empty(), "{row}");
        assert_eq!(row["uri"].as_str().unwrap(), format!("pci:{}", row["address"].as_str().unwrap()));
    }
    assert_eq!(text(&pollring("unbind --json fffe:fe:1f.7").stdout), "{\n  \"functions\": []\n}\n");
}
