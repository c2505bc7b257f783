//! Performs one run of `bench selfcheck`: a client sends requests to a server in a lab; the wire and the CPU
//! clocks are read at both edges of the window.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use latency::measure::live::agreement::percentiles_of;
use linux::bpf::wire::{WireCounts, WireMeter};
use linux::clock::monotonic;
use linux::counters::CounterSource;
use linux::lab::{Lab, LabOptions, SERVER_ADDRESS, ServerProgram};
use linux::{KernelError, Netns, Signals};
use load::{Edge, Environment};
use model::{
    Asks, Counters, CpuSet, Distribution, ForeignWorkload, Nanoseconds, OfferedLoad, Origin, Pid,
    SimulatedFrom, Waiting, Workload,
};
use serde::Deserialize;
use session::Fault;

use super::error::BenchError;
use super::layout::Layout;
use super::selfcheck_args::{Selfcheck, Shape};
use cli::OwnFiles;

/// The independent client's source.
const OPEN_LOOP: &str = include_str!("open_loop.c");

/// The server's port.
const PORT: u16 = 7010;

/// The time between the start of the independent client and its first request, in which the client connects
/// and draws its schedule.
const PREPARES: Nanoseconds = Nanoseconds::from_millis(400);

/// A client of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    /// The generator, polling without sleep.
    Spinning,
    /// The generator, sleeping until a request is due, as with `bench policies --start`.
    Sleeping,
    /// The C program.
    Independent,
}

impl Client {
    /// All clients.
    pub(crate) const ALL: [Self; 3] = [Self::Spinning, Self::Sleeping, Self::Independent];

    /// Returns the name to show in tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Spinning => "generator, spinning",
            Self::Sleeping => "generator, asleep",
            Self::Independent => "independent",
        }
    }
}

/// The result of a run. Spans are in microseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    /// Answers per second.
    pub(crate) rate: f64,
    /// The p50, p90, p99 and p99.9 of the time since the request was sent.
    pub(crate) from_send: [f64; 4],
    /// The same percentiles of the time since the request was due.
    pub(crate) from_due: [f64; 4],
    /// The p50 and p99 of the delay from when a request was due until it was sent.
    pub(crate) late: [f64; 2],
    /// CPU time of the server per answer: from `/proc/stat` of its CPUs, and from its run time.
    pub(crate) server_us: [Option<f64>; 2],
    /// CPU time of the client per answer, by both methods.
    pub(crate) client_us: [Option<f64>; 2],
    /// Measured on the wire: answers per second; p50, p90 and p99.
    pub(crate) wire: Option<(f64, [Option<f64>; 3])>,
}

/// The lab, its server, and the instruments.
pub(crate) struct SelfcheckStage<'a> {
    signals: &'a mut Signals,
    arguments: &'a Selfcheck,
    layout: Layout,
    counters: CounterSource,
    wire: WireMeter,
    files: OwnFiles,
    /// The compiled client, or why it could not be compiled.
    pub(crate) open_loop: Result<PathBuf, String>,
    lab: Lab,
}

impl<'a> SelfcheckStage<'a> {
    /// Creates the lab, loads the instruments, and compiles the independent client.
    pub(crate) fn new(
        signals: &'a mut Signals,
        layout: Layout,
        arguments: &'a Selfcheck,
    ) -> Result<Self, Fault> {
        let lab = Lab::new(&LabOptions::with_queues(1))?;
        let wire = WireMeter::load(PORT, lab.server().id(), lab.client().id())?;
        let files = OwnFiles::new()?;
        let open_loop = compile(&files)?;
        let counters = CounterSource::open(lab.server())?;
        Ok(Self { signals, arguments, layout, counters, wire, files, open_loop, lab })
    }

    /// Starts the server with the known service time.
    pub(crate) fn start(&self) -> Result<ServerProgram, BenchError> {
        let program = std::env::current_exe().map_err(|error| Fault::file("/proc/self/exe", error))?;
        let mut command = Command::new(program);
        command.args(["bench", "serve", "--listen"]).arg(address(PORT).to_string());
        command.args(["--size", &format!("{0}/{0}", Selfcheck::BYTES)]);
        command.args(["--service-time", &format!("{}ns", self.arguments.service_time.0)]);
        self.start_on(command, PORT)
    }

