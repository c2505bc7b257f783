//! The output of `show`: the devices with their queues, then the processes with their sockets.

use std::collections::{BTreeMap, BTreeSet};

use model::host::{
    Channels, Coalesce, Confidence, Device, Irq, Napi, NapiEdge, Pair, Process, Rings, RxQueueState,
};
use model::{CpuSet, Fd, Host, IrqNumber, KthreadState, NapiId, Slice, UtilClamp};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::Value;
use session::page::{Cell, Page, RecordSchema, Report, Style, Table, record, to_json};

use super::asked_for::asked_for;
use super::listeners;
use crate::show::{NapiEdges, SocketGroup, described, is_mixed, mark, socket_groups};

/// The output of `show`.
#[derive(Debug, JsonSchema, Serialize)]
#[serde(transparent)]
pub(crate) struct HostReport<'a>(pub &'a Host);

impl Report for HostReport<'_> {
    const KIND: &'static str = "host";

    fn page(&self, page: &mut Page) {
        let host = self.0;
        page.line(summary(host));
        let mut marks = Marks::default();
        if !host.devices.is_empty() {
            page.gap();
            page.table(&devices(host));
        }
        super::stacks::stacks(host, page);
        let tables = [
            queues(host, &mut marks),
            holders(host, &mut marks),
            irqs(host),
            processes(host, &mut marks),
            asked_for(host),
            listeners::listeners(host),
        ];
        for table in tables {
            if !table.is_empty() {
                page.gap();
                page.table(&table);
            }
        }
        legend(page, marks);
        unread(page, host);
    }

    fn records_as(generator: &mut SchemaGenerator) -> Vec<RecordSchema> {
        vec![
            record::<model::host::Device>("device", generator),
            record::<model::host::Irq>("irq", generator),
            record::<model::host::Process>("process", generator),
            record::<model::host::SharedListeners>("listeners", generator),
            record::<model::host::AppRequest>("app-request", generator),
            record::<model::host::Unread>("unread", generator),
        ]
    }

    fn lines(&self) -> Vec<(&'static str, Value)> {
        let host = self.0;
        let mut lines: Vec<_> = host.devices.iter().map(|device| ("device", to_json(device))).collect();
        lines.extend(host.irqs.iter().map(|irq| ("irq", to_json(irq))));
        lines.extend(host.processes.iter().map(|process| ("process", to_json(process))));
        lines.extend(host.listeners.iter().map(|group| ("listeners", to_json(group))));
        lines.extend(host.app_requests.iter().map(|request| ("app-request", to_json(request))));
        lines.extend(host.unread.iter().map(|unread| ("unread", to_json(unread))));
        lines
    }
}

/// Which marks the output contains, because the legend explains only these.
#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    inferred: bool,
    mixed: bool,
    unseen: bool,
}

fn summary(host: &Host) -> String {
    let cpus = match host.topology.online.len() {
        1 => "1 CPU".to_owned(),
        n => format!("{n} CPUs"),
    };
    let isolated = match &host.topology.isolated {
        none if none.is_empty() => String::new(),
        isolated => format!(" (isolated {isolated})"),
    };
    format!("Linux {}, network namespace {}, {cpus}{isolated}", host.release, host.netns)
}

fn devices(host: &Host) -> Table {
    let mut table = Table::new(&[
        "DEVICE",
        "KIND",
        "LINK",
        "MTU",
        "NODE",
        "PEER",
        "CHANNELS",
        "RINGS",
        "COALESCE",
        "OFFLOADS",
        "DEVICE DEFAULTS",
    ]);
    for device in &host.devices {
        let link = if device.up { Cell::new("up") } else { Cell::new("down").style(Style::Faint) };
        table.row([
            Cell::new(device.id.name.as_str()),
            Cell::new(device.kind.as_str()),
            link,
            Cell::number(device.mtu),
            Cell::optional(device.node),
            Cell::optional(device.peer.as_ref()),
            Cell::optional(device.channels.map(channels)),
            Cell::optional(device.rings.map(rings)),
            Cell::optional(device.coalesce.map(coalesce)),
            Cell::new(offloads(device)),
            Cell::new(defaults(device)),
        ]);
    }
    table
}

/// Formats the current value and the maximum, such as `4/8`.
fn pair(pair: Pair) -> String {
    if pair.max == 0 { pair.current.to_string() } else { format!("{}/{}", pair.current, pair.max) }
}

