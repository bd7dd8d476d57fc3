//! What the documents say, checked against the code.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The rows of the table that README marks with `name`.
fn rows(name: &str) -> Vec<String> {
    let readme = read("README.md");
    let marked = readme.split(&format!("<!-- {name}: checked by tests/house -->")).nth(1).unwrap();
    marked.split("<!-- end -->").next().unwrap().trim().lines().skip(2).map(str::to_owned).collect()
}

#[test]
fn the_tables_of_devices_and_engines_are_the_driver_tables() {
    let row = |model, vendor: u16, device: u16, driver, proof| {
        format!("| {model} | {vendor:04x}:{device:04x} | {driver} | {proof} |")
    };
    let devices = pollring_drivers::builtin().iter();
    let devices =
        devices.map(|entry| row(entry.model, entry.vendor, entry.device, entry.driver, entry.proof));
    assert_eq!(rows("devices"), devices.collect::<Vec<_>>());
    let engines = pollring_drivers::engines().iter();
    let engines =
        engines.map(|entry| row(entry.model, entry.vendor, entry.device, entry.driver, entry.proof));
    assert_eq!(rows("engines"), engines.collect::<Vec<_>>());
}

#[test]
fn the_changelog_has_an_unreleased_head() {
    assert!(read("CHANGELOG.md").lines().any(|line| line == "## Unreleased"));
}

#[test]
fn files_that_the_readme_names_exist() {
    let readme = read("README.md");
    let quoted = readme.split('`').skip(1).step_by(2);
    let paths = quoted.filter(|text| {
        text.contains('/') && text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c))
    });
    let mut checked = 0;
    for path in paths {
        assert!(root().join(path).exists(), "README names {path}, which is not there");
        checked += 1;
    }
    assert!(checked > 5, "only {checked} paths found in README");
}

#[test]
fn ci_calls_the_one_test_command() {
    let ci = read(".ci/run");
    assert!(ci.starts_with("#!/usr/bin/env bash\nset -euo pipefail\n") && ci.contains("\ntools/test\n"));
}
