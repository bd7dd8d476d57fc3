//! Arguments of `pollring forward`, and every check that needs no device.
//!
//! A value is checked where it is parsed, so an error names the option, what was given and what it may be. What depends on a port's
//! capabilities is checked by `setup`, before memory is taken.

use crate::error::AppError;
use crate::output::Format;
use crate::ports::{PortName, Target};
use clap::{Args, ValueEnum};
use pollring::buffer::BURST;
use pollring::os::{AffinityError, allowed_cores};
use pollring::port::MacAddress;
use std::time::Duration;

/// What is done to each frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// No byte is touched
    Io,
    /// Source and destination address change places
    MacSwap,
    /// Source becomes the sending port's address, destination becomes --dst
    MacRewrite,
}

impl Mode {
    /// As it is written on the command line.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Mode::Io => "io",
            Mode::MacSwap => "mac-swap",
            Mode::MacRewrite => "mac-rewrite",
        }
    }
}

/// Who copies received frames out of the reach of the device that wrote them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CopyEngine {
    /// The CPU
    Memcpy,
}

/// Which pages packet memory is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PageChoice {
    /// 2 MiB pages where enough are free, otherwise 4 KiB
    Auto,
    /// 2 MiB pages or nothing
    Huge,
    /// 4 KiB pages
    Small,
}

/// Arguments of `pollring forward`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Ports as SCHEME:NAME; port 0 forwards to 1 and back, 2 to 3, and an odd last one to itself
    #[arg(value_name = "PORT", default_values = ["sim:igb", "sim:igb"])]
    ports: Vec<String>,
    /// What to do to each frame
    #[arg(long, value_enum, default_value = "io")]
    mode: Mode,
    /// How long to run, in seconds; simulated ports run for 5 if it is left out
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_hyphen_values = true)]
    duration: Option<Duration>,
    /// Cores to poll on, as in 0,2-3; one worker each. Left out: the last core that this process may use
    #[arg(long, value_name = "LIST", value_parser = core_list, allow_hyphen_values = true)]
    cores: Option<CoreList>,
    /// Frames that are handled together, 1 to 64
    #[arg(long, value_name = "N", default_value = "32", value_parser = burst, allow_hyphen_values = true)]
    burst: usize,
    /// Frames that each port sends once at the start, for ports whose outer ends are looped
    #[arg(long, value_name = "N", default_value = "0", value_parser = primers, allow_hyphen_values = true)]
    prime: u64,
    /// Buffers in each port's pool. Left out: what its rings and the workers' caches need
    #[arg(long, value_name = "N", value_parser = frames, allow_hyphen_values = true)]
    frames: Option<usize>,
    /// Queue pairs of each port
    #[arg(long, value_name = "N", default_value = "1", value_parser = queues, allow_hyphen_values = true)]
    queues: usize,
    /// Descriptors in each ring, a power of two
    #[arg(long, value_name = "N", default_value = "512", value_parser = entries, allow_hyphen_values = true)]
    entries: usize,
    /// Pages for packet memory
    #[arg(long, value_enum, default_value = "auto")]
    pages: PageChoice,
    /// Copy each received frame into memory that its device cannot write, before it is looked at
    #[arg(long, value_enum, value_name = "ENGINE")]
    copy: Option<CopyEngine>,
    /// Print one JSON object at the end; people's text goes to standard error
    #[arg(long)]
    json: bool,
    /// Decides the generated frames and the simulated delays
    #[arg(long, value_name = "N", default_value = "1", value_parser = count, allow_hyphen_values = true)]
    seed: u64,
    /// Destination address that mac-rewrite sets [default: 02:00:00:00:00:01]
    #[arg(long, value_name = "MAC", value_parser = mac_address)]
    dst: Option<MacAddress>,
}

/// What to do: checked arguments, defaults filled in.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) ports: Vec<PortName>,
    /// Whether the ports are software devices; all are or none is.
    pub(crate) simulated: bool,
    pub(crate) mode: Mode,
    /// `None` runs until it is stopped.
    pub(crate) duration: Option<Duration>,
    /// Cores with one worker each.
    pub(crate) cores: Vec<usize>,
    /// Cores that the process may use.
    pub(crate) allowed_cores: usize,
    pub(crate) burst: usize,
    pub(crate) prime: u64,
    pub(crate) frames: Option<usize>,
    pub(crate) queues: usize,
    pub(crate) entries: usize,
    pub(crate) pages: PageChoice,
    pub(crate) copy: Option<CopyEngine>,
    pub(crate) format: Format,
    pub(crate) seed: u64,
    pub(crate) destination: MacAddress,
}

/// Where mac-rewrite sends frames by default: locally administered, unicast.
const DEFAULT_DESTINATION: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);

/// Simulated ports would run for ever otherwise, and nobody waits for them.
const SIMULATED_DURATION: Duration = Duration::from_secs(5);