fn pairs(pairs: &[(&str, Pair)]) -> String {
    let known = pairs.iter().filter(|(_, pair)| *pair != Pair { current: 0, max: 0 });
    known.map(|(name, value)| format!("{name} {}", pair(*value))).collect::<Vec<_>>().join(" ")
}

fn channels(channels: Channels) -> String {
    pairs(&[("rx", channels.rx), ("tx", channels.tx), ("combined", channels.combined)])
}

fn rings(rings: Rings) -> String {
    pairs(&[("rx", rings.rx), ("tx", rings.tx)])
}

fn coalesce(coalesce: Coalesce) -> String {
    let side = |name: &str, adaptive: Option<bool>, usecs: Option<u32>, frames: Option<u32>| {
        let mut words = Vec::new();
        if adaptive == Some(true) {
            words.push("adaptive".to_owned());
        }
        words.extend(usecs.map(|usecs| format!("{usecs}us")));
        words.extend(frames.filter(|frames| *frames > 0).map(|frames| format!("{frames} frames")));
        (!words.is_empty()).then(|| format!("{name} {}", words.join(" ")))
    };
    let rx = side("rx", coalesce.adaptive_rx, coalesce.rx_usecs, coalesce.rx_max_frames);
    let tx = side("tx", coalesce.adaptive_tx, coalesce.tx_usecs, coalesce.tx_max_frames);
    rx.into_iter().chain(tx).collect::<Vec<_>>().join(", ")
}

fn offloads(device: &Device) -> String {
    let features = &device.features;
    let known = [
        ("gro", features.gro),
        ("tso", features.tso),
        ("gro-hw", features.gro_hw),
        ("ntuple", features.ntuple),
        ("tc", features.tc_offload),
        ("xdp", Some(device.xdp)),
    ];
    let on = known.iter().filter(|(_, on)| *on == Some(true)).map(|(name, _)| (*name).to_owned());
    let word = |on: bool| if on { "on" } else { "off" };
    let otherwise = device.offloads_requested.iter().map(|(offload, requested)| {
        format!("{offload} {} [requested {}]", word(!requested), word(*requested))
    });
    on.chain(otherwise).collect::<Vec<_>>().join(" ")
}

/// Describes the defaults for the device's new NAPIs, if they differ from the kernel's.
fn defaults(device: &Device) -> String {
    let defer = device.defer_hard_irqs.filter(|polls| polls.0 > 0).map(|polls| format!("defer {polls}"));
    let flush = device.gro_flush_timeout.filter(|span| !span.is_zero()).map(|span| format!("flush {span}"));
    let threaded = device.threaded.filter(|threading| *threading != model::Threading::Off);
    let threaded = threaded.map(|threading| format!("threaded {threading}"));
    defer.into_iter().chain(flush).chain(threaded).chain(steered(device)).collect::<Vec<_>>().join(" ")
}

/// Describes objects that were created on the device: qdiscs, RSS contexts, rules.
fn steered(device: &Device) -> Vec<String> {
    let qdisc = device.qdiscs.as_ref().filter(|qdiscs| !matches!(qdiscs, model::Qdiscs::Default(_)));
    let contexts = device.rss_contexts.iter().flatten().map(|context| match context.queues {
        Some(queues) => format!("rss-context {queues}"),
        None => format!("rss-context {}", context.id),
    });
    let rules = device.flow_rules.as_ref().filter(|rules| !rules.is_empty());
    let qdisc = qdisc.map(|qdiscs| format!("qdisc {qdiscs}"));
    qdisc.into_iter().chain(contexts).chain(rules.map(|rules| format!("ntuple {}", rules.len()))).collect()
}

