//! Tests of the planner with constructed hosts.

mod app_requests;
mod diff;
mod divide;
mod doctor;
mod doctor_conflicting_tools;
mod doctor_device;
mod doctor_rules;
mod doctor_sleep;
mod doctor_untried;
mod doctor_waiting;
mod explain;
mod holders;
mod irqbalance;
mod kthread;
mod layout;
mod made;
mod nic;
mod place;
mod property;
mod property_recipe;
mod read_aloud;
mod recipe;
mod reuseport;
mod selection;
mod socket_queues;
mod sockets;
