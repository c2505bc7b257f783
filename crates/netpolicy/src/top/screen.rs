//! Draws the screen. It needs at least 80 columns and 24 lines, and uses more if available.

use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use latency::live::text::short;
use linux::Signals;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Clear, Paragraph, Row, Table};
use ratatui::{DefaultTerminal, Frame};
use session::{Exit, Fault};

use super::keyboard::{Input, Keyboard};
use super::reader::Reader;
use super::reading::{CpuLine, ProcessLine, QueueLine, Reading};
use super::state::TopState;

/// How long to wait for a key before checking the terminal's size.
const TICK: Duration = Duration::from_millis(100);

/// The maximum number of CPUs that get separate lines.
const CPUS_MAX: usize = 4;

/// The minimum width of a name: enough for `eth0 rx-0`.
const NAME_MIN: u16 = 12;

/// The maximum number of lines for services.
const SERVICES_MAX: usize = 4;

/// The maximum number of lines for processes.
const PROCESSES_MAX: usize = 6;

/// Shows samples until the operator quits or the terminal is closed.
pub(crate) fn watch(mut reader: Reader, interval: Duration, colour: bool) -> Result<Exit, Fault> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Fault::new(Exit::Usage, "top needs a terminal".to_owned())
            .hint("netpolicy top --once prints one sample, with -o json for programs"));
    }
    let mut signals = Signals::catch()?;
    // `try_init` also installs a hook that restores the terminal after a panic.
    let mut terminal =
        ratatui::try_init().map_err(|error| Fault::failed(format!("cannot set up the terminal: {error}")))?;
    let seen = look(&mut terminal, &mut reader, interval, colour, &mut signals);
    // A closed terminal cannot be restored; ratatui's `restore` would panic while printing that error to the
    // terminal.
    let cursor = terminal.show_cursor();
    let _ = ratatui::try_restore();
    if cursor.is_err() {
        std::mem::forget(terminal);
    }
    seen.map(|()| Exit::Done)
}

fn look(
    terminal: &mut DefaultTerminal,
    reader: &mut Reader,
    interval: Duration,
    colour: bool,
    signals: &mut Signals,
) -> Result<(), Fault> {
    let of_terminal = |error: std::io::Error| Fault::failed(format!("cannot use the terminal: {error}"));
    let (mut state, mut reading, mut next) = (TopState::default(), Reading::default(), Instant::now());
    let mut keyboard = Keyboard::of_standard_input().map_err(of_terminal)?;
    let (mut stale, mut shown_at) = (true, None);
    loop {
        if Instant::now() >= next && !state.paused {
            reading = reader.read()?;
            next = Instant::now() + interval;
            stale = true;
        }
        let size =
            rustix::termios::tcgetwinsize(std::io::stdout()).ok().map(|size| (size.ws_col, size.ws_row));
        if std::mem::take(&mut stale) || size != shown_at {
            terminal.draw(|frame| draw(frame, &reading, &mut state, colour)).map_err(of_terminal)?;
            shown_at = size;
        }
        let wait = match state.paused {
            true => TICK,
            false => next.saturating_duration_since(Instant::now()).min(TICK),
        };
        let input = keyboard.wait(wait, signals.as_fd());
        if signals.take().is_some() {
            return Ok(());
        }
        let Input::Keys(keys) = input else { return Ok(()) };
        for key in keys {
            stale = true;
            if !state.press(key) {
                return Ok(());
            }
        }
    }
}

