//! Tests transactions on an in-memory host that fails in every way in which a host can fail.

mod compaction;
mod confirm;
mod error_texts;
mod every_fault;
mod every_kill;
mod faulty_host;
mod full_journal;
mod history;
mod holders;
mod properties;
mod scene;
mod steering_nic;
mod threaded_nic;
mod undo_script;
mod unreadable;
mod verdicts;
