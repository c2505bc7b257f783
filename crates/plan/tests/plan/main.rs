//! What the planner promises, on hosts made here.

mod diff;
mod doctor;
mod doctor_device;
mod doctor_others;
mod explain;
mod irqbalance;
mod kthread;
mod made;
mod nic;
mod place;
mod property;
mod read_aloud;
