//! Whose processes a service's are, and what is said where none is seen.

use libtest_mimic::{Failed, Trial};
use linux::lab::MemcachedOptions;

use crate::operator::Operator;
use crate::{Need, test};

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Memcached, Need::Suspension];
    vec![
        test("services/an_executable_is_found_by_a_symbolic_link_to_it", NEEDS, by_link),
        test("services/what_could_not_be_looked_into_is_not_said_not_to_run", NEEDS, as_nobody),
    ]
}

fn by_link() -> Result<(), Failed> {
    let operator = Operator::new("service-link", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let link = operator.state().with_file_name("cache-server");
    std::os::unix::fs::symlink("/usr/bin/memcached", &link)?;
    let service =
        |exe: &str| format!("[service.cache]\nmatch = {{ exe = \"{exe}\" }}\ndelivery = \"suspend20\"\n");
    operator.asks(&service(&link.display().to_string()))?;
    let said = operator.runs(&["plan"], 3)?;
    assert!(said.data.contains("memcached"), "{}", said.data);
    operator.asks(&service("no-such-server"))?;
    let said = operator.runs(&["plan"], 0)?.words;
    assert!(said.contains("no process of this service runs (exe no-such-server)"), "{said}");
    assert!(said.contains("the host is as the policy says for the services that run"), "{said}");
    Ok(())
}

fn as_nobody() -> Result<(), Failed> {
    let operator = Operator::new("service-unseen", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    operator.asks("[service.init]\nmatch = { exe = \"no-such-server\" }\ndelivery = \"suspend20\"\n")?;
    for arguments in [&["plan"][..], &["apply", "--dry-run"]] {
        let said = operator.runs_as_nobody(arguments, 1)?.words;
        assert!(
            said.contains("whether a process of this service runs (exe no-such-server) is not known"),
            "{said}"
        );
        assert!(said.contains("could not be looked into (process 1: Permission denied (EACCES)"), "{said}");
        assert!(!said.contains("the host is as the policy says."), "{said}");
    }
    Ok(())
}
