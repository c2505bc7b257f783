//! The report of one host, and the audit of many reports. This module opens no files: `commands/audit.rs`
//! reads the reports.

mod audit;
mod host_report;

pub use audit::{
    Audit, AuditReport, Coverage, Duplicate, Group, HOSTS_MAX, Issue, REPORT_BYTES_MAX, UnreadableReport,
};
pub use host_report::{Drifted, FindingOnHost, HostReport, PolicyState, Refused, Service};
