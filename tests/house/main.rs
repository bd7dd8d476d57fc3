//! What the documents say, checked against the code.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_table_of_devices_is_the_driver_table() {
    let readme = read("README.md");
    let table = readme
        .split("<!-- devices: checked by tests/house -->")
        .nth(1)
        .unwrap()
        .split("<!-- end -->")
        .next()
        .unwrap();
    let rows: Vec<&str> = table.trim().lines().skip(2).collect();
    let expected: Vec<String> = pollring_drivers::builtin()
        .iter()
        .map(|entry| {
            let id = format!("{:04x}:{:04x}", entry.vendor, entry.device);
            format!("| {} | {id} | {} | {} |", entry.model, entry.driver, entry.proof)
        })
        .collect();
    assert_eq!(rows, expected);
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
