//! Draws the packet path: waiting threads on the left, arriving packets on the right. Each NAPI has a colour,
//! so that the eye can follow a queue's packets; inferred edges are dashed. The SVG file is self-contained:
//! it has no script and no font, and loads nothing.

use std::collections::BTreeMap;
use std::fmt::Write;

use model::host::{Confidence, Irq, Napi, Process};
use model::{Cpu, EpollId, Fd, Host, IrqNumber, NapiId, RingId, RxQueue};

use crate::show::{SocketGroup, described, is_mixed, socket_groups};

/// The columns from left to right. Each column has a heading, and a text that explains the second line of its
/// boxes.
const COLUMNS: [(&str, &str); 7] = [
    ("process", ""),
    ("epoll", "usecs/budget/prefer"),
    ("sockets", ""),
    ("NAPI", "defer-hard-irqs · gro-flush · irq-suspend"),
    ("rx queue", ""),
    ("IRQ", ""),
    ("CPU", ""),
];

/// The maximum number of boxes in a column. A line below the column says how many more there are.
const BOXES_MAX: usize = 400;

const BOX_WIDTH: usize = 184;
const BOX_HEIGHT: usize = 40;
const BOX_GAP: usize = 12;
const ROW: usize = BOX_HEIGHT + BOX_GAP;
const COLUMN_STEP: usize = 240;
const MARGIN: usize = 28;
const HEADER: usize = 100;
const FOOTER: usize = 56;

/// Colours that people with any colour vision can distinguish (Okabe and Ito), assigned to NAPIs in rotation.
const PALETTE: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#5f4b8b"];
const GREY: &str = "#9aa0a6";

/// Draws a host.
pub(crate) fn svg(host: &Host) -> String {
    let mut drawing = Drawing::default();
    drawing.queues(host);
    for process in &host.processes {
        drawing.process(process);
    }
    drawing.text(host)
}

/// The object that a box represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Process(model::ProcessId),
    Epoll(EpollId),
    Ring(RingId),
    /// The box for a process's sockets that no epoll watches.
    NoEpoll(model::ProcessId),
    /// The n-th group of sockets.
    Sockets(usize),
    Napi(NapiId),
    Queue(RxQueue),
    Irq(IrqNumber),
    Cpu(Cpu),
}

impl Key {
    const fn column(self) -> usize {
        match self {
            Self::Process(_) => 0,
            Self::Epoll(_) | Self::Ring(_) | Self::NoEpoll(_) => 1,
            Self::Sockets(_) => 2,
            Self::Napi(_) => 3,
            Self::Queue(_) => 4,
            Self::Irq(_) => 5,
            Self::Cpu(_) => 6,
        }
    }
}

struct Node {
    title: String,
    detail: String,
    warning: bool,
}

struct Edge {
    from: Key,
    to: Key,
    napi: Option<NapiId>,
    inferred: bool,
}

#[derive(Default)]
struct Drawing {
    columns: [Vec<Key>; COLUMNS.len()],
    nodes: BTreeMap<Key, Node>,
    edges: Vec<Edge>,
    /// A number for each NAPI, which selects its colour.
    napis: BTreeMap<NapiId, usize>,
    /// The number of socket groups that have been drawn.
    groups: usize,
}

impl Drawing {
    fn node(&mut self, key: Key, title: impl Into<String>, detail: impl Into<String>) {
        if !self.nodes.contains_key(&key) {
            self.columns[key.column()].push(key);
            self.nodes.insert(key, Node { title: title.into(), detail: detail.into(), warning: false });
        }
    }

    fn edge(&mut self, from: Key, to: Key, napi: Option<NapiId>, confidence: Confidence) {
        self.edges.push(Edge { from, to, napi, inferred: confidence != Confidence::Stated });
    }

