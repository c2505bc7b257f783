//! The options of a bench whose server is on another machine.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

/// The options of a bench whose server is on another machine.
#[derive(Clone, Debug, Args)]
pub struct TwoMachines {
    /// Run the server on another machine: by `ssh HOST` (or the command in NETPOLICY_SSH_COMMAND), or through
    /// its `bench serve --listen --token`.
    #[arg(long, value_name = "ssh:HOST|HOST:PORT", group = "own_client")]
    pub server: Option<Peer>,
    /// The file with the token. It must be the same on both machines.
    #[arg(long, value_name = "FILE", requires = "server")]
    pub token: Option<PathBuf>,
    /// The server's address [default: the address to which the control connection is made].
    #[arg(long, value_name = "ADDRESS", requires = "server")]
    pub server_address: Option<IpAddr>,
    /// The server's port [default: a free one].
    #[arg(long, value_name = "N", requires = "server", value_parser = clap::value_parser!(u16).range(1..))]
    pub server_port: Option<u16>,
    /// The command that runs netpolicy on the other machine.
    #[arg(long, value_name = "CMD", requires = "server", default_value = "netpolicy")]
    pub server_program: String,
}

/// Another machine, and how to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// By ssh.
    Ssh {
        /// The destination, as ssh accepts it.
        host: String,
    },
    /// By TCP.
    Tcp {
        /// The name or address.
        host: String,
        /// The port of `bench serve --listen`.
        port: u16,
    },
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ssh { host } => f.pad(host),
            Self::Tcp { host, port } if host.contains(':') => f.pad(&format!("[{host}]:{port}")),
            Self::Tcp { host, port } => f.pad(&format!("{host}:{port}")),
        }
    }
}

/// The error for a text that names no machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` names no machine: write ssh:HOST or HOST:PORT, as in ssh:root@192.0.2.7 or 192.0.2.7:7100")]
pub struct NotAMachine(String);

/// The prefix of a machine that is reached by ssh.
pub(crate) const PREFIX: &str = "ssh:";

impl FromStr for Peer {
    type Err = NotAMachine;

    fn from_str(text: &str) -> Result<Self, NotAMachine> {
        // ssh would interpret a leading hyphen as an option.
        let is_name = |host: &str| {
            !host.is_empty() && !host.starts_with('-') && host.chars().all(|c| c.is_ascii_graphic())
        };
        let wrong = || NotAMachine(text.to_owned());
        if let Some(host) = text.strip_prefix(PREFIX) {
            return if is_name(host) { Ok(Self::Ssh { host: host.to_owned() }) } else { Err(wrong()) };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match bracketed {
            Some(host) => host,
            None if host.contains(':') => return Err(wrong()),
            None => host,
        };
        match port.parse() {
            Ok(port) if port > 0 && is_name(host) => Ok(Self::Tcp { host: host.to_owned(), port }),
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_machine_is_a_destination_of_ssh_or_a_host_with_a_port_and_never_an_option() {
        assert_eq!("ssh:root@h".parse(), Ok(Peer::Ssh { host: "root@h".to_owned() }));
        for (text, name, of_port) in
            [("h:22", "h", 22), ("192.0.2.7:7100", "192.0.2.7", 7100), ("[fe80::1]:9", "fe80::1", 9)]
        {
            let peer: Peer = text.parse().expect(text);
            assert_eq!(peer, Peer::Tcp { host: name.to_owned(), port: of_port });
            assert_eq!(peer.to_string(), text);
        }
        for text in [
            "",
            "h",
            "ssh:",
            "ssh:-oProxyCommand=x",
            "ssh:a b",
            "h:",
            "h:0",
            "h:65536",
            ":7",
            "fe80::1:9",
            "a b:7",
        ] {
            let error = text.parse::<Peer>().expect_err(text).to_string();
            assert!(error.contains("write ssh:HOST or HOST:PORT"), "{error}");
        }
    }
}
