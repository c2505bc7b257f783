//! Two hosts on this machine, with instructions for reaching them.

use linux::lab::{CLIENT_ADDRESS, Lab, Memcached, SERVER_ADDRESS, SERVER_DEVICE};
use model::Pid;
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::Value;
use session::page::{Page, RecordSchema, Report, record, to_json};

/// `lab`'s data.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct LabReport {
    server: ServerHost,
    client: ClientHost,
}

/// The host with the server.
#[derive(Debug, JsonSchema, Serialize)]
struct ServerHost {
    address: String,
    device: String,
    /// The server's network namespace, as an argument for `--netns`.
    netns: String,
    program: String,
    process: String,
    pid: Pid,
}

/// The client's host.
#[derive(Debug, JsonSchema, Serialize)]
struct ClientHost {
    address: String,
    /// The file of the client's network namespace, for `nsenter --net=`.
    netns: String,
}

impl LabReport {
    /// Describes a lab and its server.
    pub(crate) fn of(lab: &Lab, server: &Memcached) -> Self {
        Self {
            server: ServerHost {
                address: SERVER_ADDRESS.to_string(),
                device: SERVER_DEVICE.to_owned(),
                netns: format!("pid:{}", lab.server_pid()),
                program: server.version().to_string(),
                process: server.process().to_string(),
                pid: server.process().pid,
            },
            client: ClientHost {
                address: CLIENT_ADDRESS.to_string(),
                netns: lab.client_path().display().to_string(),
            },
        }
    }

    /// Returns the description of the lab for people.
    pub(crate) fn introduction(&self) -> String {
        let Self { server, client } = self;
        format!(
            "server {} on {}, {} as {}\n  netpolicy --netns {} show\n  netpolicy attach {} --delivery suspend200\nclient {}\n  \
             nsenter --net={} COMMAND",
            server.address,
            server.device,
            server.program,
            server.process,
            server.netns,
            server.pid,
            client.address,
            client.netns
        )
    }
}

impl Report for LabReport {
    const KIND: &'static str = "lab";

    fn page(&self, page: &mut Page) {
        page.line(self.introduction());
    }

    fn records_as(generator: &mut SchemaGenerator) -> Vec<RecordSchema> {
        vec![record::<ServerHost>("server", generator), record::<ClientHost>("client", generator)]
    }

    fn lines(&self) -> Vec<(&'static str, Value)> {
        vec![("server", to_json(&self.server)), ("client", to_json(&self.client))]
    }
}
