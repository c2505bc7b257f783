//! The options of a bench whose server is on another machine.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use clap::Args;

/// The options of a bench whose server is on another machine.
#[derive(Clone, Debug, Args)]
pub struct TwoMachines {
    /// Run the server on another machine, by `ssh HOST` or the command in NETPOLICY_SSH_COMMAND.
    #[arg(long, value_name = "ssh:HOST")]
    pub server: Option<Ssh>,
    /// Its address [default: the one that ssh connects to].
    #[arg(long, value_name = "ADDRESS", requires = "server")]
    pub server_address: Option<IpAddr>,
    /// Its port [default: a free one].
    #[arg(long, value_name = "N", requires = "server", value_parser = clap::value_parser!(u16).range(1..))]
    pub server_port: Option<u16>,
    /// How netpolicy is called there.
    #[arg(long, value_name = "CMD", requires = "server", default_value = "netpolicy")]
    pub server_program: String,
}

/// A machine that is reached by ssh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ssh {
    /// The destination, as ssh accepts it.
    pub host: String,
}

impl fmt::Display for Ssh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.host)
    }
}

/// A text that names no machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` names no machine: write ssh:HOST, as in ssh:root@192.0.2.7")]
pub struct NotAMachine(String);

/// How a machine that is reached by ssh is written.
pub(crate) const PREFIX: &str = "ssh:";

impl FromStr for Ssh {
    type Err = NotAMachine;

    fn from_str(text: &str) -> Result<Self, NotAMachine> {
        let host = text.strip_prefix(PREFIX).unwrap_or_default();
        // A leading hyphen would be an option of ssh.
        let is_one = !host.is_empty() && !host.starts_with('-') && host.chars().all(|c| c.is_ascii_graphic());
        if is_one { Ok(Self { host: host.to_owned() }) } else { Err(NotAMachine(text.to_owned())) }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_machine_is_a_destination_of_ssh_and_never_an_option() {
        assert_eq!("ssh:root@h".parse(), Ok(Ssh { host: "root@h".to_owned() }));
        for text in ["", "h", "ssh:", "ssh:-oProxyCommand=x", "ssh:a b", "h:22"] {
            let error = text.parse::<Ssh>().expect_err(text).to_string();
            assert!(error.contains("write ssh:HOST"), "{error}");
        }
    }
}