fn queues(host: &Host, marks: &mut Marks) -> Table {
    let mut table = Table::new(&[
        "QUEUE",
        "STEERING",
        "NAPI",
        "DEFER-HARD-IRQS",
        "GRO-FLUSH",
        "IRQ-SUSPEND",
        "THREADED",
        "IRQ",
        "CPU",
    ]);
    let irqs: BTreeMap<IrqNumber, &Irq> = host.irqs.iter().rev().map(|irq| (irq.number, irq)).collect();
    for device in &host.devices {
        let name = device.id.name;
        let napis = NapiRows::of(device, &irqs);
        for queue in &device.rx_queues {
            let steering = steering("rps", &queue.rps_cpus);
            table.row(napis.row(marks, queue.id.to_string(), steering, queue.napi));
        }
        for queue in &device.tx_queues {
            let steering = steering("xps", &queue.xps_cpus);
            // Skip transmit queues that have no values to show.
            if queue.napi.is_some() || steering.is_some() {
                let title = format!("{name} tx-{}", queue.index);
                table.row(napis.row(marks, title, steering, queue.napi));
            }
        }
        let rx = device.rx_queues.iter().filter_map(|queue| queue.napi);
        let tx = device.tx_queues.iter().filter_map(|queue| queue.napi);
        let served: BTreeSet<NapiId> = rx.chain(tx).map(|edge| edge.napi).collect();
        for napi in device.napis.iter().filter(|napi| !served.contains(&napi.id)) {
            let edge = NapiEdge { napi: napi.id, confidence: Confidence::Stated };
            table.row(napis.row(marks, format!("{name} (queue not stated)"), None, Some(edge)));
        }
    }
    table
}

fn steering(word: &str, cpus: &CpuSet) -> Option<String> {
    (!cpus.is_empty()).then(|| format!("{word} {cpus}"))
}

/// The NAPIs of a device and their kernel threads, by NAPI id, and the host's interrupts by number.
struct NapiRows<'h> {
    napis: BTreeMap<NapiId, &'h Napi>,
    /// The state of each NAPI's kernel thread, if it could be read.
    kthreads: BTreeMap<NapiId, &'h KthreadState>,
    irqs: &'h BTreeMap<IrqNumber, &'h Irq>,
}

impl<'h> NapiRows<'h> {
    fn of(device: &'h Device, irqs: &'h BTreeMap<IrqNumber, &'h Irq>) -> Self {
        // If several queues have a NAPI with the same id, the first one counts.
        let kthread = |queue: &'h RxQueueState| Some((queue.napi?.napi, queue.kthread.as_ref()));
        let kthreads: BTreeMap<_, _> = device.rx_queues.iter().rev().filter_map(kthread).collect();
        Self {
            napis: device.napis.iter().rev().map(|napi| (napi.id, napi)).collect(),
            kthreads: kthreads.into_iter().filter_map(|(napi, thread)| Some((napi, thread?))).collect(),
            irqs,
        }
    }

    /// Returns the row of a queue, or of a NAPI without a queue.
    fn row(
        &self,
        marks: &mut Marks,
        title: String,
        steering: Option<String>,
        edge: Option<NapiEdge>,
    ) -> [Cell; 9] {
        let napi = edge.and_then(|edge| self.napis.get(&edge.napi).copied());
        let irq = napi.and_then(|napi| napi.irq);
        for confidence in
            [edge.map(|edge| edge.confidence), irq.map(|edge| edge.confidence)].into_iter().flatten()
        {
            marks.inferred |= !mark(confidence).is_empty();
        }
        let threaded =
            napi.and_then(|napi| napi.threaded).map(|threading| match napi.and_then(|napi| napi.kthread) {
                Some(pid) => match edge.and_then(|edge| self.kthreads.get(&edge.napi)) {
                    Some(thread) => {
                        format!("{threading} (pid {pid}, CPUs {}{})", thread.cpus, scheduled(thread))
                    }
                    None => format!("{threading} (pid {pid})"),
                },
                None => threading.to_string(),
            });
        let cpu = irq.and_then(|edge| self.irqs.get(&edge.irq)).map(|irq| {
            match irq.effective_affinity.is_empty() {
                true => irq.affinity.to_string(),
                false => irq.effective_affinity.to_string(),
            }
        });
        [
            Cell::new(title),
            Cell::new(steering.unwrap_or_default()),
            Cell::optional(edge.map(|edge| format!("{}{}", edge.napi, mark(edge.confidence)))),
            Cell::optional(napi.and_then(|napi| napi.defer_hard_irqs)),
            Cell::optional(napi.and_then(|napi| napi.gro_flush_timeout)),
            Cell::optional(napi.and_then(|napi| napi.irq_suspend_timeout)),
            Cell::optional(threaded),
            Cell::optional(irq.map(|edge| format!("{}{}", edge.irq, mark(edge.confidence)))),
            Cell::optional(cpu),
        ]
    }
}