    fn start_on(&self, command: Command, port: u16) -> Result<ServerProgram, BenchError> {
        let program = self.lab.start_program_on(&self.layout.server, command, port);
        Ok(program.map_err(Fault::failed)?)
    }

    /// Returns the CPU time of the whole machine since boot, by kind.
    pub(crate) fn counters(&mut self) -> Result<Counters, BenchError> {
        Ok(self.counters.snapshot()?)
    }

    /// Returns an error if a signal has arrived.
    fn go_on(&mut self) -> Result<(), BenchError> {
        self.signals.take().map_or(Ok(()), |arrived| Err(BenchError::Interrupted(arrived.signal)))
    }

    /// Runs one client once.
    pub(crate) fn run(
        &mut self,
        server: &ServerProgram,
        shape: Shape,
        client: Client,
        round: u32,
    ) -> Result<Sample, BenchError> {
        self.go_on()?;
        self.wire.begin_closed()?;
        let run = match client {
            Client::Spinning => self.generator(server, shape, Waiting::Spin, round),
            Client::Sleeping => self.generator(server, shape, Waiting::Block, round),
            Client::Independent => self.independent(server, shape, round),
        };
        let (mut sample, edges) = match run {
            Ok(run) => run,
            Err(error) => {
                self.wire.end()?;
                return Err(error);
            }
        };
        let seen = self.wire.end()?;
        let [before, after] = edges;
        sample.wire = Some(on_the_wire(&seen, after.at.0.saturating_sub(before.at.0)));
        self.costs(&mut sample, &before, &after);
        Ok(sample)
    }

    fn generator(
        &mut self,
        server: &ServerProgram,
        shape: Shape,
        waiting: Waiting,
        round: u32,
    ) -> Result<(Sample, [Reading; 2]), BenchError> {
        let workload = Workload::TcpRr(self.arguments.workload(shape, waiting, round));
        let Self { layout, counters, wire, lab, .. } = self;
        let pids = [server.process().pid, Pid(std::process::id())];
        let edges = Edges::new(lab.client(), layout, pids, counters, Some(wire));
        let run = load::offer(server.address(), &workload, OfferedLoad::PerSecond(shape.rate), &edges)?;
        let edges = edges.readings()?;
        Ok((of_generator(run), edges))
    }

