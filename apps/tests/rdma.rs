//! `pollring rdma` as a user meets it: arguments in; exit status, table or JSON out. Every test runs the built binary.

// Helpers of tests, which the lint does not take for tests.
#![allow(clippy::unwrap_used, clippy::panic)]

use serde_json::Value;
use std::process::{Command, Output, Stdio};

/// Ends a run that hangs; longer than any run takes, even on a machine that is busy with something else.
const LIMIT_S: &str = "90";

fn rdma(arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args([LIMIT_S, env!("CARGO_BIN_EXE_pollring"), "rdma"]).args(arguments);
    let output = command.env_remove("POLLRING_LOG").stdin(Stdio::null()).output().unwrap();
    assert!(!text(&output.stderr).contains("panicked"), "{}", text(&output.stderr));
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn object(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn every_operation_and_size_leaves_the_right_bytes() {
    let arguments =
        ["perf", "--op", "write,read,send,atomic", "--size", "2,1000,4K,1M", "--duration", "0.2", "--verify"];
    let found = object(&rdma(&[&arguments[..], &["--json"]].concat()));
    let runs = found["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 3 * 4 + 1, "atomics have one size");
    for run in runs {
        let of = |name: &str| run[name].as_u64().unwrap();
        assert!(of("operations") > 0 && of("verified") >= of("operations") && of("corrupt") == 0, "{run}");
        assert!(run["failures"].as_array().unwrap().is_empty(), "{run}");
        let (p50, most) = (&run["latency"]["p50_us"], &run["latency"]["max_us"]);
        assert!(p50.as_f64().unwrap() > 0.0 && p50.as_f64() <= most.as_f64(), "{run}");
    }
}

#[test]
fn many_queue_pairs_share_the_ports() {
    let found =
        object(&rdma(&["perf", "--size", "64", "--qps", "32", "--duration", "0.2", "--verify", "--json"]));
    let run = &found["runs"][0];
    assert!(run["operations"].as_u64() > Some(32 * 16), "{run}");
    assert_eq!((found["qps"].as_u64(), run["corrupt"].as_u64()), (Some(32), Some(0)), "{run}");
}

#[test]
fn late_devices_change_nothing() {
    let ports = ["perf", "sim:igb,delay=6,seed=3", "sim:igb,delay=2", "--op", "write,read", "--size", "3000"];
    let found = object(&rdma(&[&ports[..], &["--duration", "0.2", "--verify", "--json"]].concat()));
    assert_eq!((found["corrupt"].as_u64(), found["verified"].as_u64() > Some(0)), (Some(0), true), "{found}");
}

#[test]
fn people_see_a_table_with_a_row_a_run() {
    let output = rdma(&["perf", "--op", "write,atomic", "--size", "64", "--duration", "0.1"]);
    let stdout = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for word in ["RoCEv2 in software between", "operation", "p99.9 us", "write", "atomic"] {
        assert!(stdout.contains(word), "{word}: {stdout}");
    }
}

#[test]
fn info_names_what_the_transport_offers() {
    let found = object(&rdma(&["info", "sim:igb", "--json"]));
    assert_eq!(
        (found["port"].as_str(), found["mtu_bytes"].as_u64()),
        (Some("sim:igb"), Some(1024)),
        "{found}"
    );
    assert!(
        found["gids"][0]["address"] == "10.0.0.1" && found["limits"]["qps"].as_u64() > Some(0),
        "{found}"
    );
    let people = text(&rdma(&["info", "sim:igb"]).stdout);
    assert!(people.contains("10.0.0.1") && people.contains("1 KiB"), "{people}");
}

#[test]
fn wrong_usage_ends_with_2_and_says_why() {
    let cases: [(&[&str], &str); 7] = [
        (&["perf", "sim:igb"], "two ports"),
        (&["perf", "--qps", "0"], "--qps 0"),
        (&["perf", "--size", "9M"], "1 to 8M"),
        (&["perf", "--op", "copy"], "possible values"),
        (&["perf", "sim:igb", "vhost-user:/nowhere"], "simulated ports"),
        (&["info", "sim:nothing"], "nothing"),
        (&["info"], "PORT"),
    ];
    for (arguments, word) in cases {
        let output = rdma(arguments);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(word) && output.stdout.is_empty(), "{arguments:?}: {stderr}");
    }
}
