//! Booting, and the programs that are run inside.

use pollring_vm::{Finished, Machine, Running};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// The two NICs that most machines here have.
pub const FIRST: &str = "0000:01:00.0";
pub const SECOND: &str = "0000:02:00.0";

/// One machine at a time.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The folder of the programs of this build.
pub fn programs() -> &'static PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let own = std::env::current_exe().unwrap();
        let folder = own.ancestors().nth(2).unwrap();
        let profile = folder.file_name().unwrap().to_str().unwrap();
        let profile = if profile == "debug" { "dev" } else { profile };
        let mut cargo = Command::new(env!("CARGO"));
        cargo
            .args(["build", "--quiet", "--locked", "--profile", profile, "--target-dir"])
            .arg(folder.parent().unwrap());
        cargo.args(["-p", "pollring-apps", "-p", "pollring-vm-tests", "--bins"]);
        assert!(cargo.status().unwrap().success(), "the programs do not build");
        folder.to_owned()
    })
}

/// A machine in which `pollring` and the other programs of this build are found by name.
pub fn machine() -> Machine {
    let programs = programs();
    let path = format!("{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", programs.display());
    Machine::new().share(programs).environment("PATH", &path).limit(Duration::from_secs(400))
}

/// Functions that scripts use: `start LOG COMMAND...` runs a program behind them and waits until it says that it forwards.
const PRELUDE: &str = r#"
set -u
start() {
  local log=$1; shift
  "$@" >"$log.out" 2>"$log.err" &
  program=$!
  for _ in $(seq 600); do
    grep -q '^forwarding' "$log.err" "$log.out" 2>/dev/null && return 0
    kill -0 $program 2>/dev/null || { echo "ended early:"; cat "$log.out" "$log.err"; return 1; }
    sleep 0.05
  done
  echo "never forwarded:"; cat "$log.out" "$log.err"; return 1
}
expect() { # STATUS WORD COMMAND...: the command ends with the status and its standard error has the word
  local wanted=$1 word=$2 text status; shift 2
  text=$(timeout 30 "$@" 2>&1 >/dev/null); status=$?
  if [ $status -eq $wanted ] && [[ "$text" == *"$word"* ]]; then echo "ok: $*"
  else echo "FAILED: $* gave status $status, wanted $wanted and '$word': $text"; fi
}
"#;

/// Boots `machine` with a script.
pub fn script(machine: Machine, script: &str) -> Running {
    machine.script(&format!("{PRELUDE}\n{script}")).unwrap_or_else(|error| panic!("{error}"))
}

/// Waits for the end and asserts that it was a good one.
pub fn finish(running: Running) -> Finished {
    let finished = running.wait().unwrap_or_else(|error| panic!("{error}"));
    assert!(
        finished.status == 0 && !finished.stdout.lines().any(|line| line.starts_with("FAILED")),
        "status {}\nstdout:\n{}\nstderr:\n{}\nconsole:\n{}",
        finished.status,
        finished.stdout,
        finished.stderr,
        finished.console
    );
    finished
}

/// Waits for a line and gives it.
pub fn line(running: &mut Running, text: &str) -> String {
    running.line(text).unwrap_or_else(|error| panic!("{error}"))
}