/// Draws a reading.
fn draw(frame: &mut Frame<'_>, reading: &Reading, state: &mut TopState, colour: bool) {
    let cpus = u16::try_from(reading.cpus.len().min(CPUS_MAX)).unwrap_or(0);
    let processes = state.processes(reading);
    let rows = u16::try_from(processes.len().min(PROCESSES_MAX)).unwrap_or(0);
    let services = u16::try_from(reading.services.len().min(SERVICES_MAX)).unwrap_or(0);
    let [head, cpu_area, queue_area, service_area, process_area, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(cpus),
        Constraint::Min(3),
        Constraint::Length(if services == 0 { 0 } else { services + 2 }),
        Constraint::Length(if rows == 0 { 0 } else { rows + 2 }),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let paint = Paint { colour };
    frame.render_widget(Paragraph::new(headline(reading, head.width, &paint)), head);
    frame.render_widget(Paragraph::new(cpu_lines(reading, cpu_area.width, &paint)), cpu_area);
    draw_queues(frame, queue_area, reading, state, &paint);
    if services > 0 {
        draw_services(frame, service_area, reading, &paint);
    }
    if rows > 0 {
        draw_processes(frame, process_area, &processes, &paint);
    }
    frame.render_widget(Paragraph::new(footline(reading, state, &paint)), foot);
    if state.help {
        draw_help(frame, &paint);
    }
}

/// Applies colours if they are enabled.
struct Paint {
    colour: bool,
}

impl Paint {
    fn style(&self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }

    fn strong(&self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    fn heading(&self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}

fn headline<'a>(reading: &Reading, width: u16, paint: &Paint) -> Line<'a> {
    let packets: f64 = reading.queues.iter().map(|line| line.packets).sum();
    let own: f64 = reading
        .queues
        .iter()
        .map(|line| line.packets * line.shares.map_or(0.0, |shares| shares.application))
        .sum();
    let share = if packets > 0.0 { own / packets } else { 0.0 };
    whole(
        vec![
            Span::styled("netpolicy top", paint.strong()),
            Span::raw(format!("  {} packets/s", rate(packets))),
            Span::raw(format!(" on {} queues", reading.queues.len())),
            Span::raw(format!(", {} by applications", percent(share))),
            Span::raw(format!("; {}/s off NAPI", rate(reading.backlog_packets))),
        ],
        width,
    )
}

/// Joins the parts that fit in this width. Omits whole parts, because a truncated number would be wrong.
fn whole(parts: Vec<Span<'_>>, width: u16) -> Line<'_> {
    let mut room = usize::from(width);
    let fits = |part: &Span<'_>| {
        let left = room.checked_sub(part.width());
        room = left.unwrap_or(room);
        left.is_some()
    };
    Line::from(parts.into_iter().take_while(fits).collect::<Vec<_>>())
}

fn cpu_lines<'a>(reading: &Reading, width: u16, paint: &Paint) -> Vec<Line<'a>> {
    let mut cpus: Vec<&CpuLine> = reading.cpus.iter().collect();
    if cpus.len() > CPUS_MAX {
        cpus.sort_by(|a, b| a.idle.total_cmp(&b.idle).then(a.cpu.cmp(&b.cpu)));
    }
    let words = |cpu: &CpuLine| {
        let part = |name: &str, share: f64| format!(" {name} {:>4}", percent(share));
        let parts = vec![
            Span::styled(format!("cpu{:<4}", cpu.cpu), paint.strong()),
            Span::styled(part("user", cpu.user), paint.style(Color::Green)),
            Span::styled(part("system", cpu.system), paint.style(Color::Blue)),
            Span::styled(part("softirq", cpu.softirq), paint.style(Color::Yellow)),
            Span::styled(part("irq", cpu.irq), paint.style(Color::Red)),
            Span::raw(part("idle", cpu.idle)),
        ];
        whole(parts, width)
    };
    cpus.into_iter().take(CPUS_MAX).map(words).collect()
}

fn draw_queues(frame: &mut Frame<'_>, area: Rect, reading: &Reading, state: &mut TopState, paint: &Paint) {
    let lines = state.queues(reading);
    let room = usize::from(area.height.saturating_sub(1));
    state.skipped = state.skipped.min(lines.len().saturating_sub(room));
    let rows: Vec<_> =
        lines.iter().skip(state.skipped).take(room).map(|line| queue_cells(line, paint)).collect();
    frame.render_widget(table(&QUEUE_COLUMNS, rows, area.width, paint), area);
}

/// A column of a table. The first column takes the remaining width.
struct Column {
    head: &'static str,
    /// The minimum width.
    width: u16,
    /// The order in which columns are dropped if the terminal is too narrow: the column with the highest
    /// number is dropped first.
    order: u8,
    /// Whether the column is right-aligned, as numbers are.
    right: bool,
}

const fn number(head: &'static str, width: u16, order: u8) -> Column {
    Column { head, width, order, right: true }
}

const fn word(head: &'static str, width: u16, order: u8) -> Column {
    Column { head, width, order, right: false }
}

const QUEUE_COLUMNS: [Column; 10] = [
    word("QUEUE", NAME_MIN, 0),
    number("NAPI", 5, 6),
    number("PKT/S", 6, 1),
    number("POLL/S", 6, 8),
    number("BATCH", 5, 7),
    number("IRQ", 4, 3),
    number("TIMER", 5, 4),
    number("APP", 4, 2),
    number("KTHR", 4, 5),
    word("SET", 14, 9),
];

const PROCESS_COLUMNS: [Column; 6] = [
    word("PROCESS", NAME_MIN, 0),
    number("PREFER/OF", 9, 4),
    number("SOCKETS", 7, 5),
    number("PACKET/S", 8, 1),
    number("POLL/S", 8, 3),
    word("EPOLLS", 9, 2),
];

const SERVICE_COLUMNS: [Column; 8] = [
    word("SERVICE", NAME_MIN, 0),
    number("REQ/S", 6, 4),
    number("P50", 6, 2),
    number("P99", 6, 1),
    number("RING", 6, 5),
    number("WAKE-UP", 7, 6),
    number("SERVING", 7, 7),
    number("WAITING", 7, 3),
];

/// Selects the columns that fit in this width. A column is as wide as its widest cell or is dropped, because
/// a truncated number would be wrong. The first column has names, which are shortened in the middle.
fn table<'a>(columns: &[Column], rows: Vec<Vec<(String, Style)>>, width: u16, paint: &Paint) -> Table<'a> {
    let widest = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at)).map(|(text, _)| text.chars().count());
        u16::try_from(cells.max().unwrap_or(0)).unwrap_or(u16::MAX).max(columns[at].width)
    };
    let widths: Vec<u16> = (0..columns.len()).map(widest).collect();
    let mut shown: Vec<usize> = (0..columns.len()).collect();
    let beside = |shown: &[usize]| -> u16 {
        shown.iter().skip(1).fold(0, |sum: u16, at| sum.saturating_add(widths[*at]).saturating_add(1))
    };
    while shown.len() > 1 && beside(&shown).saturating_add(NAME_MIN) > width {
        let last = shown.iter().copied().max_by_key(|at| columns[*at].order);
        shown.retain(|at| Some(*at) != last);
    }
    let first = usize::from(width.saturating_sub(beside(&shown)));
    let placed = |at: usize, text: &str| match (at, columns[at].right) {
        (0, _) => shortened(text, first),
        (_, true) => format!("{text:>room$}", room = usize::from(widths[at])),
        (_, false) => text.to_owned(),
    };
    let row = |cells: &[(String, Style)]| {
        Row::new(shown.iter().map(|at| Cell::new(placed(*at, &cells[*at].0)).style(cells[*at].1)))
    };
    let heads = Row::new(shown.iter().map(|at| Cell::new(placed(*at, columns[*at].head))));
    let constraint = |at: &usize| match at {
        0 => Constraint::Fill(1),
        at => Constraint::Length(widths[*at]),
    };
    let rows: Vec<Row<'_>> = rows.iter().map(|cells| row(cells)).collect();
    Table::new(rows, shown.iter().map(constraint)).header(heads.style(paint.heading())).column_spacing(1)
}