impl Plan {
    /// Checks what needs no device: port names, cores, what goes together.
    ///
    /// # Errors
    /// The first thing that does not fit.
    pub(crate) fn new(arguments: &Arguments) -> Result<Plan, AppError> {
        let ports = arguments.ports.iter().map(|uri| uri.parse()).collect::<Result<Vec<PortName>, _>>()?;
        let simulated = all_simulated(&ports)?;
        if arguments.dst.is_some() && arguments.mode != Mode::MacRewrite {
            let mode = arguments.mode.as_str();
            return Err(AppError::Usage(format!(
                "--dst is for --mode mac-rewrite, the mode is {mode}; leave --dst out"
            )));
        }
        let pairs = ports.len() * arguments.queues;
        let (cores, allowed_cores) = choose_cores(arguments.cores.as_ref(), pairs)?;
        Ok(Plan {
            ports,
            simulated,
            mode: arguments.mode,
            duration: arguments.duration.or(simulated.then_some(SIMULATED_DURATION)),
            cores,
            allowed_cores,
            burst: arguments.burst,
            prime: arguments.prime,
            frames: arguments.frames,
            queues: arguments.queues,
            entries: arguments.entries,
            pages: arguments.pages,
            copy: arguments.copy,
            format: Format::from_switch(arguments.json),
            seed: arguments.seed,
            destination: arguments.dst.unwrap_or(DEFAULT_DESTINATION),
        })
    }

    /// The port that `port` forwards to.
    pub(crate) fn partner(&self, port: usize) -> usize {
        if port ^ 1 < self.ports.len() { port ^ 1 } else { port }
    }
}

/// Whether the ports are simulated. Each is named once, and real ones stand beside real ones: the far ends of simulated wires
/// check what they sent themselves.
fn all_simulated(ports: &[PortName]) -> Result<bool, AppError> {
    let simulated = |port: &PortName| matches!(port.target, Target::Simulated(_));
    let first = ports.first().is_none_or(simulated);
    if let Some(other) = ports.iter().find(|port| simulated(port) != first) {
        return Err(AppError::Usage(format!(
            "port `{}`: simulated and real ports do not forward to each other; name ports of one kind",
            other.uri
        )));
    }
    let twice = |(at, port): &(usize, &PortName)| !first && ports[..*at].contains(port);
    match ports.iter().enumerate().find(twice) {
        Some((_, port)) => {
            Err(AppError::Usage(format!("port `{}` is named twice; name each once", port.uri)))
        }
        None => Ok(first),
    }
}

/// The cores to poll on, and how many there are to choose from.
fn choose_cores(asked: Option<&CoreList>, pairs: usize) -> Result<(Vec<usize>, usize), AppError> {
    let allowed = allowed_cores()?;
    let count = allowed.as_slice().len();
    let Some(CoreList(cores)) = asked else {
        return Ok((allowed.as_slice().last().copied().into_iter().collect(), count));
    };
    if let Some(core) = cores.iter().copied().find(|core| !allowed.contains(*core)) {
        return Err(AffinityError::NotAllowed { core, allowed }.into());
    }
    if cores.len() > pairs {
        let text = format!(
            "--cores names {} cores, and there are {pairs} queue pairs to poll; name fewer cores or raise --queues",
            cores.len()
        );
        return Err(AppError::Usage(text));
    }
    Ok((cores.clone(), count))
}

/// Cores as the user listed them; none twice.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CoreList(Vec<usize>);

/// The most cores that a kernel is built for.
const MOST_CORES: usize = 8192;

fn core_list(text: &str) -> Result<CoreList, String> {
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let core = |text: &str| text.trim().parse().ok().filter(|core| *core < MOST_CORES);
        let (Some(first), Some(last)) = (core(first), core(last)) else {
            return Err(format!("`{part}` is no core; list core numbers below {MOST_CORES}, as in 0,2-3"));
        };
        if first > last {
            return Err(format!("`{part}` runs backwards; write {last}-{first}"));
        }
        for core in first..=last {
            if cores.contains(&core) {
                return Err(format!("core {core} is listed twice; one worker polls on each core"));
            }
            cores.push(core);
        }
    }
    Ok(CoreList(cores))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let given = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    given
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| "a duration is a number of seconds above 0, as in 0.5 or 60".to_owned())
}

fn burst(text: &str) -> Result<usize, String> {
    let given = text.parse().ok().filter(|burst| (1..=BURST).contains(burst));
    given.ok_or_else(|| format!("a burst is 1 to {BURST} frames"))
}

fn queues(text: &str) -> Result<usize, String> {
    let given = text.parse().ok().filter(|queues| (1..=256).contains(queues));
    given.ok_or_else(|| "a port has 1 to 256 queue pairs, sim:igb up to 16".to_owned())
}