/// Describes the scheduling class, with its clamp and slice unless they have default values.
fn scheduled(thread: &KthreadState) -> String {
    let class = thread.scheduling.map(|class| format!(", {class}"));
    let clamp =
        thread.util_clamp.filter(|clamp| *clamp != UtilClamp::NONE).map(|clamp| format!(", util {clamp}"));
    let slice = match thread.slice {
        Some(Slice::Own(span)) => Some(format!(", slice {span}")),
        Some(Slice::Default) | None => None,
    };
    class.into_iter().chain(clamp).chain(slice).collect()
}

/// Lists the queues that a program or another device holds, for example for zero-copy receive.
fn holders(host: &Host, marks: &mut Marks) -> Table {
    let mut table = Table::new(&["HELD QUEUE", "HOW", "BY"]);
    for device in &host.devices {
        for holder in &device.holders {
            let names = holder.processes.iter().map(|process| {
                marks.inferred |= !mark(process.confidence).is_empty();
                format!("{}{}", process.id, mark(process.confidence))
            });
            let names: Vec<String> = names.collect();
            table.row([
                Cell::new(format!("{} {}", device.id, holder.queues())),
                Cell::new(holder.kind.to_string()),
                Cell::optional((!names.is_empty()).then(|| names.join(", "))),
            ]);
        }
    }
    table
}

fn irqs(host: &Host) -> Table {
    let mut table = Table::new(&["IRQ", "NAME", "AFFINITY", "EFFECTIVE", "NODE", "COUNT", "MOSTLY ON"]);
    for irq in &host.irqs {
        table.row([
            Cell::number(irq.number),
            Cell::new(irq.name.as_str()),
            Cell::new(irq.affinity.to_string()),
            Cell::new(irq.effective_affinity.to_string()),
            Cell::optional(irq.node),
            Cell::number(irq.count()),
            Cell::optional(mostly_on(irq)),
        ]);
    }
    table
}

/// Returns the CPU that handled most of an interrupt's events, and that CPU's share of them.
fn mostly_on(irq: &Irq) -> Option<String> {
    let (cpu, count) = irq.counts.iter().max_by_key(|(_, count)| *count).filter(|(_, count)| *count > 0)?;
    let percent = count.saturating_mul(100) / irq.count().max(1);
    Some(format!("cpu {cpu} ({percent}%)"))
}

fn processes(host: &Host, marks: &mut Marks) -> Table {
    let mut table = Table::new(&[
        "PROCESS",
        "THREAD",
        "CPUS",
        "POLLS WITH",
        "USECS/BUDGET/PREFER",
        "SOCKETS",
        "NAPI",
        "QUEUE",
        "IRQ",
    ]);
    let edges = NapiEdges::of(host);
    for process in &host.processes {
        let mut first = true;
        for entry in entries(process) {
            for row in entry.rows(&edges, marks) {
                let title = if std::mem::take(&mut first) { process.id.to_string() } else { String::new() };
                table.row(std::iter::once(Cell::new(title)).chain(row));
            }
        }
        if first {
            table.row([Cell::new(process.id.to_string())]);
        }
    }
    table
}

/// One way in which a process receives packets: through an epoll, through an io_uring, or through neither.
struct Entry {
    /// The names and CPUs of the threads that were observed waiting.
    threads: Vec<(String, String)>,
    epoll: Option<Fd>,
    how: String,
    params: Option<String>,
    groups: Vec<SocketGroup>,
}

fn entries(process: &Process) -> Vec<Entry> {
    let mut groups: BTreeMap<Option<Fd>, Vec<SocketGroup>> = BTreeMap::new();
    for group in socket_groups(process) {
        groups.entry(group.epoll).or_default().push(group);
    }
    let mut waiting: BTreeMap<Fd, Vec<(String, String)>> = BTreeMap::new();
    for thread in &process.threads {
        if let Some(epoll) = thread.waits_on {
            let name = format!("{} {}", thread.id.tid, thread.id.comm);
            waiting.entry(epoll).or_default().push((name, thread.affinity.to_string()));
        }
    }
    let mut entries = Vec::new();
    for epoll in &process.epolls {
        entries.push(Entry {
            threads: waiting.remove(&epoll.id.fd).unwrap_or_default(),
            epoll: Some(epoll.id.fd),
            how: format!("epoll {}", epoll.id.fd),
            params: epoll.params.map(|params| params.to_string()),
            groups: groups.remove(&Some(epoll.id.fd)).unwrap_or_default(),
        });
    }
    for ring in &process.rings {
        entries.push(Entry {
            threads: Vec::new(),
            epoll: None,
            how: format!("io_uring {}", ring.id.fd),
            params: ring.napi.map(|napi| napi.to_string()),
            groups: Vec::new(),
        });
    }
    if let Some(unwatched) = groups.remove(&None) {
        entries.push(Entry {
            threads: Vec::new(),
            epoll: None,
            how: "no epoll".to_owned(),
            params: of_receives(process),
            groups: unwatched,
        });
    }
    entries
}

