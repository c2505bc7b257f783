//! Recordings of hosts of any size, generated from the known recording: a NIC with many queues, stacks of
//! devices, processes with sockets in two network namespaces, a policy for each stack and service, and a
//! transaction that has set every queue.

use serde_json::{Value, json};

/// The size of a generated host.
#[derive(Clone, Copy)]
pub(super) struct Size {
    /// The number of queues of the NIC.
    pub(super) queues: u32,
    /// The number of stacks: a veth, a VLAN on it, a bond on the VLAN, and a VLAN and a macvlan on the bond.
    pub(super) stacks: u32,
    /// The number of processes, each with a listening socket and a connection.
    pub(super) processes: u32,
}

/// A node with 257 devices and 1000 sockets.
pub(super) const LARGE: Size = Size { queues: 64, stacks: 51, processes: 500 };

/// A host with one device of each kind.
pub(super) const STACK: Size = Size { queues: 2, stacks: 1, processes: 2 };

/// The first id of the generated devices, NAPIs, interrupts and processes.
const FIRST: u32 = 100_000;

/// The number of queues of the known recording's veth.
const VETH_QUEUES: u32 = 2;

/// Returns the list at this position of a document.
fn list<'a>(document: &'a mut Value, at: &str) -> &'a mut Vec<Value> {
    document.pointer_mut(at).and_then(Value::as_array_mut).unwrap_or_else(|| panic!("no list {at}"))
}

/// Replaces each value that is equal to `from`.
fn replace(value: &mut Value, from: &Value, to: &Value) {
    if value == from {
        *value = to.clone();
        return;
    }
    match value {
        Value::Array(list) => list.iter_mut().for_each(|value| replace(value, from, to)),
        Value::Object(fields) => fields.values_mut().for_each(|value| replace(value, from, to)),
        _ => {}
    }
}

/// Adds devices to a recording.
struct Devices<'a> {
    recording: &'a mut Value,
    /// The known veth, and what the known transaction sets on its first queue.
    veth: Value,
    changes: Value,
    applied: Vec<Value>,
}

impl<'a> Devices<'a> {
    fn of(recording: &'a mut Value) -> Self {
        let veth = recording["host"]["devices"][1].clone();
        let queue = json!({ "device": veth["id"], "index": 0 });
        let is_of_queue = |setting: &Value| setting["napi"][0] == queue;
        let plan = list(recording, "/journal/Ok/transactions/0/records/0/begin/plan");
        let changes = plan.iter().find(|changes| is_of_queue(&changes[0]["to"])).expect("a change").clone();
        let applied = list(recording, "/applied").iter().filter(|applied| is_of_queue(&applied["setting"]));
        let applied = applied.cloned().collect();
        Self { recording, veth, changes, applied }
    }

    /// Adds a device with these queues, each with a NAPI; returns the device's index.
    fn add(&mut self, name: &str, kind: &str, link: Value, queues: u32) -> usize {
        let nth = list(self.recording, "/host/devices").len();
        let napi = |queue: u32| FIRST + u32::try_from(nth).expect("few devices") * 1_000 + queue;
        let mut id = self.veth["id"].clone();
        (id["ifindex"], id["name"]) = (json!(nth + 1), json!(name));
        let mut device = self.veth.clone();
        (device["kind"], device["link"]) = (json!(kind), link);
        if kind != "veth" {
            device["peer"] = Value::Null;
        }
        let (mut rx, mut tx, mut napis) = (Vec::new(), Vec::new(), Vec::new());
        for queue in 0..queues {
            let [mut one, mut other, mut third] =
                ["rx_queues", "tx_queues", "napis"].map(|list| self.veth[list][0].clone());
            (one["id"]["index"], one["napi"]["napi"]) = (json!(queue), json!(napi(queue)));
            (other["index"], third["id"]) = (json!(queue), json!(napi(queue)));
            if kind == "ice" {
                third["irq"] = json!({ "irq": napi(queue), "confidence": "stated" });
                list(self.recording, "/host/irqs").push(json!({
                    "number": napi(queue), "name": format!("ice-{name}-TxRx-{queue}"), "affinity": "0-1",
                    "effective_affinity": "0", "node": null, "counts": [[0, 1_000]],
                }));
            }
            rx.push(one);
            tx.push(other);
            napis.push(third);
            self.set(&id, queue);
        }
        (device["rx_queues"], device["tx_queues"], device["napis"]) = (rx.into(), tx.into(), napis.into());
        replace(&mut device, &self.veth["id"], &id);
        list(self.recording, "/host/devices").push(device);
        list(self.recording, "/doctor/pressure/devices")
            .push(json!({ "device": id, "rx_packets": 9, "rx_dropped": 0, "rx_missed": 0 }));
        nth + 1
    }