/// Shortens a name to this width by removing its middle, because the end distinguishes the name from others.
fn shortened(name: &str, room: usize) -> String {
    let length = name.chars().count();
    if length <= room {
        return name.to_owned();
    }
    let end: String =
        name.rsplit_once([' ', '[']).map_or(String::new(), |(head, _)| name[head.len()..].to_owned());
    let kept = room.saturating_sub(end.chars().count());
    let head: String = name.chars().take(kept).collect();
    if kept == 0 { name.chars().take(room).collect() } else { format!("{head}{end}") }
}

fn queue_cells(line: &QueueLine, paint: &Paint) -> Vec<(String, Style)> {
    let share = |of: fn(&super::reading::Shares) -> f64| {
        line.shares.as_ref().map_or_else(|| "-".to_owned(), |shares| percent(of(shares)))
    };
    let own = match line.shares {
        Some(shares) if shares.application >= 0.5 => paint.style(Color::Green),
        _ => Style::new(),
    };
    let queue = line.queue.map_or_else(String::new, |queue| format!(" rx-{queue}"));
    let plain = |text: String| (text, Style::new());
    vec![
        plain(format!("{}{queue}", line.device)),
        plain(line.napi.to_string()),
        plain(rate(line.packets)),
        plain(rate(line.polls)),
        plain(line.batch.map_or_else(|| "-".to_owned(), |batch| format!("{batch:.1}"))),
        plain(share(|s| s.interrupt)),
        plain(share(|s| s.timer)),
        (share(|s| s.application), own),
        plain(share(|s| s.kthread)),
        plain(if line.suspended { format!("{}*", line.set) } else { line.set.clone() }),
    ]
}