/// Describes the busy polling of receive calls on sockets that no epoll watches; `None` if there is none.
fn of_receives(process: &Process) -> Option<String> {
    let polling =
        process.sockets.iter().filter_map(|socket| socket.polling).filter(|polling| polling.polls());
    let each: BTreeSet<String> = polling.map(|polling| polling.to_string()).collect();
    (!each.is_empty()).then(|| each.into_iter().collect::<Vec<_>>().join(" "))
}

impl Entry {
    fn rows(&self, edges: &NapiEdges, marks: &mut Marks) -> Vec<Vec<Cell>> {
        let mixed = self.epoll.is_some() && is_mixed(&self.groups);
        marks.mixed |= mixed;
        marks.unseen |= self.threads.is_empty();
        let lines = self.threads.len().max(self.groups.len()).max(1);
        (0..lines)
            .map(|line| {
                let unseen = || if line == 0 { ("-".to_owned(), "-".to_owned()) } else { Default::default() };
                let (thread, cpus) = self.threads.get(line).cloned().unwrap_or_else(unseen);
                let group = self.groups.get(line);
                let how = if line == 0 { self.how.clone() } else { String::new() };
                let params = if line == 0 { self.params.clone().unwrap_or_default() } else { String::new() };
                let mut cells = vec![Cell::new(thread), Cell::new(cpus), Cell::new(how), Cell::new(params)];
                cells.extend(group_cells(edges, group, mixed, marks));
                cells
            })
            .collect()
    }
}

fn group_cells(edges: &NapiEdges, group: Option<&SocketGroup>, mixed: bool, marks: &mut Marks) -> [Cell; 4] {
    let Some(group) = group else { return Default::default() };
    let Some(napi) = group.napi else {
        return [Cell::new(described(group)), Cell::new("-"), Cell::new("-"), Cell::new("-")];
    };
    let queues = edges.queues_of(napi);
    marks.inferred |= queues.iter().any(|(_, confidence)| !mark(*confidence).is_empty());
    let queues: Vec<_> =
        queues.iter().map(|(queue, confidence)| format!("{queue}{}", mark(*confidence))).collect();
    let napi_cell = if mixed {
        Cell::new(format!("{napi} !")).style(Style::Warning)
    } else {
        Cell::new(napi.to_string())
    };
    [
        Cell::new(described(group)),
        napi_cell,
        Cell::new(if queues.is_empty() { "another namespace's".to_owned() } else { queues.join(", ") }),
        Cell::optional(edges.irq_of(napi).map(|edge| format!("{}{}", edge.irq, mark(edge.confidence)))),
    ]
}

fn legend(page: &mut Page, marks: Marks) {
    if marks.inferred || marks.mixed || marks.unseen {
        page.gap();
    }
    if marks.inferred {
        page.styled(
            Style::Faint,
            "?  inferred from order or names: neither the kernel nor the driver states it",
        );
    }
    if marks.unseen {
        page.styled(Style::Faint, "-  under THREAD: no thread was waiting in this epoll when it was read");
    }
    if marks.mixed {
        page.styled(
            Style::Faint,
            "!  the sockets of this epoll receive from several NAPIs: it busy-polls one at a time",
        );
    }
}

/// The maximum number of unreadable parts that are listed.
const UNREAD_MAX: usize = 10;

fn unread(page: &mut Page, host: &Host) {
    if host.unread.is_empty() {
        return;
    }
    page.gap();
    page.styled(
        Style::Warning,
        match host.unread.len() {
            1 => "One part of the host could not be read:".to_owned(),
            n => format!("{n} parts of the host could not be read:"),
        },
    );
    for unread in host.unread.iter().take(UNREAD_MAX) {
        page.line(format!("  {}: {}", unread.what, unread.why));
    }
    if host.unread.len() > UNREAD_MAX {
        page.line(format!("  … and {} more (-o json lists them)", host.unread.len() - UNREAD_MAX));
    }
}