    /// Adds the settings of a queue to the transaction.
    fn set(&mut self, device: &Value, queue: u32) {
        let from = json!({ "device": self.veth["id"], "index": 0 });
        let to = json!({ "device": device, "index": queue });
        let (mut changes, mut applied) = (self.changes.clone(), json!(self.applied));
        replace(&mut changes, &from, &to);
        replace(&mut applied, &from, &to);
        let plan = list(self.recording, "/journal/Ok/transactions/0/records/0/begin/plan");
        let step = plan.len();
        plan.push(changes);
        let records = list(self.recording, "/journal/Ok/transactions/0/records");
        let last = records.pop().expect("committed");
        records.extend([json!({ "tried": { "step": step } }), json!({ "done": { "step": step } }), last]);
        list(self.recording, "/applied").extend(applied.as_array().cloned().unwrap_or_default());
    }
}

/// Returns a recording of a host of this size.
pub(super) fn generated(known: &Value, size: Size) -> Value {
    let mut recording = known.clone();
    let mut devices = Devices::of(&mut recording);
    let link = |more: Value| {
        let mut link = json!({ "mac": "02:00:00:00:00:07", "speed_mbps": 100_000 });
        link.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
        link
    };
    let nic = devices.add("eth0", "ice", link(json!({ "pci": "0000:3b:00.0" })), size.queues);
    for nth in 0..size.stacks {
        let veth = devices.add(&format!("v{nth}"), "veth", link(json!({})), VETH_QUEUES);
        let bond = veth + 2;
        devices.add(&format!("v{nth}.7"), "vlan", link(json!({ "lower": veth, "master": bond })), 0);
        devices.add(&format!("bond{nth}"), "bond", link(json!({})), 0);
        let route = json!({ "lower": bond, "default_route": nth == 0 });
        devices.add(&format!("bond{nth}.9"), "vlan", link(route), 0);
        devices.add(&format!("mac{nth}"), "macvlan", link(json!({ "lower": bond })), 0);
    }
    let nic = recording["host"]["devices"][nic - 1].clone();
    let of_devices = json!({ "devices": ["bond*.9", { "match": [{ "name": "bond*.9" }], "by_name": true }] });
    request(&mut recording, &json!({ "device": "eth0" }));
    request(&mut recording, &of_devices);
    for nth in 0..size.processes {
        process(&mut recording, nth, &nic["napis"][nth as usize % size.queues as usize]["id"]);
    }
    recording
}

/// Adds a request for the delivery mode of the known recording.
fn request(recording: &mut Value, target: &Value) {
    let mut request = recording["policy"]["Ok"]["intents"][0].clone();
    request["target"] = target.clone();
    list(recording, "/policy/Ok/intents").push(request);
}

/// Adds a process with an epoll, a listening socket and a connection, and a service for it. Every second
/// process is in another network namespace, where it receives on no device.
fn process(recording: &mut Value, nth: u32, napi: &Value) {
    let mut process = recording["host"]["processes"][0].clone();
    let (number, was) = (FIRST + nth, process["id"].clone());
    let id = json!({ "pid": number, "started": 5, "comm": format!("server{nth}") });
    replace(&mut process, &was, &id);
    list(&mut process, "/threads").truncate(1);
    list(&mut process, "/epolls").truncate(1);
    process["threads"][0]["id"]["tid"] = json!(number);
    let inode = u64::from(number) * 2;
    let mut sockets = [process["sockets"][0].clone(), process["sockets"][0].clone()];
    for (inode, socket) in (inode..).zip(&mut sockets) {
        (socket["inode"], socket["fd"]) = (json!(inode), json!(15 + inode % 2));
    }
    sockets[1]["state"] = json!("tcp-established");
    sockets[1]["remote"] = json!(format!("192.0.2.{}:{}", nth % 250, 1_024 + nth % 60_000));
    match nth % 2 {
        0 => sockets[1]["napi"] = napi.clone(),
        _ => process["netns"] = json!(FIRST),
    }
    process["epolls"][0]["members"] = json!([{ "fd": 15, "inode": inode }, { "fd": 16, "inode": inode + 1 }]);
    process["sockets"] = json!(sockets);
    list(recording, "/host/processes").push(process);
    list(recording, "/networking").push(json!(number));
    let matching =
        json!({ "unit": null, "cgroup": null, "exe": format!("server{nth}"), "port": null, "uid": null });
    let denied = json!({ "what": format!("process {number}"), "why": "denied" });
    list(recording, "/services").push(json!({ "matching": matching, "found": [id], "unjudged": [denied] }));
    request(recording, &json!({ "service": [format!("svc{nth}"), matching] }));
    let unread = json!({ "what": format!("server{nth}[{number}]: its io_urings"), "why": "denied" });
    list(recording, "/host/unread").push(unread);
    recording["doctor"]["cpu_waits"][number.to_string()] = json!({ "waited": 5, "turns": 3 });
}
