//! A machine that runs, and what its program said.
//!
//! The streams are unix sockets on which this process listens and to which QEMU connects; threads read them to their end. The guest
//! tells the program's exit status on a stream of its own, after the program's output. Then QEMU is ended.

use crate::arguments::{self, STREAMS};
use crate::{Cache, End, Machine, MachineError, Talk, Wire, host};
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long QEMU may take to connect its streams.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Where a stream goes besides.
type Copy = Option<Box<dyn Write + Send>>;

/// What came from the guest.
enum Said {
    Line(String),
    Status(i32),
    Closed,
}

/// A machine between boot and the end of its program.
pub struct Running {
    qemu: Child,
    wires: Vec<Wire>,
    stdin: Option<UnixStream>,
    said: Receiver<Said>,
    outputs: [Arc<Mutex<String>>; 2],
    status: Option<i32>,
    started: Instant,
    limit: Duration,
    folder: TempDir,
}

/// How a program ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Its exit status.
    pub status: i32,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// What the kernel wrote to its console.
    pub console: String,
}

impl Running {
    pub(crate) fn start(machine: &Machine, program: &[&OsStr]) -> Result<Running, MachineError> {
        let cache = Cache::new();
        cache.check(machine.kernel)?;
        install(&cache.root().join("init"), include_str!("init.sh"))?;
        install(&cache.root().join("init.fstab"), include_str!("init.fstab"))?;
        let folder = tempfile::Builder::new()
            .prefix("pollring-vm-")
            .tempdir()
            .map_err(host("make a folder in /tmp"))?;
        write_job(machine, program, folder.path())?;
        let wires = bind_wires(machine, folder.path())?;
        let listeners = listen(folder.path())?;
        let mut qemu = cache.qemu();
        qemu.args(arguments::of(machine, &cache, folder.path()));
        let mut qemu = spawn(qemu, machine.talk, folder.path())?;
        let streams = match accept_all(listeners, &mut qemu) {
            Ok(streams) => streams,
            Err(error) => {
                end(&mut qemu);
                return Err(with_log(error, folder.path()));
            }
        };
        let [stdin, stdout, stderr, status] = streams;
        let (sender, said) = channel();
        let outputs = [Arc::default(), Arc::default()];
        let joined = machine.talk == Talk::Joined;
        let copies: [Copy; 2] = [
            joined.then(|| Box::new(std::io::stdout()) as _),
            joined.then(|| Box::new(std::io::stderr()) as _),
        ];
        for ((stream, output), copy) in [stdout, stderr].into_iter().zip(&outputs).zip(copies) {
            read_lines(stream, Arc::clone(output), copy, sender.clone());
        }
        if joined {
            let mut to = stdin.try_clone().map_err(host("duplicate a socket"))?;
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut std::io::stdin(), &mut to);
                let _ = to.shutdown(std::net::Shutdown::Write);
            });
        }
        read_status(status, sender);
        pin(qemu.id());
        let (started, limit) = (Instant::now(), machine.limit);
        Ok(Running { qemu, wires, stdin: Some(stdin), said, outputs, status: None, started, limit, folder })
    }

    /// The far ends of the NICs that [`Machine::nic`] added, in order.
    pub fn wires(&mut self) -> &mut [Wire] {
        &mut self.wires
    }

    /// The same, to be moved to other threads.
    pub fn take_wires(&mut self) -> Vec<Wire> {
        std::mem::take(&mut self.wires)
    }

    /// Writes a line to the program's standard input.
    ///
    /// # Errors
    /// The machine is gone, or its input was closed.
    pub fn say(&mut self, line: &str) -> Result<(), MachineError> {
        let stdin = self.stdin.as_mut().ok_or_else(|| MachineError::Ended("its input was closed".into()))?;
        stdin.write_all(format!("{line}\n").as_bytes()).map_err(host("write to the program's standard input"))
    }

    /// Closes the program's standard input.
    pub fn close_input(&mut self) {
        self.stdin = None;
    }

    /// Waits for the next line, on either stream, that contains `text`. Lines before it are passed over; the output keeps all.
    ///
    /// # Errors
    /// The program ended, QEMU ended, or the machine's limit passed.
    pub fn line(&mut self, text: &str) -> Result<String, MachineError> {
        loop {
            match self.hear(&format!("waiting for a line with `{text}`"))? {
                Said::Line(line) if line.contains(text) => return Ok(line),
                Said::Status(status) => {
                    self.status = Some(status);
                    let what = format!("the program ended with status {status} and no line with `{text}`");
                    return Err(MachineError::Ended(format!("{what}; {}", self.everything())));
                }
                _ => {}
            }
        }
    }

    /// Waits for the program's end, then ends the machine.
    ///
    /// # Errors
    /// QEMU ended first, or the machine's limit passed.
    pub fn wait(mut self) -> Result<Finished, MachineError> {
        let status = loop {
            if let Some(status) = self.status {
                break status;
            }
            if let Said::Status(status) = self.hear("waiting for the program's end")? {
                break status;
            }
        };
        end(&mut self.qemu);
        // The readers end with their streams, and have kept everything by then.
        while self.said.recv().is_ok() {}
        let [stdout, stderr] =
            self.outputs.each_ref().map(|text| text.lock().unwrap_or_else(PoisonError::into_inner).clone());
        Ok(Finished { status, stdout, stderr, console: console(self.folder.path()) })
    }

    /// QEMU's process id.
    pub fn qemu_pid(&self) -> u32 {
        self.qemu.id()
    }

    /// Where its sockets and logs are; removed with this value.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn hear(&mut self, waiting_for: &str) -> Result<Said, MachineError> {
        let left = self.limit.saturating_sub(self.started.elapsed());
        match self.said.recv_timeout(left) {
            Ok(Said::Closed) | Err(RecvTimeoutError::Disconnected) => match self.qemu.try_wait() {
                Ok(Some(_)) => Err(MachineError::Ended(self.everything())),
                _ => Ok(Said::Closed),
            },
            Ok(said) => Ok(said),
            Err(RecvTimeoutError::Timeout) => {
                end(&mut self.qemu);
                let (limit, waiting_for) = (self.limit, waiting_for.to_owned());
                Err(MachineError::Late { limit, waiting_for, rest: self.everything() })
            }
        }
    }

    fn everything(&self) -> String {
        let [stdout, stderr] =
            self.outputs.each_ref().map(|text| text.lock().unwrap_or_else(PoisonError::into_inner).clone());
        let folder = self.folder.path();
        let qemu = fs::read_to_string(folder.join("qemu")).unwrap_or_default();
        format!("stdout:\n{stdout}\nstderr:\n{stderr}\nconsole:\n{}\nqemu:\n{qemu}", console(folder))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        end(&mut self.qemu);
    }
}

