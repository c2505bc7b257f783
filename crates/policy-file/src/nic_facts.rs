//! Parses the shipped facts about NIC drivers: text → [`NicFacts`].

use std::sync::{Arc, LazyLock};

use model::NicFacts;

/// The text of the shipped file.
const SHIPPED: &str = include_str!("../nics/drivers.toml");

static FACTS: LazyLock<Arc<NicFacts>> = LazyLock::new(|| {
    #[expect(clippy::expect_used, reason = "a test reads the same text")]
    Arc::new(toml::from_str(SHIPPED).expect("the facts that ship are well-formed"))
});

/// The shipped facts.
pub fn nic_facts() -> Arc<NicFacts> {
    Arc::clone(&FACTS)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn every_fact_names_a_line_of_the_kernels_source_and_what_stands_there() {
        let facts = nic_facts();
        for driver in [
            "mlx5_core",
            "ice",
            "i40e",
            "bnxt_en",
            "ena",
            "gve",
            "idpf",
            "iavf",
            "mana",
            "virtio_net",
            "igc",
            "r8169",
        ] {
            assert!(facts.drivers.contains_key(driver), "{driver}");
        }
        let rows: Vec<&str> = SHIPPED.lines().filter(|line| line.contains("{ is = ")).collect();
        assert!(rows.len() > 100, "{}", rows.len());
        for row in rows {
            let at = row.split("at = \"").nth(1).and_then(|rest| rest.split('"').next()).expect("a place");
            let (file, line) = at.rsplit_once(':').expect("file and line");
            assert!(file.starts_with("drivers/net/") && line.parse::<u32>().is_ok(), "{row}");
            assert!(row.contains("word = \"") && row.contains("in = \"") && !row.contains("= \"\""), "{row}");
        }
    }
}