    fn independent(
        &mut self,
        server: &ServerProgram,
        shape: Shape,
        round: u32,
    ) -> Result<(Sample, [Reading; 2]), BenchError> {
        let program = self.open_loop.as_ref().map_err(|why| Fault::failed(why.clone()))?;
        let begin = Nanoseconds(monotonic().0 + PREPARES.0);
        let open = Nanoseconds(begin.0 + Selfcheck::WARMUP.0);
        let close = Nanoseconds(open.0 + self.arguments.window().0);
        let cpu = self.layout.client.first().map_or(-1, |cpu| i64::from(cpu.0));
        let mut command = Command::new(program);
        command.args([server.address().ip().to_string(), server.address().port().to_string()]);
        command.args([cpu.to_string(), shape.connections.to_string(), shape.rate.to_string()]);
        command.arg(Selfcheck::BYTES.to_string());
        command.arg((self.arguments.seed + u64::from(round)).to_string());
        command.args([begin, open, close].map(|moment| moment.0.to_string()));
        self.lab.place_on_client(&mut command)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|error| Fault::file(program, error))?;
        let Self { layout, counters, wire, lab, .. } = self;
        let pids = [server.process().pid, Pid(child.id())];
        let edges = Edges::new(lab.client(), layout, pids, counters, Some(wire));
        for (moment, edge) in [(open, Edge::Opens), (close, Edge::Closes)] {
            std::thread::sleep(Duration::from_nanos(moment.0.saturating_sub(monotonic().0)));
            edges.at_edge(edge);
        }
        let output = child.wait_with_output().map_err(|error| Fault::file(program, error))?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Fault::failed(format!("the independent client failed: {words}")).into());
        }
        let printed: Printed = serde_json::from_slice(&output.stdout)
            .map_err(|error| Fault::failed(format!("the independent client printed no result: {error}")))?;
        let edges = edges.readings()?;
        Ok((printed.sample(self.arguments.window()), edges))
    }

    /// Calculates the CPU time per answer of server and client, both from `/proc/stat` of their CPUs and from
    /// their run time.
    fn costs(&self, sample: &mut Sample, before: &Reading, after: &Reading) {
        let seconds = Nanoseconds(after.at.0.saturating_sub(before.at.0)).as_secs_f64();
        let answers = sample.rate * seconds;
        if answers <= 0.0 {
            return;
        }
        let client: CpuSet = self.layout.client.iter().copied().collect();
        let busy = |cpus: &CpuSet| {
            let busy = after.counters.busy_on(&before.counters, cpus)?;
            Some(busy.as_secs_f64() * 1e6 / answers)
        };
        let ran = |before: Option<Nanoseconds>, after: Option<Nanoseconds>| {
            Some(Nanoseconds(after?.0.saturating_sub(before?.0)).as_secs_f64() * 1e6 / answers)
        };
        sample.server_us = [busy(&self.layout.server), ran(before.server, after.server)];
        sample.client_us = [busy(&client), ran(before.client, after.client)];
    }

    /// Returns the requests per second in closed loop, first of another program and then of the generator,
    /// over the same number of connections. Returns the inner `Err` if the program or its server is not
    /// installed.
    pub(crate) fn closed_loop(
        &mut self,
        tool: Tool,
        round: u32,
    ) -> Result<Result<(f64, f64), String>, BenchError> {
        for program in tool.programs() {
            if !is_installed(program) {
                return Ok(Err(format!("{program} is not installed: apt-get install {}", tool.package())));
            }
        }
        self.go_on()?;
        let server = self.start_on(tool.server(&self.files)?, tool.port())?;
        let mut command = tool.client(self.arguments.window());
        self.lab.place_on_client(&mut command)?;
        let cpus: CpuSet = self.layout.client.iter().copied().collect();
        let run = || {
            linux::process::pin_this_thread(&cpus)?;
            Ok::<_, BenchError>(command.output().map_err(Fault::failed)?)
        };
        // Start the client on a separate thread, because it inherits that thread's CPUs.
        let output = std::thread::scope(|scope| scope.spawn(run).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let Some(theirs) = tool.rate(&text) else {
            let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Fault::failed(format!("{} printed no rate: {words}", tool.name())).into());
        };
        let pace = self.arguments.pace(Tool::CONNECTIONS, Waiting::Block, round);
        let workload = Workload::Foreign(ForeignWorkload { pace, asks: tool.asks() });
        let Self { layout, counters, lab, .. } = self;
        let pids = [server.process().pid, Pid(std::process::id())];
        let edges = Edges::new(lab.client(), layout, pids, counters, None);
        let run = load::offer(server.address(), &workload, OfferedLoad::Max, &edges)?;
        Ok(Ok((theirs, of_generator(run).rate)))
    }
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::new(SERVER_ADDRESS.into(), port)
}

