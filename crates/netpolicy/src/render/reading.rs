//! Formats one sample of `top`, as `top --once` prints it.

use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::Value;
use session::page::{Cell, Page, RecordSchema, Report, Table, record, to_json};

use latency::live::text::short;

use crate::top::reading::{CpuLine, ProcessLine, QueueLine, Reading, ServiceLine};

/// The data of `top --once`.
#[derive(Debug, JsonSchema, Serialize)]
#[serde(transparent)]
pub(crate) struct ReadingReport<'a>(pub &'a Reading);

impl Report for ReadingReport<'_> {
    const KIND: &'static str = "reading";

    fn page(&self, page: &mut Page) {
        let mut table = Table::new(&[
            "QUEUE",
            "NAPI",
            "PACKETS/S",
            "POLLS/S",
            "BATCH",
            "IRQ",
            "TIMER",
            "APP",
            "KTHREAD",
            "SET",
        ]);
        for line in &self.0.queues {
            let name =
                line.queue.map_or_else(|| line.device.clone(), |queue| format!("{} rx-{queue}", line.device));
            let share =
                |share: Option<f64>| Cell::optional(share.map(|share| format!("{:.0} %", share * 100.0)));
            let shares = line.shares;
            table.row([
                Cell::new(name),
                Cell::number(line.napi),
                Cell::number(format!("{:.0}", line.packets)),
                Cell::number(format!("{:.0}", line.polls)),
                Cell::optional(line.batch.map(|batch| format!("{batch:.1}"))),
                share(shares.map(|s| s.interrupt)),
                share(shares.map(|s| s.timer)),
                share(shares.map(|s| s.application)),
                share(shares.map(|s| s.kthread)),
                Cell::new(if line.suspended { format!("{}, suspended", line.set) } else { line.set.clone() }),
            ]);
        }
        if !table.is_empty() {
            page.table(&table);
        }
        let mut table =
            Table::new(&["PROCESS", "EPOLLS", "PREFER BUSY POLLING", "SOCKETS", "PACKETS/S", "POLLS/S"]);
        for line in &self.0.processes {
            table.row([
                Cell::new(format!("{}[{}]", line.name, line.pid)),
                Cell::number(line.epolls),
                Cell::number(line.prefer),
                Cell::number(line.sockets),
                Cell::number(format!("{:.0}", line.packets)),
                Cell::number(format!("{:.0}", line.polls)),
            ]);
        }
        if !table.is_empty() {
            page.gap();
            page.table(&table);
        }
        let mut table =
            Table::new(&["SERVICE", "REQ/S", "P50", "P99", "RING", "WAKE-UP", "SERVING", "WAITING"]);
        for line in &self.0.services {
            table.row([
                Cell::new(line.name.clone()),
                Cell::number(format!("{:.0}", line.rate)),
                Cell::new(short(line.p50)),
                Cell::new(short(line.p99)),
                Cell::new(short(line.ring)),
                Cell::new(short(line.wakeup)),
                Cell::new(short(line.service)),
                Cell::number(line.waiting),
            ]);
        }
        if !table.is_empty() {
            page.gap();
            page.table(&table);
        }
        let mut table = Table::new(&["CPU", "USER", "SYSTEM", "SOFTIRQ", "IRQ", "IDLE"]);
        for cpu in &self.0.cpus {
            let share = |share: f64| Cell::number(format!("{:.0} %", share * 100.0));
            table.row([
                Cell::number(cpu.cpu),
                share(cpu.user),
                share(cpu.system),
                share(cpu.softirq),
                share(cpu.irq),
                share(cpu.idle),
            ]);
        }
        if !table.is_empty() {
            page.gap();
            page.table(&table);
        }
        for unread in &self.0.unread {
            page.line(unread);
        }
    }

    fn records_as(generator: &mut SchemaGenerator) -> Vec<RecordSchema> {
        vec![
            record::<QueueLine>("queue", generator),
            record::<ProcessLine>("process", generator),
            record::<ServiceLine>("service", generator),
            record::<CpuLine>("cpu", generator),
        ]
    }

    fn lines(&self) -> Vec<(&'static str, Value)> {
        let reading = self.0;
        let mut lines: Vec<_> = reading.queues.iter().map(|line| ("queue", to_json(line))).collect();
        lines.extend(reading.processes.iter().map(|line| ("process", to_json(line))));
        lines.extend(reading.services.iter().map(|line| ("service", to_json(line))));
        lines.extend(reading.cpus.iter().map(|line| ("cpu", to_json(line))));
        lines
    }
}