    /// Draws the right half: NAPI, queue, IRQ, CPU.
    fn queues(&mut self, host: &Host) {
        let irqs: BTreeMap<IrqNumber, &Irq> = host.irqs.iter().rev().map(|irq| (irq.number, irq)).collect();
        for device in &host.devices {
            let napis: BTreeMap<NapiId, &Napi> =
                device.napis.iter().rev().map(|napi| (napi.id, napi)).collect();
            for queue in &device.rx_queues {
                let rps =
                    if queue.rps_cpus.is_empty() { String::new() } else { format!("rps {}", queue.rps_cpus) };
                self.node(Key::Queue(queue.id), queue.id.to_string(), rps);
                let Some(edge) = queue.napi else { continue };
                let napi = napis.get(&edge.napi).copied();
                self.napi(edge.napi, napi);
                self.edge(Key::Napi(edge.napi), Key::Queue(queue.id), Some(edge.napi), edge.confidence);
                if let Some(irq) = napi.and_then(|napi| napi.irq) {
                    self.irq(irq.irq, irqs.get(&irq.irq).copied(), edge.napi);
                    self.edge(Key::Queue(queue.id), Key::Irq(irq.irq), Some(edge.napi), irq.confidence);
                }
            }
            for napi in &device.napis {
                self.napi(napi.id, Some(napi));
            }
        }
    }

    fn napi(&mut self, id: NapiId, napi: Option<&Napi>) {
        let next = self.napis.len();
        self.napis.entry(id).or_insert(next);
        let detail = napi.map(settings).unwrap_or_default();
        self.node(Key::Napi(id), format!("NAPI {id}"), detail);
    }

    fn irq(&mut self, number: IrqNumber, irq: Option<&Irq>, napi: NapiId) {
        let Some(irq) = irq else {
            self.node(Key::Irq(number), format!("IRQ {number}"), "");
            return;
        };
        let known = self.nodes.contains_key(&Key::Irq(number));
        self.node(Key::Irq(number), format!("IRQ {number}"), irq.name.clone());
        let cpus = if irq.effective_affinity.is_empty() { &irq.affinity } else { &irq.effective_affinity };
        for cpu in cpus.iter().filter(|_| !known) {
            self.node(Key::Cpu(cpu), format!("CPU {cpu}"), "");
            self.edge(Key::Irq(number), Key::Cpu(cpu), Some(napi), Confidence::Stated);
        }
    }

    /// Draws the left half: process, epoll, sockets.
    fn process(&mut self, process: &Process) {
        let key = Key::Process(process.id);
        let threads = match process.threads.len() {
            1 => "1 thread".to_owned(),
            n => format!("{n} threads"),
        };
        self.node(key, process.id.to_string(), threads);
        let mut groups: BTreeMap<Option<Fd>, Vec<SocketGroup>> = BTreeMap::new();
        for group in socket_groups(process) {
            groups.entry(group.epoll).or_default().push(group);
        }
        for epoll in &process.epolls {
            let params = epoll.params.map(|params| params.to_string()).unwrap_or_default();
            self.node(Key::Epoll(epoll.id), format!("epoll {}", epoll.id.fd), params);
            self.edge(key, Key::Epoll(epoll.id), None, Confidence::Stated);
            if groups.get(&Some(epoll.id.fd)).is_some_and(is_mixed)
                && let Some(node) = self.nodes.get_mut(&Key::Epoll(epoll.id))
            {
                node.warning = true;
            }
        }
        for ring in &process.rings {
            let napi = ring.napi.map(|napi| napi.to_string()).unwrap_or_default();
            self.node(Key::Ring(ring.id), format!("io_uring {}", ring.id.fd), napi);
            self.edge(key, Key::Ring(ring.id), None, Confidence::Stated);
        }
        let unwatched = groups.remove(&None);
        for group in groups.into_values().chain(unwatched).flatten() {
            let sockets = Key::Sockets(self.groups);
            self.groups += 1;
            let detail = if group.napi.is_none() { "on no NAPI" } else { "" };
            self.node(sockets, described(&group), detail);
            let watcher = match group.epoll {
                Some(fd) => Key::Epoll(EpollId { process: process.id, fd }),
                None => self.no_epoll(process.id),
            };
            self.edge(watcher, sockets, group.napi, Confidence::Stated);
            if let Some(napi) = group.napi {
                self.napi(napi, None);
                self.edge(sockets, Key::Napi(napi), Some(napi), Confidence::Stated);
            }
        }
    }