/// Ends a child; one that has ended already is only waited for.
fn end(qemu: &mut Child) {
    let _ = qemu.kill();
    let _ = qemu.wait();
}

fn console(folder: &Path) -> String {
    let bytes = fs::read(folder.join("console")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn with_log(error: MachineError, folder: &Path) -> MachineError {
    let log = fs::read_to_string(folder.join("qemu")).unwrap_or_default();
    MachineError::Ended(format!("{error}; {log}"))
}

/// The guest's first process lies in the root; it is this crate's, so it is written when it differs.
fn install(path: &Path, wanted: &str) -> Result<(), MachineError> {
    if fs::read_to_string(path).is_ok_and(|present| present == wanted) {
        return Ok(());
    }
    let install = || {
        let new = path.with_extension(format!("new{}", std::process::id()));
        fs::write(&new, wanted)?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
        fs::rename(&new, path)
    };
    install().map_err(host(format!("write {}", path.display())))
}

fn write_job(machine: &Machine, program: &[&OsStr], folder: &Path) -> Result<(), MachineError> {
    let job = folder.join("job");
    // fstab(5) writes a blank as \040.
    let shares: Vec<String> =
        machine.shares.iter().map(|path| path.display().to_string().replace(' ', "\\040")).collect();
    let options = "x-mount.mkdir,trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro";
    let lines =
        shares.iter().enumerate().map(|(position, path)| format!("share{position} {path} 9p {options}\n"));
    let mut command = Vec::new();
    for (name, value) in &machine.environment {
        command.extend_from_slice(format!("export {name}=").as_bytes());
        quote(value.as_ref(), &mut command);
        command.push(b'\n');
    }
    command.extend_from_slice(b"cd ");
    quote(crate::workspace().as_os_str(), &mut command);
    command.extend_from_slice(b"\nexec");
    for word in program {
        command.push(b' ');
        quote(word, &mut command);
    }
    command.push(b'\n');
    let write = || {
        fs::create_dir(&job)?;
        fs::write(job.join("fstab"), lines.collect::<String>())?;
        fs::write(job.join("hugepages"), format!("{}\n", machine.hugepages))?;
        if machine.talk == Talk::Terminal {
            fs::write(job.join("interactive"), "")?;
        }
        fs::write(job.join("command"), command)
    };
    write().map_err(host("write the machine's job"))
}

/// Single quotes for the shell.
fn quote(word: &OsStr, out: &mut Vec<u8>) {
    out.push(b'\'');
    for byte in word.as_bytes() {
        match byte {
            b'\'' => out.extend_from_slice(b"'\\''"),
            byte => out.push(*byte),
        }
    }
    out.push(b'\'');
}

fn bind_wires(machine: &Machine, folder: &Path) -> Result<Vec<Wire>, MachineError> {
    let ours = machine.nics.iter().enumerate().filter(|(_, nic)| nic.end == End::Host);
    ours.map(|(position, _)| {
        Wire::bind(&folder.join(format!("host{position}")), &folder.join(format!("guest{position}")))
    })
    .collect()
}

fn listen(folder: &Path) -> Result<[UnixListener; 4], MachineError> {
    let bind = |name: &str| {
        let listener = UnixListener::bind(folder.join(name)).map_err(host(format!("listen on {name}")))?;
        listener.set_nonblocking(true).map_err(host("set a socket non-blocking"))?;
        Ok(listener)
    };
    Ok([bind(STREAMS[0])?, bind(STREAMS[1])?, bind(STREAMS[2])?, bind(STREAMS[3])?])
}

fn spawn(mut qemu: Command, talk: Talk, folder: &Path) -> Result<Child, MachineError> {
    let log = fs::File::create(folder.join("qemu")).map_err(host("make QEMU's log"))?;
    qemu.stderr(log);
    if talk != Talk::Terminal {
        qemu.stdin(Stdio::null()).stdout(Stdio::null());
    }
    qemu.spawn().map_err(host("start QEMU"))
}

fn accept_all(listeners: [UnixListener; 4], qemu: &mut Child) -> Result<[UnixStream; 4], MachineError> {
    let start = Instant::now();
    let mut accept = |listener: &UnixListener| loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).map_err(host("set a socket blocking"))?;
                return Ok(stream);
            }
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => {
                return Err(host("accept")(error));
            }
            Err(_) => {}
        }
        if qemu.try_wait().is_ok_and(|ended| ended.is_some()) || start.elapsed() > START_LIMIT {
            return Err(MachineError::Ended("it never connected its streams".into()));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let [stdin, stdout, stderr, status] = &listeners;
    Ok([accept(stdin)?, accept(stdout)?, accept(stderr)?, accept(status)?])
}