/// Compiles the independent client. The inner error says why compiling failed.
fn compile(files: &OwnFiles) -> Result<Result<PathBuf, String>, Fault> {
    let source = files.file("open_loop.c", OPEN_LOOP)?;
    let program = files.directory.join("open_loop");
    let mut command = Command::new("cc");
    command.arg("-O2").arg("-o").arg(&program).arg(source).arg("-lm").stdin(Stdio::null());
    Ok(match command.output() {
        Ok(output) if output.status.success() => Ok(program),
        Ok(output) => {
            Err(format!("cc could not compile it: {}", String::from_utf8_lossy(&output.stderr).trim()))
        }
        Err(error) => Err(format!("cannot start cc: {error}. To install it: apt-get install gcc libc6-dev")),
    })
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Returns the rate and the percentiles on the wire in a window.
fn on_the_wire(seen: &WireCounts, window: u64) -> (f64, [Option<f64>; 3]) {
    #[expect(clippy::cast_precision_loss, reason = "answers of one run, below 2^53")]
    let rate = seen.answered as f64 / Nanoseconds(window).as_secs_f64().max(1e-9);
    (rate, percentiles_of(&seen.spans).map(|span| span.map(|nanoseconds| nanoseconds / 1e3)))
}

fn micros(span: Nanoseconds) -> f64 {
    span.as_secs_f64() * 1e6
}

fn of_generator(run: load::Run) -> Sample {
    let nowhere = SimulatedFrom { scenario: String::new(), seed: 0, parameters: BTreeMap::new() };
    let evidence = run.into_evidence("", Origin::Simulated(nowhere));
    let quantiles = |of: &Distribution| [of.p50, of.p90, of.p99, of.p999].map(micros);
    let late = &evidence.generator_lateness;
    Sample {
        rate: evidence.throughput,
        from_send: evidence.latency_from_send.as_ref().map(quantiles).unwrap_or_default(),
        from_due: quantiles(&evidence.latency),
        late: [late.p50, late.p99].map(micros),
        ..Sample::default()
    }
}

/// The independent client's output: counts, and spans in nanoseconds.
#[derive(Debug, Deserialize)]
struct Printed {
    answers_in_window: u64,
    late: [u64; 4],
    from_send: [u64; 4],
    from_due: [u64; 4],
}

impl Printed {
    fn sample(&self, window: Nanoseconds) -> Sample {
        let micros = |spans: [u64; 4]| spans.map(|span| micros(Nanoseconds(span)));
        #[expect(clippy::cast_precision_loss, reason = "answers of one run, below 2^53")]
        let rate = self.answers_in_window as f64 / window.as_secs_f64();
        let [late, _, late_p99, _] = micros(self.late);
        Sample {
            rate,
            from_send: micros(self.from_send),
            from_due: micros(self.from_due),
            late: [late, late_p99],
            ..Sample::default()
        }
    }
}

/// The values read at an edge of a window.
#[derive(Debug)]
struct Reading {
    at: Nanoseconds,
    counters: Counters,
    server: Option<Nanoseconds>,
    client: Option<Nanoseconds>,
}

/// Reads the CPU clocks at both edges of a window, and starts and stops the measurement on the wire.
struct Edges<'a> {
    netns: &'a Netns,
    layout: &'a Layout,
    /// The pids of server and client.
    pids: [Pid; 2],
    state: Mutex<State<'a>>,
}

struct State<'a> {
    counters: &'a mut CounterSource,
    wire: Option<&'a mut WireMeter>,
    readings: Vec<Reading>,
    wrong: Option<KernelError>,
}

impl<'a> Edges<'a> {
    fn new(
        netns: &'a Netns,
        layout: &'a Layout,
        pids: [Pid; 2],
        counters: &'a mut CounterSource,
        wire: Option<&'a mut WireMeter>,
    ) -> Self {
        let state = State { counters, wire, readings: Vec::with_capacity(2), wrong: None };
        Self { netns, layout, pids, state: Mutex::new(state) }
    }

    fn readings(self) -> Result<[Reading; 2], BenchError> {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(wrong) = state.wrong {
            return Err(wrong.into());
        }
        let unseen = |_| BenchError::from(Fault::failed("the start or end of the window was not observed"));
        <[Reading; 2]>::try_from(state.readings).map_err(unseen)
    }
}

impl Environment for Edges<'_> {
    fn on_thread_start(&self, thread: u32) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.netns.enter()?;
        if let Some(cpus) = self.layout.client_cpus(thread) {
            linux::process::pin_this_thread(&cpus)?;
        }
        Ok(())
    }

    fn at_edge(&self, edge: Edge) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let at = monotonic();
        let gate = match (&mut state.wire, edge) {
            (None, _) => Ok(()),
            (Some(wire), Edge::Opens) => wire.opens_at(at),
            (Some(wire), Edge::Closes) => wire.closes(),
        };
        let [server, client] = self.pids.map(|pid| linux::work::run_time(&[pid]));
        let read = gate.and_then(|()| state.counters.snapshot());
        match read {
            Ok(counters) => state.readings.push(Reading { at, counters, server, client }),
            Err(error) => {
                state.wrong.get_or_insert(error);
            }
        }
    }
}

/// A program that generates load in closed loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    /// `GET` of redis.
    RedisBenchmark,
    /// wrk, which requests `GET /` from nginx.
    Wrk,
}

impl Tool {
    /// All programs.
    pub(crate) const ALL: [Self; 2] = [Self::RedisBenchmark, Self::Wrk];