    fn no_epoll(&mut self, process: model::ProcessId) -> Key {
        let key = Key::NoEpoll(process);
        if !self.nodes.contains_key(&key) {
            self.node(key, "no epoll", "");
            self.edge(Key::Process(process), key, None, Confidence::Stated);
        }
        key
    }

    fn text(&self, host: &Host) -> String {
        let places = self.places();
        let lowest = places.values().map(|(_, y)| y + BOX_HEIGHT).max().unwrap_or(HEADER);
        let (width, height) = (2 * MARGIN + (COLUMNS.len() - 1) * COLUMN_STEP + BOX_WIDTH, lowest + FOOTER);
        let mut out = String::new();
        let _ = writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"system-ui, 'DejaVu Sans', sans-serif\" font-size=\"13\">"
        );
        let release = escaped(&host.release);
        let _ = writeln!(out, "<title>The packet path of Linux {release}</title>");
        let _ = writeln!(out, "<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>");
        let _ = writeln!(
            out,
            "<text x=\"{MARGIN}\" y=\"34\" font-size=\"18\" font-weight=\"600\" fill=\"#202124\">\
             Packet path, Linux {release}, network namespace {}</text>",
            host.netns
        );
        for (index, (name, detail)) in COLUMNS.iter().enumerate() {
            let x = MARGIN + index * COLUMN_STEP;
            let _ = writeln!(out, "<text x=\"{x}\" y=\"{}\" fill=\"#202124\">{name}</text>", HEADER - 30);
            let _ = writeln!(
                out,
                "<text x=\"{x}\" y=\"{}\" font-size=\"11\" fill=\"#5f6368\">{detail}</text>",
                HEADER - 15
            );
        }
        for edge in &self.edges {
            self.draw_edge(&mut out, &places, edge);
        }
        for (key, &(x, y)) in &places {
            self.draw_node(&mut out, *key, x, y);
        }
        for (index, column) in self.columns.iter().enumerate().filter(|(_, column)| column.len() > BOXES_MAX)
        {
            let (x, y) = (MARGIN + index * COLUMN_STEP, lowest + 16);
            let more = column.len() - BOXES_MAX;
            let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\" fill=\"#5f6368\">… and {more} more</text>");
        }
        let _ = writeln!(
            out,
            "<text x=\"{MARGIN}\" y=\"{}\" fill=\"#5f6368\" font-size=\"12\">One colour per NAPI. Dashed: inferred, not stated \
             by the kernel. Orange frame: an epoll whose sockets receive from several NAPIs.</text>",
            height - 20
        );
        out.push_str("</svg>\n");
        out
    }

    /// Computes the upper left corner of each box. Sockets and queues form rows; every other box is placed at
    /// the mean height of the boxes to which it is connected, or below its neighbour if there is no room.
    fn places(&self) -> BTreeMap<Key, (usize, usize)> {
        const SOCKETS: usize = 2;
        const QUEUES: usize = 4;
        let mut places = BTreeMap::new();
        let mut joined: BTreeMap<Key, Vec<Key>> = BTreeMap::new();
        for edge in &self.edges {
            joined.entry(edge.from).or_default().push(edge.to);
            joined.entry(edge.to).or_default().push(edge.from);
        }
        for column in [SOCKETS, QUEUES, 1, 0, 3, 5, 6] {
            let mut preferred: Vec<(usize, Key)> = self.columns[column]
                .iter()
                .take(BOXES_MAX)
                .enumerate()
                .map(|(row, key)| {
                    let joined = joined.get(key).map_or(&[][..], Vec::as_slice);
                    (preferred_y(joined, column, &places).unwrap_or(HEADER + row * ROW), *key)
                })
                .collect();
            if column != SOCKETS && column != QUEUES {
                preferred.sort_by_key(|(y, _)| *y);
            }
            let mut free = HEADER;
            for (y, key) in preferred {
                let y = y.max(free);
                places.insert(key, (MARGIN + column * COLUMN_STEP, y));
                free = y + ROW;
            }
        }
        places
    }

    fn colour(&self, napi: Option<NapiId>) -> &'static str {
        let number = napi.and_then(|napi| self.napis.get(&napi));
        number.map_or(GREY, |number| PALETTE[number % PALETTE.len()])
    }

    fn draw_edge(&self, out: &mut String, places: &BTreeMap<Key, (usize, usize)>, edge: &Edge) {
        let (Some(&(from_x, from_y)), Some(&(x2, to_y))) = (places.get(&edge.from), places.get(&edge.to))
        else {
            return;
        };
        let (x1, y1, y2) = (from_x + BOX_WIDTH, from_y + BOX_HEIGHT / 2, to_y + BOX_HEIGHT / 2);
        let bend = (x1 + x2) / 2;
        let dash = if edge.inferred { " stroke-dasharray=\"5 4\"" } else { "" };
        let colour = self.colour(edge.napi);
        let _ = writeln!(
            out,
            "<path d=\"M{x1} {y1} C{bend} {y1} {bend} {y2} {x2} {y2}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"{dash}/>"
        );
    }

    fn draw_node(&self, out: &mut String, key: Key, x: usize, y: usize) {
        let Some(node) = self.nodes.get(&key) else { return };
        let napi = match key {
            Key::Napi(napi) => Some(napi),
            _ => None,
        };
        let frame = match (napi, node.warning) {
            (_, true) => "#e37400",
            (Some(_), false) => self.colour(napi),
            (None, false) => "#bdc1c6",
        };
        let stroke = if node.warning || napi.is_some() { 2 } else { 1 };
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{BOX_WIDTH}\" height=\"{BOX_HEIGHT}\" rx=\"6\" fill=\"#f8f9fa\" stroke=\"{frame}\" stroke-width=\"{stroke}\"/>"
        );
        let left = x + 10;
        let title_y = if node.detail.is_empty() { y + 25 } else { y + 17 };
        let _ = writeln!(
            out,
            "<text x=\"{left}\" y=\"{title_y}\" fill=\"#202124\">{}</text>",
            fitted(&node.title, 22)
        );
        if !node.detail.is_empty() {
            let _ = writeln!(
                out,
                "<text x=\"{left}\" y=\"{}\" font-size=\"11\" fill=\"#5f6368\">{}</text>",
                y + 33,
                fitted(&node.detail, 29)
            );
        }
    }
}