/// Keeps what comes, and passes whole lines on.
fn read_lines(stream: UnixStream, output: Arc<Mutex<String>>, mut copy: Copy, said: Sender<Said>) {
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        let mut bytes = Vec::new();
        while reader.read_until(b'\n', &mut bytes).is_ok_and(|read| read > 0) {
            if let Some(copy) = &mut copy {
                let _ = copy.write_all(&bytes).and_then(|()| copy.flush());
            }
            let text = String::from_utf8_lossy(&bytes).into_owned();
            output.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
            let _ = said.send(Said::Line(text.trim_end().to_owned()));
            bytes.clear();
        }
        let _ = said.send(Said::Closed);
    });
}

fn read_status(mut stream: UnixStream, said: Sender<Said>) {
    std::thread::spawn(move || {
        let (mut text, mut byte) = (String::new(), [0]);
        while stream.read(&mut byte).is_ok_and(|read| read == 1) {
            match byte[0] {
                b'\n' => {
                    let _ = said.send(Said::Status(text.trim().parse().unwrap_or(-1)));
                    text.clear();
                }
                byte => text.push(char::from(byte)),
            }
        }
        let _ = said.send(Said::Closed);
    });
}

/// Each emulated core stays on a core of the host: moving it costs more than it gains, and times are steadier.
fn pin(qemu: u32) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let Ok(tasks) = fs::read_dir(format!("/proc/{qemu}/task")) else { return };
    for task in tasks.flatten() {
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let Some(cpu) = name.trim().strip_prefix("CPU ").and_then(|rest| rest.split('/').next()) else {
            continue;
        };
        let Ok(cpu) = cpu.parse::<usize>() else { continue };
        let _ = Command::new("taskset")
            .args(["-p", "-c", &(cpu % cores).to_string()])
            .arg(task.file_name())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}