    pub(crate) const CONNECTIONS: u32 = 16;

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::RedisBenchmark => "redis-benchmark",
            Self::Wrk => "wrk",
        }
    }

    const fn programs(self) -> [&'static str; 2] {
        match self {
            Self::RedisBenchmark => ["redis-server", "redis-benchmark"],
            Self::Wrk => ["nginx", "wrk"],
        }
    }

    const fn package(self) -> &'static str {
        match self {
            Self::RedisBenchmark => "redis-server redis-tools",
            Self::Wrk => "nginx-light wrk",
        }
    }

    const fn port(self) -> u16 {
        match self {
            Self::RedisBenchmark => 7011,
            Self::Wrk => 7012,
        }
    }

    fn server(self, files: &OwnFiles) -> Result<Command, Fault> {
        let (address, port) = (SERVER_ADDRESS, self.port());
        match self {
            Self::RedisBenchmark => {
                let mut command = Command::new("redis-server");
                command.args(["--bind", &address.to_string(), "--port", &port.to_string(), "--save", ""]);
                command.args(["--appendonly", "no", "--protected-mode", "no"]);
                command.current_dir(&files.directory);
                Ok(command)
            }
            Self::Wrk => {
                let directory = files.directory.display();
                let text = format!(
                    "daemon off; master_process off; pid {directory}/nginx.pid; error_log stderr;\n\
                     events {{}}\nhttp {{ access_log off; keepalive_requests 100000000;\n\
                     client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;\n\
                     fastcgi_temp_path {directory}/fastcgi; uwsgi_temp_path {directory}/uwsgi; scgi_temp_path {directory}/scgi;\n\
                     server {{ listen {address}:{port}; location / {{ return 200 'ok'; }} }} }}\n"
                );
                let mut command = Command::new("nginx");
                command.arg("-c").arg(files.file("nginx.conf", &text)?);
                Ok(command)
            }
        }
    }

    fn client(self, window: Nanoseconds) -> Command {
        let mut command = Command::new(self.name());
        let (connections, port) = (Self::CONNECTIONS.to_string(), self.port().to_string());
        match self {
            Self::RedisBenchmark => {
                // The program accepts a number of requests, not a duration.
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "seconds of a run"
                )]
                let requests = (window.as_secs_f64() * 50_000.0) as u64;
                command.args(["-h", &SERVER_ADDRESS.to_string(), "-p", &port, "-c", &connections]);
                command.args(["-n", &requests.to_string(), "-t", "get", "--csv"]);
            }
            Self::Wrk => {
                let seconds = window.0.div_ceil(1_000_000_000).to_string();
                command.args(["-t", "1", "-c", &connections, "-d", &seconds]);
                command.arg(format!("http://{}/", address(self.port())));
            }
        }
        command.stdin(Stdio::null());
        command
    }

    /// Extracts the requests per second from the program's output.
    fn rate(self, text: &str) -> Option<f64> {
        match self {
            Self::RedisBenchmark => {
                let line = text.lines().find(|line| line.starts_with("\"GET\""))?;
                line.split(',').nth(1)?.trim_matches('"').parse().ok()
            }
            Self::Wrk => {
                let line = text.lines().find_map(|line| line.strip_prefix("Requests/sec:"))?;
                line.trim().parse().ok()
            }
        }
    }

    fn asks(self) -> Asks {
        match self {
            Self::RedisBenchmark => Asks::Redis { keys: 1, set_share: 0.0, value_bytes: 1 },
            Self::Wrk => Asks::Http { path: "/".to_owned() },
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_rate_of_other_programs_is_read_from_what_they_print() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\"GET\",\"88652.48\",\"0.1\"\n";
        assert_eq!(Tool::RedisBenchmark.rate(csv), Some(88652.48));
        let wrk =
            "Running 1s test @ http://192.0.2.1:7012/\nRequests/sec:  61234.56\nTransfer/sec:      9.1MB\n";
        assert_eq!(Tool::Wrk.rate(wrk), Some(61234.56));
        for tool in Tool::ALL {
            assert_eq!(tool.rate("unable to connect"), None);
        }
    }

    #[test]
    fn the_independent_clients_line_is_read() {
        let line = r#"{"due":10,"answered":10,"answers_in_window":20,"cpu":5,"late":[1000,2000,3000,4000],
            "from_send":[30000,40000,50000,60000],"from_due":[31000,42000,53000,64000]}"#;
        let printed: Printed = serde_json::from_str(line).expect("a result");
        let sample = printed.sample(Nanoseconds::from_millis(500));
        assert!((sample.rate - 40.0).abs() < 1e-9, "{}", sample.rate);
        assert_eq!(sample.late.map(f64::round), [1.0, 3.0]);
        assert_eq!(sample.from_due.map(f64::round), [31.0, 42.0, 53.0, 64.0]);
    }
}
