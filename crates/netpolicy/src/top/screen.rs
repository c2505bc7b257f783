//! The screen: 80 columns and 24 lines are enough, and more are used.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use linux::Signals;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Clear, Paragraph, Row, Table};
use ratatui::{DefaultTerminal, Frame};

use super::reader::Reader;
use super::reading::{CpuLine, ProcessLine, QueueLine, Reading};
use super::state::{Key, State};
use crate::exit::Exit;
use crate::fault::Fault;

/// How long a key is waited for before signals are looked at again.
const TICK: Duration = Duration::from_millis(100);

/// How many CPUs have a line of their own.
const CPUS_MAX: usize = 4;

/// How many columns a queue's name has at least.
const NAME: u16 = 18;

/// How many columns the queues' table needs.
const COLUMNS: u16 = 80;

/// How many lines processes have at most.
const PROCESSES_MAX: usize = 6;

/// Shows one reading after the other until the operator has seen enough.
pub(crate) fn watch(mut reader: Reader, interval: Duration, colour: bool) -> Result<Exit, Fault> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Fault::new(Exit::Usage, "top needs a terminal".to_owned())
            .hint("netpolicy top --once prints one reading, and with -o json one for programs"));
    }
    let mut signals = Signals::catch()?;
    // Puts the terminal back also when this panics.
    let mut terminal =
        ratatui::try_init().map_err(|error| Fault::failed(format!("the terminal: {error}")))?;
    let seen = look(&mut terminal, &mut reader, interval, colour, &mut signals);
    ratatui::restore();
    seen.map(|()| Exit::Done)
}

fn look(
    terminal: &mut DefaultTerminal,
    reader: &mut Reader,
    interval: Duration,
    colour: bool,
    signals: &mut Signals,
) -> Result<(), Fault> {
    let of_terminal = |error: std::io::Error| Fault::failed(format!("the terminal: {error}"));
    let (mut state, mut reading, mut next) = (State::default(), Reading::default(), Instant::now());
    let mut stale = true;
    loop {
        if Instant::now() >= next && !state.paused {
            reading = reader.read()?;
            next = Instant::now() + interval;
            stale = true;
        }
        if std::mem::take(&mut stale) {
            terminal.draw(|frame| draw(frame, &reading, &mut state, colour)).map_err(of_terminal)?;
        }
        if signals.take().is_some() {
            return Ok(());
        }
        let wait = next.saturating_duration_since(Instant::now()).clamp(Duration::from_millis(1), TICK);
        if !event::poll(wait).map_err(of_terminal)? {
            continue;
        }
        stale = true;
        let Some(key) = key(&event::read().map_err(of_terminal)?) else { continue };
        if !state.press(key) {
            return Ok(());
        }
    }
}

fn key(event: &Event) -> Option<Key> {
    let Event::Key(pressed) = event else { return None };
    if pressed.kind == KeyEventKind::Release {
        return None;
    }
    let control = pressed.modifiers.contains(KeyModifiers::CONTROL);
    match pressed.code {
        KeyCode::Char('c') if control => Some(Key::Interrupt),
        KeyCode::Char(_) if control => None,
        KeyCode::Char(c) => Some(Key::Char(c)),
        KeyCode::Up => Some(Key::Up),
        KeyCode::Down => Some(Key::Down),
        KeyCode::PageUp => Some(Key::PageUp),
        KeyCode::PageDown => Some(Key::PageDown),
        KeyCode::Enter => Some(Key::Enter),
        KeyCode::Esc => Some(Key::Escape),
        KeyCode::Backspace => Some(Key::Backspace),
        _ => None,
    }
}

