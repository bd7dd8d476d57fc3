//! The `pollring` command as a user meets it: arguments in; exit status, standard output and standard error out.
//!
//! Every test runs the built binary. Exit status 0 is done, 1 failed at run time, 2 wrong usage or a missing precondition; no input
//! makes it panic.

// Helpers of tests, which the lint does not take for tests.
#![allow(clippy::unwrap_used, clippy::panic)]

use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// Longer than any run here takes, even on a machine that is busy with something else.
const LIMIT: Duration = Duration::from_secs(90);

fn pollring(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pollring"));
    command.args(arguments).env_remove("POLLRING_LOG").stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Waits for the end; a run that does not come to it is killed, and the test fails.
fn wait(child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if start.elapsed() > LIMIT {
            child.kill().unwrap();
            panic!("it ran for more than {LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn reader(stream: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        BufReader::new(stream).read_to_end(&mut bytes).unwrap();
        bytes
    })
}

fn end(mut child: Child) -> Output {
    let (stdout, stderr) = (reader(child.stdout.take().unwrap()), reader(child.stderr.take().unwrap()));
    let status = wait(&mut child);
    let output = Output { status, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() };
    assert!(!text(&output.stderr).contains("panicked"), "{}", text(&output.stderr));
    output
}

fn run(arguments: &[&str]) -> Output {
    end(pollring(arguments).spawn().unwrap())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Standard output, which must be one JSON object and nothing else.
fn object(output: &Output) -> Value {
    let stdout = text(&output.stdout);
    let objects: Vec<Value> =
        serde_json::Deserializer::from_str(&stdout).into_iter().collect::<Result<_, _>>().unwrap();
    assert!(objects.len() == 1 && objects[0].is_object(), "{stdout}");
    objects.into_iter().next().unwrap()
}

/// A forwarding run that must be flawless.
fn forward(arguments: &[&str]) -> Value {
    let all = [&["forward", "--json", "--duration", "1"], arguments].concat();
    let output = run(&all);
    assert_eq!(output.status.code(), Some(0), "{all:?}: {}", text(&output.stderr));
    let object = object(&output);
    assert_flawless(&object);
    object
}

fn assert_flawless(object: &Value) {
    let number = |key: &str| object[key].as_u64().unwrap_or_else(|| panic!("no number {key} in {object}"));
    assert!(number("verified_frames") > 0, "{object}");
    for key in ["corrupt_frames", "missing_frames", "out_of_order_frames"] {
        assert_eq!(number(key), 0, "{key} in {object}");
    }
    for pool in object["pools"].as_array().unwrap() {
        assert_eq!(pool["leaked"], 0, "{object}");
    }
}

#[test]
fn the_first_command_needs_nothing_and_verifies_every_frame() {
    let object = forward(&[]);
    assert_eq!((&object["simulated"], object["mode"].as_str()), (&Value::Bool(true), Some("io")));
    assert!(object["duration_s"].as_f64().unwrap() >= 1.0, "{object}");
    let ports = object["ports"].as_array().unwrap();
    assert_eq!(ports.len(), 2);
    for port in ports {
        assert_eq!((port["uri"].as_str(), port["health"].as_str()), (Some("sim:igb"), Some("running")));
        for key in ["rx_frames", "tx_frames", "rx_bytes", "tx_bytes"] {
            assert!(port[key].as_u64().unwrap() > 0, "{key} in {port}");
        }
        assert_eq!((&port["rx_dropped"], &port["tx_dropped"]), (&Value::from(0), &Value::from(0)), "{port}");
    }
    let sent: u64 = ports.iter().map(|port| port["tx_frames"].as_u64().unwrap()).sum();
    assert_eq!(object["verified_frames"].as_u64(), Some(sent), "{object}");
    assert_eq!(object["cores"].as_array().unwrap().len(), 1);
    assert!(!object["pools"].as_array().unwrap().is_empty());
}

#[test]
fn every_mode_and_shape_of_the_path_is_flawless() {
    for mode in ["io", "mac-swap", "mac-rewrite"] {
        assert_eq!(forward(&["--mode", mode])["mode"], mode);
    }
    forward(&["--mode", "mac-rewrite", "--dst", "02:00:00:00:00:09", "--burst", "1", "--entries", "64"]);
    forward(&["--burst", "64", "--entries", "4096", "--pages", "small"]);
    forward(&["--queues", "2", "--mode", "mac-swap"]);
}

#[test]
fn ports_may_be_one_or_three_and_slow() {
    assert_eq!(forward(&["sim:igb"])["ports"].as_array().unwrap().len(), 1);
    let object = forward(&["sim:igb", "sim:igb,delay=40,seed=9", "sim:igb"]);
    assert_eq!(object["ports"][1]["uri"], "sim:igb,delay=40,seed=9");
}

#[test]
fn primed_frames_are_counted_apart() {
    let object = forward(&["--prime", "100"]);
    assert_eq!(object["primed_frames"], 200, "{object}");
    let pools = object["pools"].as_array().unwrap();
    assert!(pools.iter().any(|pool| pool["name"] == "prime"), "{object}");
}

#[test]
fn people_get_a_table_on_standard_output() {
    let output = run(&["forward", "--duration", "1.2", "--mode", "mac-swap"]);
    let stdout = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let first = stdout.lines().next().unwrap();
    assert!(first.contains("simulated") && first.contains("pollring forward pci:0000:01:00.0"), "{first}");
    for word in ["rx Mpps", "pool in use", "0 sim:igb", "1 sim:igb", "frames verified", "all home", "busy in"]
    {
        assert!(stdout.contains(word), "{word}: {stdout}");
    }
    assert!(!stdout.contains('\x1b'), "no terminal, no escape sequences: {stdout}");
}

#[test]
fn both_signals_stop_it_cleanly() {
    for signal in ["-INT", "-TERM"] {
        let mut child = pollring(&["forward", "--json", "--duration", "600"]).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut seen = String::new();
        // The table's first row: everything runs.
        while !seen.contains("0 sim:igb") {
            assert!(lines.read_line(&mut seen).unwrap() > 0, "{seen}");
        }
        child.stderr = Some(lines.into_inner());
        let killed =
            Command::new("sh").args(["-c", &format!("kill {signal} {}", child.id())]).status().unwrap();
        assert!(killed.success());
        let output = end(child);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let object = object(&output);
        assert_eq!(object["stopped_by"], "signal");
        assert_flawless(&object);
        assert!(text(&output.stderr).contains("frames verified"), "{}", text(&output.stderr));
    }
}

#[test]
fn a_reader_that_leaves_ends_the_run_without_a_panic() {
    for arguments in
        [&["forward", "--duration", "600"][..], &["devices"], &["hugepages"], &["devices", "--json"]]
    {
        let mut child = pollring(arguments).spawn().unwrap();
        drop(child.stdout.take());
        let stderr = reader(child.stderr.take().unwrap());
        let status = wait(&mut child);
        let stderr = text(&stderr.join().unwrap());
        assert!(!stderr.contains("panicked"), "{arguments:?}: {stderr}");
        assert!(status.signal().is_none() && status.code() != Some(101), "{arguments:?}: {status}");
    }
}

#[test]
fn a_result_that_cannot_be_written_is_a_failure() {
    for arguments in [&["forward", "--duration", "600"][..], &["devices"], &["devices", "--json"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut child = pollring(arguments).stdout(full).spawn().unwrap();
        let stderr = reader(child.stderr.take().unwrap());
        assert_eq!(wait(&mut child).code(), Some(1), "{arguments:?}");
        let stderr = text(&stderr.join().unwrap());
        assert!(
            stderr.contains("standard output") && !stderr.contains("panicked"),
            "{arguments:?}: {stderr}"
        );
    }
}

/// Arguments, the exit status, and a word that standard error must contain.
const WRONG: &[(&str, i32, &str)] = &[
    ("", 2, "Usage"),
    ("fly", 2, "fly"),
    ("forward --fast", 2, "--fast"),
    ("forward eth0", 2, "no scheme"),
    ("forward dpdk:0", 2, "af_packet"),
    ("forward 0000:01:00.0", 2, "`pci:0000:01:00.0`"),
    ("forward pci:ffff:ff:1f.7", 2, "no PCI function"),
    ("forward pci:zebra", 2, "lspci -D"),
    ("forward pci:", 2, "lspci -D"),
    ("forward vfio-user:/nonexistent/x", 2, "start it"),
    ("forward vhost-user:/nonexistent/x", 2, "start the backend"),
    ("forward memif:/tmp/x", 2, "not in this version"),
    ("forward tap:tap0", 2, "not in this version"),
    ("forward af_packet:eth0", 2, "not in this version"),
    ("forward pcap:a,b", 2, "not in this version"),
    ("forward null:", 2, "not in this version"),
    ("forward ring:r", 2, "not in this version"),
    ("forward sim:e1000", 2, "no model `e1000`"),
    ("forward sim:igb,seed=x", 2, "`seed=x`"),
    ("forward sim:igb,delay=-1", 2, "`delay=-1`"),
    ("forward --mode fast", 2, "mac-swap"),
    ("forward --duration 0", 2, "above 0"),
    ("forward --duration -1", 2, "above 0"),
    ("forward --duration NaN", 2, "above 0"),
    ("forward --duration inf", 2, "above 0"),
    ("forward --duration soon", 2, "above 0"),
    ("forward --cores=", 2, "is no core"),
    ("forward --cores 0,0", 2, "listed twice"),
    ("forward --cores 8191", 2, "core 8191"),
    ("forward --cores 8191", 2, "taskset"),
    ("forward --cores 3-1", 2, "backwards"),
    ("forward --cores all", 2, "`all`"),
    ("forward --cores -1", 2, "`-1`"),
    ("forward --burst 0", 2, "1 to 64"),
    ("forward --burst 65", 2, "1 to 64"),
    ("forward --burst many", 2, "1 to 64"),
    ("forward --entries 100", 2, "power of two"),
    ("forward --entries 32", 2, "64 to 4096"),
    ("forward --entries 8192", 2, "64 to 4096"),
    ("forward --queues 0", 2, "1 to 256"),
    ("forward --queues 17", 2, "1 to 16"),
    ("forward --frames 0", 2, "above 0"),
    ("forward --frames 64", 2, "--frames 64"),
    ("forward --frames 9999999999999999", 2, "frames"),
    ("forward --prime -5", 2, "whole number"),
    ("forward --seed x", 2, "whole number"),
    ("forward --pages 1G", 2, "huge"),
    ("forward --dst 02:00:00:00:00:01", 2, "mac-rewrite"),
    ("forward --mode mac-rewrite --dst 02:00", 2, "six bytes"),
    ("copy", 2, "<ENGINE>"),
    ("copy cpu", 2, "memcpy"),
    ("copy sim:igb", 2, "it has: ioat"),
    ("copy pci:zebra", 2, "lspci -D"),
    ("copy pci:ffff:ff:1f.7", 2, "no PCI function"),
    ("copy vfio-user:/nonexistent/x", 2, "start it"),
    ("copy memcpy --size 0", 2, "above 0"),
    ("copy memcpy --depth 32768", 2, "1 to 32767"),
    ("copy memcpy --size 99999999999", 2, "4 GiB"),
    ("copy sim:ioat --size 1048577 --depth 1", 2, "1048576 bytes at a time"),
    ("copy memcpy --ops xor", 2, "fill"),
    ("copy memcpy --duration 0", 2, "above 0"),
    ("devices --root /", 2, "--root"),
    ("hugepages buy 3", 2, "buy"),
    ("hugepages reserve", 2, "<N>"),
    ("hugepages reserve 0", 2, "0 is not"),
    ("hugepages reserve -1", 2, "-1"),
    ("hugepages reserve many", 2, "many"),
    ("hugepages --size 4K", 2, "2M"),
    ("hugepages --node 9999", 2, "node 9999"),
    ("hugepages release 1 --node 0", 2, "leave --node out"),
    ("hugepages reserve 99999999999", 2, "available"),
];

#[test]
fn every_wrong_argument_has_its_status_and_names_the_thing() {
    for (line, status, word) in WRONG {
        let output = run(&line.split_whitespace().collect::<Vec<_>>());
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(*status), "`{line}`: {stderr}");
        assert!(stderr.contains(word), "`{line}` should name `{word}`: {stderr}");
        assert!(output.stdout.is_empty() || !line.contains("--json"), "`{line}`");
    }
}

#[test]
fn engines_copy_and_fill_and_every_result_is_compared() {
    for engine in ["memcpy", "sim:ioat"] {
        for more in [&["--size", "1"][..], &["--size", "65536", "--depth", "7", "--ops", "copy,fill"]] {
            let all = [&["copy", engine, "--verify", "--json", "--duration", "0.5"], more].concat();
            let output = run(&all);
            assert_eq!(output.status.code(), Some(0), "{all:?}: {}", text(&output.stderr));
            let object = object(&output);
            assert!(object["operations"].as_u64().unwrap() > 0, "{object}");
            assert_eq!((&object["verified"], &object["corrupt"]), (&object["operations"], &Value::from(0)));
            assert_eq!((&object["health"], &object["engine"]), (&"running".into(), &engine.into()));
        }
    }
}

#[test]
fn huge_pages_that_are_not_there_are_an_error_with_numbers() {
    // A pool of half a tebibyte: more than any machine here has reserved.
    let output = run(&["forward", "--pages", "huge", "--frames", "268435456", "--duration", "1"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("free") && stderr.contains("hugepages"), "{stderr}");
}

#[test]
fn a_bad_log_filter_is_named() {
    let output = end(pollring(&["devices"]).env("POLLRING_LOG", "=/=").spawn().unwrap());
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("POLLRING_LOG"), "{}", text(&output.stderr));
}

#[test]
fn listings_are_one_object_or_a_table() {
    let devices = object(&run(&["devices", "--json"]));
    assert!(devices["pci"].is_array() && devices["simulated"][0]["uri"] == "sim:igb", "{devices}");
    assert_eq!(devices["engines"][1]["uri"], "sim:ioat", "{devices}");
    let people = run(&["devices"]);
    assert!(people.status.success() && text(&people.stdout).contains("sim:igb,seed=N,delay=N"));
    let pages = run(&["hugepages", "--json"]);
    if pages.status.success() {
        assert!(object(&pages)["pools"].is_array());
        let report = run(&["hugepages", "report", "--size", "2M"]);
        assert!(text(&report.stdout).contains("page size") || !text(&report.stderr).is_empty());
    } else {
        // A kernel without huge pages.
        assert_eq!(pages.status.code(), Some(2), "{}", text(&pages.stderr));
    }
}

/// An unprivileged user, where the tests run as root.
const NOBODY: u32 = 65534;

#[test]
fn reserving_needs_root_and_says_so() {
    // Few enough that only the right is missing; nothing is reserved in any case.
    let program = std::env::temp_dir().join(format!("pollring-{}", std::process::id()));
    std::fs::copy(env!("CARGO_BIN_EXE_pollring"), &program).unwrap();
    let free = object(&run(&["hugepages", "--json", "--size", "2M"]))["pools"][0]["free"].as_u64();
    let wanted = (free.unwrap_or_default() + 1).to_string();
    let mut command = Command::new(&program);
    command.args(["hugepages", "reserve", &wanted]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let own = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap());
    let output = end(if own == 0 { command.uid(NOBODY).spawn() } else { command.spawn() }.unwrap());
    std::fs::remove_file(&program).unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("root") || stderr.contains("no huge pages"), "{stderr}");
}