fn draw_services(frame: &mut Frame<'_>, area: Rect, reading: &Reading, paint: &Paint) {
    let area = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
    let rows = reading.services.iter().take(SERVICES_MAX).map(|line| {
        let plain = |text: String| (text, Style::new());
        vec![
            plain(line.name.clone()),
            plain(rate(line.rate)),
            plain(short(line.p50)),
            plain(short(line.p99)),
            plain(short(line.ring)),
            plain(short(line.wakeup)),
            plain(short(line.service)),
            plain(line.waiting.to_string()),
        ]
    });
    frame.render_widget(table(&SERVICE_COLUMNS, rows.collect(), area.width, paint), area);
}

fn draw_processes(frame: &mut Frame<'_>, area: Rect, lines: &[&ProcessLine], paint: &Paint) {
    let area = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
    let rows = lines.iter().take(PROCESSES_MAX).map(|line| {
        let engaged = match (line.prefer, line.polls > 0.0) {
            (0, false) => "sleeps",
            (0, true) => "polls",
            (_, true) => "engaged",
            (_, false) => "set only",
        };
        let style = if engaged == "engaged" { paint.style(Color::Green) } else { Style::new() };
        let plain = |text: String| (text, Style::new());
        vec![
            plain(format!("{}[{}]", line.name, line.pid)),
            plain(format!("{}/{}", line.prefer, line.epolls)),
            plain(line.sockets.to_string()),
            plain(rate(line.packets)),
            plain(rate(line.polls)),
            (engaged.to_owned(), style),
        ]
    });
    frame.render_widget(table(&PROCESS_COLUMNS, rows.collect(), area.width, paint), area);
}

fn footline<'a>(reading: &Reading, state: &TopState, paint: &Paint) -> Line<'a> {
    if state.typing {
        return Line::from(format!("filter: {}_", state.filter));
    }
    let mut words = format!("q quit  s sort ({})  / filter", state.sort.word());
    if !state.filter.is_empty() {
        words.push_str(&format!(" ({})", state.filter));
    }
    words.push_str("  p pause  ? help");
    if state.paused {
        words.push_str("  PAUSED");
    }
    let mut spans = vec![Span::raw(words)];
    if let Some(first) = reading.unread.first() {
        spans.push(Span::styled(format!("  {first}"), paint.style(Color::Red)));
    }
    Line::from(spans)
}

fn draw_help(frame: &mut Frame<'_>, paint: &Paint) {
    let text = [
        "PKT/S, POLL/S     counted 50 ms of each second",
        "BATCH             packets per non-empty poll",
        "IRQ               share of packets polled in softirq after an interrupt",
        "TIMER             ... after the NAPI's timer",
        "APP               ... by an application in its own system call",
        "KTHR              ... by the NAPI's kernel thread",
        "SET               the mode that the NAPI's values match; * its IRQ was suspended",
        "PREFER/OF         epolls that prefer busy polling, and all epolls",
        "",
        "s sort   / filter   arrows scroll   p pause   q quit   ? h Esc close this",
    ];
    let whole = frame.area();
    let height = u16::try_from(text.len()).unwrap_or(0).min(whole.height);
    let area = Rect { x: whole.x, y: whole.y + whole.height.saturating_sub(height + 1), height, ..whole };
    frame.render_widget(Clear, area);
    let lines: Vec<Line<'_>> = text.iter().map(|line| Line::from(*line)).collect();
    frame.render_widget(Paragraph::new(lines).style(paint.heading()), area);
}

/// Formats a rate in at most six characters, such as `1234`, `56.7k` or `1.23M`.
fn rate(per_second: f64) -> String {
    match per_second {
        small if small < 9_999.5 => format!("{small:.0}"),
        thousands if thousands < 999_950.0 => format!("{:.1}k", thousands / 1e3),
        millions if millions < 99_995_000.0 => format!("{:.2}M", millions / 1e6),
        millions => format!("{:.0}M", millions / 1e6),
    }
}

fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

#[cfg(test)]
mod test {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::reading::Shares;
    use super::super::state::KeyPress;
    use latency::live::Estimate;
    use latency::measure::Interval;

    use super::*;
    use crate::top::reading::ServiceLine;

    fn reading(queues: u32) -> Reading {
        let line = |queue: u32| QueueLine {
            device: "enp65s0f0np0".to_owned(),
            queue: Some(queue),
            napi: 8193 + queue,
            packets: 1_234_567.0 / f64::from(queue + 1),
            polls: 45_678.0,
            batch: Some(27.04),
            shares: Some(Shares { interrupt: 0.02, timer: 0.03, application: 0.95, kthread: 0.0 }),
            timers: 5.0,
            set: "suspend 20us".to_owned(),
            suspended: true,
            irq: Some(120),
            kthread: None,
        };
        let cpu = |cpu| CpuLine { cpu, user: 0.31, system: 0.42, softirq: 0.07, irq: 0.0, idle: 0.2 };
        Reading {
            counted_seconds: 0.05,
            queues: (0..queues).map(line).collect(),
            processes: vec![ProcessLine {
                name: "memcached".to_owned(),
                pid: 812,
                epolls: 5,
                prefer: 4,
                sockets: 4480,
                packets: 1_100_000.0,
                polls: 40_000.0,
            }],
            services: Vec::new(),
            cpus: (0..8).map(cpu).collect(),
            backlog_packets: 12.0,
            unread: Vec::new(),
        }
    }