/// Draws a reading.
fn draw(frame: &mut Frame<'_>, reading: &Reading, state: &mut State, colour: bool) {
    let cpus = u16::try_from(reading.cpus.len().min(CPUS_MAX)).unwrap_or(0);
    let processes = state.processes(reading);
    let rows = u16::try_from(processes.len().min(PROCESSES_MAX)).unwrap_or(0);
    let [head, cpu_area, queue_area, process_area, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(cpus),
        Constraint::Min(3),
        Constraint::Length(if rows == 0 { 0 } else { rows + 2 }),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let paint = Paint { colour };
    frame.render_widget(Paragraph::new(headline(reading, &paint)), head);
    frame.render_widget(Paragraph::new(cpu_lines(reading, &paint)), cpu_area);
    draw_queues(frame, queue_area, reading, state, &paint);
    if rows > 0 {
        draw_processes(frame, process_area, &processes, &paint);
    }
    frame.render_widget(Paragraph::new(footline(reading, state, &paint)), foot);
    if state.help {
        draw_help(frame, &paint);
    }
}

/// Colours, if there are to be any.
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

fn headline<'a>(reading: &Reading, paint: &Paint) -> Line<'a> {
    let packets: f64 = reading.queues.iter().map(|line| line.packets).sum();
    let own: f64 = reading
        .queues
        .iter()
        .map(|line| line.packets * line.shares.map_or(0.0, |shares| shares.application))
        .sum();
    let share = if packets > 0.0 { own / packets } else { 0.0 };
    Line::from(vec![
        Span::styled("netpolicy top", paint.strong()),
        Span::raw(format!(
            "  {} packets/s on {} queues, {} by applications; {}/s off NAPI",
            rate(packets),
            reading.queues.len(),
            percent(share),
            rate(reading.backlog_packets)
        )),
    ])
}

fn cpu_lines<'a>(reading: &Reading, paint: &Paint) -> Vec<Line<'a>> {
    let mut cpus: Vec<&CpuLine> = reading.cpus.iter().collect();
    if cpus.len() > CPUS_MAX {
        cpus.sort_by(|a, b| a.idle.total_cmp(&b.idle).then(a.cpu.cmp(&b.cpu)));
    }
    let words = |cpu: &CpuLine| {
        let part = |name: &str, share: f64| format!(" {name} {:>4}", percent(share));
        Line::from(vec![
            Span::styled(format!("cpu{:<4}", cpu.cpu), paint.strong()),
            Span::styled(part("user", cpu.user), paint.style(Color::Green)),
            Span::styled(part("system", cpu.system), paint.style(Color::Blue)),
            Span::styled(part("softirq", cpu.softirq), paint.style(Color::Yellow)),
            Span::styled(part("irq", cpu.irq), paint.style(Color::Red)),
            Span::raw(part("idle", cpu.idle)),
        ])
    };
    cpus.into_iter().take(CPUS_MAX).map(words).collect()
}

fn draw_queues(frame: &mut Frame<'_>, area: Rect, reading: &Reading, state: &mut State, paint: &Paint) {
    let lines = state.queues(reading);
    let room = usize::from(area.height.saturating_sub(1));
    state.skipped = state.skipped.min(lines.len().saturating_sub(room));
    let room_for_name = usize::from(NAME + area.width.saturating_sub(COLUMNS));
    let rows = lines.iter().skip(state.skipped).take(room).map(|line| queue_row(line, room_for_name, paint));
    let widths = [
        Constraint::Min(NAME),
        Constraint::Length(5),
        Constraint::Length(6),
        Constraint::Length(6),
        Constraint::Length(5),
        Constraint::Length(4),
        Constraint::Length(5),
        Constraint::Length(4),
        Constraint::Length(4),
        Constraint::Length(14),
    ];
    let heads = ["QUEUE", " NAPI", " PKT/S", "POLL/S", "BATCH", " IRQ", "TIMER", " APP", "KTHR", "SET"];
    let header = Row::new(heads.map(Cell::new)).style(paint.heading());
    frame.render_widget(Table::new(rows, widths).header(header).column_spacing(1), area);
}

/// The queue's name in so many columns: of a device's long name, the end is left out.
fn name(line: &QueueLine, room: usize) -> String {
    let queue = line.queue.map_or_else(String::new, |queue| format!(" rx-{queue}"));
    let room = room.saturating_sub(queue.len());
    let device: String = line.device.chars().take(room).collect();
    format!("{device}{queue}")
}

fn queue_row<'a>(line: &QueueLine, room_for_name: usize, paint: &Paint) -> Row<'a> {
    let share = |of: fn(&super::reading::Shares) -> f64| {
        line.shares.as_ref().map_or_else(|| "-".to_owned(), |shares| percent(of(shares)))
    };
    let own = match line.shares {
        Some(shares) if shares.application >= 0.5 => paint.style(Color::Green),
        _ => Style::new(),
    };
    let set = if line.suspended { format!("{}*", line.set) } else { line.set.clone() };
    Row::new(vec![
        Cell::new(name(line, room_for_name)),
        Cell::new(format!("{:>5}", line.napi)),
        Cell::new(format!("{:>6}", rate(line.packets))),
        Cell::new(format!("{:>6}", rate(line.polls))),
        Cell::new(line.batch.map_or_else(|| "    -".to_owned(), |batch| format!("{batch:>5.1}"))),
        Cell::new(format!("{:>4}", share(|s| s.interrupt))),
        Cell::new(format!("{:>5}", share(|s| s.timer))),
        Cell::new(format!("{:>4}", share(|s| s.application))).style(own),
        Cell::new(format!("{:>4}", share(|s| s.kthread))),
        Cell::new(set),
    ])
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
        Row::new(vec![
            Cell::new(format!("{}[{}]", line.name, line.pid)),
            Cell::new(format!("{:>9}", format!("{}/{}", line.prefer, line.epolls))),
            Cell::new(format!("{:>7}", line.sockets)),
            Cell::new(format!("{:>8}", rate(line.packets))),
            Cell::new(format!("{:>8}", rate(line.polls))),
            Cell::new(engaged).style(style),
        ])
    });
    let widths = [
        Constraint::Min(24),
        Constraint::Length(9),
        Constraint::Length(7),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(9),
    ];
    let heads = ["PROCESS", "PREFER/OF", "SOCKETS", "PACKET/S", "POLL/S", "EPOLLS"];
    let header = Row::new(heads.map(Cell::new)).style(paint.heading());
    frame.render_widget(Table::new(rows, widths).header(header).column_spacing(1), area);
}