/// Returns the mean height of those placed boxes that are connected to a box in this column.
fn preferred_y(joined: &[Key], column: usize, places: &BTreeMap<Key, (usize, usize)>) -> Option<usize> {
    // Left of the queues, boxes align with the column on their right; from the queues on, with the column
    // on their left.
    let towards = if column < 4 { column + 1 } else { column.checked_sub(1)? };
    let placed = joined.iter().filter(|other| other.column() == towards);
    let heights: Vec<usize> = placed.filter_map(|other| places.get(other)).map(|(_, y)| *y).collect();
    heights.iter().sum::<usize>().checked_div(heights.len())
}

/// Formats defer-hard-irqs, gro-flush-timeout and irq-suspend-timeout, such as `100 · 20us · 20ms`; empty if
/// all are off.
fn settings(napi: &Napi) -> String {
    let (defer, flush, suspend) = (napi.defer_hard_irqs, napi.gro_flush_timeout, napi.irq_suspend_timeout);
    let threaded = napi.threaded.filter(|threading| *threading != model::Threading::Off).is_some();
    let mut words = Vec::new();
    if defer.is_some_and(|polls| polls.0 > 0)
        || [flush, suspend].into_iter().flatten().any(|span| !span.is_zero())
    {
        words.push(defer.map_or_else(|| "?".to_owned(), |polls| polls.to_string()));
        words.extend(
            [flush, suspend].map(|span| span.map_or_else(|| "?".to_owned(), |span| span.to_string())),
        );
    }
    if threaded {
        words.push("kthread".to_owned());
    }
    words.join(" · ")
}

/// Cuts a text to a number of characters, and escapes it for XML.
fn fitted(text: &str, chars: usize) -> String {
    if text.chars().count() <= chars {
        return escaped(text);
    }
    let cut: String = text.chars().take(chars - 1).collect();
    format!("{}…", escaped(&cut))
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if model::is_misleading(c) => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