    fn drawn(reading: &Reading, state: &mut TopState) -> String {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("a backend in memory");
        terminal.draw(|frame| draw(frame, reading, state, true)).expect("draws");
        terminal.backend().to_string()
    }

    #[test]
    fn eighty_columns_and_twenty_four_lines_are_enough() {
        insta::assert_snapshot!("top", drawn(&reading(40), &mut TopState::default()));
    }

    #[test]
    fn services_are_shown_with_their_response_times_and_where_these_go() {
        let estimate = |ns: f64| {
            let interval = Interval { estimate: ns, low: ns, high: ns };
            Some(Estimate { interval, at_least: false, open_end: false })
        };
        let mut reading = reading(40);
        reading.services.push(ServiceLine {
            name: "cache".to_owned(),
            rate: 123_456.0,
            p50: estimate(118_000.0),
            p99: estimate(912_000.0),
            ring: estimate(41_000.0),
            wakeup: estimate(60_000.0),
            service: estimate(9_300.0),
            waiting: 3,
        });
        insta::assert_snapshot!("top_services", drawn(&reading, &mut TopState::default()));
    }

    #[test]
    fn scrolling_ends_at_the_last_queue() {
        let mut state = TopState::default();
        (0..100).for_each(|_| {
            state.press(KeyPress::PageDown);
        });
        let screen = drawn(&reading(40), &mut state);
        assert!(screen.contains("rx-39") && !screen.contains("rx-2 "), "{screen}");
    }

    #[test]
    fn a_terminal_of_any_size_is_drawn_on() {
        for (width, height) in [(1, 1), (3, 40), (200, 2), (20, 5)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a backend in memory");
            let mut state = TopState { help: true, ..TopState::default() };
            terminal.draw(|frame| draw(frame, &reading(3), &mut state, false)).expect("draws");
        }
    }

    #[test]
    fn a_number_is_shown_whole_or_not_at_all() {
        let mut reading = reading(1);
        let process = &mut reading.processes[0];
        (process.packets, process.polls, process.sockets) = (573.0, 391.0, 4_482);
        let queue = &mut reading.queues[0];
        (queue.packets, queue.polls, queue.napi) = (573.0, 391.0, 1_234_567);
        (queue.device, queue.set) = ("uplink".to_owned(), "suspend 20123ns".to_owned());
        let whole = [
            "573", "391", "4482", "1234567", "27.0", "2%", "3%", "95%", "0%", "4/5", "engaged", "suspend",
            "20123ns*",
        ];
        for width in 1..=140 {
            let mut terminal = Terminal::new(TestBackend::new(width, 24)).expect("a backend in memory");
            terminal.draw(|frame| draw(frame, &reading, &mut TopState::default(), false)).expect("draws");
            let screen = terminal.backend().to_string();
            let mut tables = 0;
            for line in screen.lines().map(|line| line.trim_matches('"').trim_end()) {
                let name = ["rx-0", "[812]"].iter().find_map(|end| Some(line.find(end)? + end.len()));
                let Some(name) = name else {
                    let is_cut = line.ends_with(|c: char| c.is_ascii_digit()) && !line.starts_with("cpu");
                    assert!(!is_cut, "{width} columns:\n{screen}");
                    continue;
                };
                let cells: Vec<&str> = line[name..].split_whitespace().collect();
                let unknown = cells.iter().find(|cell| !whole.contains(cell));
                assert_eq!(unknown, None, "{width} columns:\n{screen}");
                tables += usize::from(cells.contains(&"573"));
            }
            assert!(width < 34 || tables == 2, "{width} columns:\n{screen}");
        }
    }

    #[test]
    fn a_rate_has_at_most_six_characters() {
        let rates: Vec<String> =
            [0.0, 9_999.4, 9_999.6, 999_949.0, 1_234_567.0, 123_456_789.0].map(rate).into();
        assert_eq!(rates, ["0", "9999", "10.0k", "999.9k", "1.23M", "123M"]);
    }
}