fn entries(text: &str) -> Result<usize, String> {
    let given = text
        .parse()
        .ok()
        .filter(|entries: &usize| entries.is_power_of_two() && (64..=32768).contains(entries));
    given.ok_or_else(|| "a ring has a power of two of descriptors, sim:igb 64 to 4096".to_owned())
}

fn frames(text: &str) -> Result<usize, String> {
    let given = text.parse().ok().filter(|frames| *frames > 0);
    given.ok_or_else(|| "a pool has a whole number of frames above 0".to_owned())
}

/// More than every ring and wire on a loop holds.
const MOST_PRIMERS: u64 = 1 << 16;

fn primers(text: &str) -> Result<u64, String> {
    let given = text.parse().ok().filter(|frames| *frames <= MOST_PRIMERS);
    given.ok_or_else(|| format!("use a whole number from 0 to {MOST_PRIMERS}"))
}

fn count(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "use a whole number from 0 to 2^64-1".to_owned())
}

fn mac_address(text: &str) -> Result<MacAddress, String> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|part| part.len() == 2);
        *byte = part.and_then(|part| u8::from_str_radix(part, 16).ok()).ok_or_else(not_a_mac)?;
    }
    parts.next().map_or(Ok(MacAddress(bytes)), |_| Err(not_a_mac()))
}

fn not_a_mac() -> String {
    "an Ethernet address is six bytes in hex, as in 02:00:00:00:00:01".to_owned()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    /// What a command line comes to.
    pub(in crate::forward) fn plan(line: &str) -> Result<Plan, String> {
        let words = std::iter::once("forward").chain(line.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        Plan::new(&line.arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn without_arguments_two_simulated_ports_run_for_five_seconds() {
        let plan = plan("").unwrap();
        assert_eq!(plan.ports.len(), 2);
        assert_eq!((plan.mode, plan.duration, plan.burst), (Mode::Io, Some(Duration::from_secs(5)), 32));
        assert_eq!(
            plan.cores,
            allowed_cores().unwrap().as_slice().last().copied().into_iter().collect::<Vec<_>>()
        );
    }

    #[test]
    fn real_ports_run_until_they_are_stopped() {
        let plan = plan("pci:0000:01:00.0 pci:0000:02:00.0").unwrap();
        assert_eq!((plan.simulated, plan.duration), (false, None));
    }

    #[test]
    fn ports_pair_up_and_an_odd_last_one_turns_back() {
        let plan = plan("sim:igb sim:igb sim:igb").unwrap();
        assert_eq!([0, 1, 2].map(|port| plan.partner(port)), [1, 0, 2]);
    }

    #[test]
    fn core_lists_read_like_the_kernels() {
        assert_eq!(core_list("0,2-4,1").unwrap(), CoreList(vec![0, 2, 3, 4, 1]));
        for (text, word) in [
            ("", "`` is no core"),
            (",", "is no core"),
            ("0,,1", "is no core"),
            ("3-1", "write 1-3"),
            ("0,1,0-1", "core 0 is listed twice"),
            ("-1", "`-1` is no core"),
            ("0-99999999999999999999", "is no core"),
            ("9000", "below 8192"),
            ("one", "`one`"),
        ] {
            let error = core_list(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn durations_are_finite_and_positive() {
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        for bad in ["0", "-1", "NaN", "inf", "1e300", "soon", ""] {
            assert!(seconds(bad).unwrap_err().contains("above 0"), "{bad}");
        }
    }

    #[test]
    fn addresses_are_six_bytes() {
        assert_eq!(mac_address("02:00:00:00:00:fF"), Ok(MacAddress([2, 0, 0, 0, 0, 255])));
        for bad in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "2:0:0:0:0:1",
            "02-00-00-00-00-01",
            "02:00:00:00:00:0g",
        ] {
            assert!(mac_address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_argument_has_its_limits() {
        for line in [
            "--burst 0",
            "--burst 65",
            "--entries 100",
            "--entries 32",
            "--queues 0",
            "--frames 0",
            "--prime -1",
            "--seed x",
            "--mode fast",
            "--pages 1G",
            "--dst 02:00:00:00:00:01",
            "--cores 8191",
            "pci:0000:01:00.0 sim:igb",
            "pci:0000:01:00.0 pci:01:00.0",
        ] {
            assert!(plan(line).is_err(), "{line}");
        }
        assert!(plan("--mode mac-rewrite --dst 02:00:00:00:00:07").is_ok());
    }

    #[test]
    fn more_cores_than_queue_pairs_are_refused() {
        let allowed = allowed_cores().unwrap();
        let [first, second, ..] = *allowed.as_slice() else { return };
        let error = plan(&format!("sim:igb --cores {first},{second}")).unwrap_err();
        assert!(error.contains("2 cores") && error.contains("--queues"), "{error}");
    }
}