fn footline<'a>(reading: &Reading, state: &State, paint: &Paint) -> Line<'a> {
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
        "BATCH             packets of a poll that found any",
        "IRQ               of the packets, polled in softirq after an interrupt",
        "TIMER             ... after the NAPI's timer",
        "APP               ... by an application in its own system call",
        "KTHR              ... by the NAPI's kernel thread",
        "SET               the mode of the NAPI's values; * its IRQ was suspended",
        "PREFER/OF         epolls that prefer busy polling, of all",
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

/// `1234`, `56.7k`, `1.23M`: at most six characters.
fn rate(per_second: f64) -> String {
    match per_second {
        small if small < 9_999.5 => format!("{small:.0}"),
        thousands if thousands < 999_950.0 => format!("{:.1}k", thousands / 1e3),
        millions => format!("{:.2}M", millions / 1e6),
    }
}

fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

#[cfg(test)]
mod test {
    use super::super::reading::Shares;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

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
            cpus: (0..8).map(cpu).collect(),
            backlog_packets: 12.0,
            unread: Vec::new(),
        }
    }

    fn drawn(reading: &Reading, state: &mut State) -> String {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("a backend in memory");
        terminal.draw(|frame| draw(frame, reading, state, true)).expect("draws");
        terminal.backend().to_string()
    }

    #[test]
    fn eighty_columns_and_twenty_four_lines_are_enough() {
        insta::assert_snapshot!("top", drawn(&reading(40), &mut State::default()));
    }

    #[test]
    fn scrolling_ends_at_the_last_queue() {
        let mut state = State::default();
        (0..100).for_each(|_| {
            state.press(Key::PageDown);
        });
        let screen = drawn(&reading(40), &mut state);
        assert!(screen.contains("rx-39") && !screen.contains("rx-2 "), "{screen}");
    }

    #[test]
    fn a_terminal_of_any_size_is_drawn_on() {
        for (width, height) in [(1, 1), (3, 40), (200, 2), (20, 5)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a backend in memory");
            let mut state = State { help: true, ..State::default() };
            terminal.draw(|frame| draw(frame, &reading(3), &mut state, false)).expect("draws");
        }
    }

    #[test]
    fn a_rate_has_at_most_six_characters() {
        let rates: Vec<String> =
            [0.0, 9_999.4, 9_999.6, 999_949.0, 1_234_567.0, 123_456_789.0].map(rate).into();
        assert_eq!(rates, ["0", "9999", "10.0k", "999.9k", "1.23M", "123.46M"]);
    }
}
